"""Housekeeping: what goes, what stays, and that everything goes on working as before."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.pipelines import load_pipeline
from tests.conftest import Home, iso, last_hours
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
NOW = ("--older-than", "0s")


def files(folder: Path, within: str = "") -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*.parquet")
        if within in str(path) and not path.name.startswith(".")
    }


def produce_and_stream(home: Home, seed: int, start: datetime, span: str) -> None:
    home.produce("nest_cameras", 3000, start, span, bad=0.03, seed=seed)
    home.run("stream", "nest_cameras", "--until-caught-up")


class Kept:
    """Two registered intervals whose landing was removed; what lay there before each step."""

    def __init__(self, home: Home) -> None:
        self.home = home
        produce_and_stream(home, 1, START, "2h")
        self.verdicts = [home.interval("nest_cameras", START + timedelta(hours=hour)) for hour in (0, 1)]
        # The day of these commits is over.
        home.ledger("UPDATE micro_batches SET committed_at = committed_at - interval '2 days' RETURNING id")
        self.quarantine = home.json("quarantine", "list", "nest_cameras", "--limit", "5000", "--json")
        self.before = files(home.lake)
        self.dry_run = home.json("housekeeping", "nest_cameras", "--dry-run", "--json", *NOW)[0]
        self.after_dry_run = files(home.lake)
        killed = home.run("housekeeping", "nest_cameras", *NOW, expect=None, TIDEMARK_CRASH_AT="housekeeping_marked")
        assert killed.returncode < 0
        self.after_kill = files(home.lake)
        self.done = home.json("housekeeping", "nest_cameras", "--json", *NOW)[0]

    def registered(self, table: str, hour: int) -> dict[str, Any]:
        return next(r for r in self.verdicts[hour]["registered"] if r["table"] == table)


@pytest.fixture(scope="module")
def kept(home: Home) -> Kept:
    return Kept(home)


def test_nothing_changes_when_housekeeping_is_a_dry_run(kept: Kept) -> None:
    assert kept.after_dry_run == kept.before
    assert kept.dry_run["landing"]["files"] == len({f for f in kept.before if "fate=archived" in f}) > 0
    assert kept.dry_run["compacted"]["days"] == 2


def test_next_run_deletes_the_landing_files_when_one_was_killed_after_marking_them(kept: Kept) -> None:
    archived = {f for f in kept.before if "fate=archived" in f}
    assert archived <= kept.after_kill
    assert kept.done["landing"]["files"] == 0
    assert files(kept.home.lake, "fate=archived") == set()
    assert kept.home.ledger("SELECT count(*) FROM landing_files WHERE fate = 'archived' AND removed_at IS NULL") == [
        (0,)
    ]
    # Emptied folders went with them.
    folders = [path for path in (kept.home.lake / "landing").rglob("*") if path.is_dir()]
    assert {path.name for path in folders} == {"nest_cameras", "compacted", "empty"}


def test_closed_day_is_one_file_per_fate_with_the_same_rows_when_compacted(kept: Kept) -> None:
    rows = kept.home.ledger(
        "SELECT fate, count(DISTINCT path), sum(rows) FROM landing_files WHERE removed_at IS NULL "
        "GROUP BY 1 ORDER BY 1",
    )
    assert [(fate, paths) for fate, paths, _ in rows] == [("empty", 1), ("quarantined", 1)]
    assert len(files(kept.home.lake / "quarantine")) == 1
    expected = audit.expected(audit.read_topic(kept.home.kafka, "nest-logs"))
    quarantine = audit.read_parquet([str(kept.home.lake / "quarantine")])
    empty = audit.read_parquet([str(kept.home.lake / "landing")])
    assert audit.coordinates_of(quarantine) == Counter(expected.bad)
    assert audit.coordinates_of(empty) == Counter(expected.empty)
    listed = kept.home.json("quarantine", "list", "nest_cameras", "--limit", "5000", "--json")

    def place(record: dict[str, Any]) -> tuple[int, int]:
        return record["kafka_partition"], record["kafka_offset"]

    assert sorted(listed, key=place) == sorted(kept.quarantine, key=place)


def test_each_table_partition_is_one_file_by_construction(kept: Kept) -> None:
    found = kept.home.ledger("SELECT location, files FROM revisions WHERE state = 'registered'")
    assert found
    for location, noted in found:
        names = [path.name for path in Path(location.removeprefix("file://")).glob("*.parquet")]
        assert names == list(noted)
        assert len(names) == 1


def test_rebuild_from_archive_and_from_kafka_are_equal_when_landing_was_removed(kept: Kept) -> None:
    partition = kept.registered("nest_cameras", 0)["partition"]
    for source in ("archive", "kafka"):
        rebuilt = kept.home.json("rebuild", "nest_cameras", partition, "--source", source, "--json")
        assert rebuilt["equal"] is True
        assert rebuilt["rebuilt_hash"] == kept.registered("nest_cameras", 0)["content_hash"]
        told = [note for note in rebuilt["notes"] if "--source kafka compares with it" in note]
        assert len(told) == (source == "archive")


def test_rerun_keeps_hash_and_revision_when_landing_was_removed(kept: Kept) -> None:
    again = kept.home.interval("nest_cameras", START + timedelta(hours=1))
    assert again["registered"] == kept.verdicts[1]["registered"]
    assert again["records"] == kept.verdicts[1]["records"]
    assert again["reconciliation"]["unexplained"] == 0


def test_later_interval_reconciles_when_landing_of_its_windows_was_removed(kept: Kept) -> None:
    # The third hour moves the watermark; then rows of the first two come again: late, in the third interval.
    produce_and_stream(kept.home, 2, START + timedelta(hours=2), "59m")
    produce_and_stream(kept.home, 3, START, "3h")
    verdict = kept.home.interval("nest_cameras", START + timedelta(hours=2))
    assert verdict["reconciliation"]["unexplained"] == 0
    lines = load_pipeline("nest_cameras").references["device_locations"].path.read_text().splitlines()[1:]
    places = dict(line.split(",") for line in lines)
    rows = audit.expected(audit.read_topic(kept.home.kafka, "nest-logs")).rows.values()
    sightings = sum(row["last_event"]["has_person"] and row["device_id"] in places for row in rows)
    counted = sum(value["count"] for value in audit.last_values(kept.home.kafka, "nest-camera-stats").values())
    assert verdict["reconciliation"]["late"] == sightings - counted > 0


def test_flipped_byte_is_found_and_the_rerun_mends_it_when_landing_was_removed(kept: Kept) -> None:
    home, registered = kept.home, kept.registered("nest_cameras", 0)
    damaged = next(Path(registered["location"].removeprefix("file://")).glob("*.parquet"))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    # Size and listing are as before: only reading the file finds it.
    assert home.run("doctor").returncode == 0
    found = [f for f in home.json("doctor", "--deep", "--json", expect=1)["findings"] if not f["ok"]]
    assert [f["kind"] for f in found] == ["changed content"]
    assert damaged.name in found[0]["what"]
    assert registered["partition"] in found[0]["what"]
    refused = home.run("rebuild", "nest_cameras", registered["partition"], "--source", "archive", expect=1)
    assert "changed content" in refused.stderr
    # The landing of these offsets is gone and the archive's copy is damaged: the rerun takes them from Kafka.
    command = found[0]["remedy"].removeprefix("./tidemark ").split()
    again = json.loads(home.run(*command).stdout)
    new = next(r for r in again["registered"] if r["table"] == "nest_cameras")
    assert new["content_hash"] == registered["content_hash"]
    assert new["location"] != registered["location"]
    assert home.run("doctor", "--deep").returncode == 0
    assert home.ledger(f"SELECT state FROM revisions WHERE location = '{registered['location']}'") == [("superseded",)]


def test_later_interval_reconciles_when_the_revision_of_an_earlier_one_in_its_windows_is_damaged(kept: Kept) -> None:
    home, registered = kept.home, kept.registered("nest_cameras", 1)
    damaged = next(Path(registered["location"].removeprefix("file://")).glob("*.parquet"))
    whole = damaged.read_bytes()
    # Not even its footer, which holds the event times, can be read.
    damaged.write_bytes(whole[:-4] + b"\0\0\0\0")
    start = START + timedelta(hours=2)
    bounds = ("--from", iso(start), "--to", iso(start + timedelta(hours=1)))
    # Some rows of the second hour came in the third interval: its windows hold rows of the damaged revision.
    again = home.run("interval", "nest_cameras", *bounds)
    verdict = json.loads(again.stdout)
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["reconciliation"]["late"] > 0
    assert f"changed content: {damaged.name}" in again.stderr
    assert again.stderr.count("are read from Kafka again") == 1
    refused = home.run("interval", "nest_cameras", *bounds, "--source", "archive", expect=1)
    assert f"changed content: {damaged.name}" in refused.stderr
    damaged.write_bytes(whole)
    assert home.run("doctor", "--deep").returncode == 0


def test_old_revisions_go_and_registered_ones_stay_when_their_time_is_over(kept: Kept) -> None:
    home = kept.home
    superseded = home.ledger("SELECT location FROM revisions WHERE state = 'superseded'")
    assert superseded
    # The declared seven days are not over.
    assert home.json("housekeeping", "nest_cameras", "--json")[0]["revisions"]["revisions"] == 0
    assert all(Path(location.removeprefix("file://")).exists() for (location,) in superseded)
    home.json("housekeeping", "nest_cameras", "--json", *NOW)
    assert not any(Path(location.removeprefix("file://")).exists() for (location,) in superseded)
    states = dict(home.ledger("SELECT state, count(*) FROM revisions GROUP BY 1"))
    assert set(states) == {"registered", "removed"}
    lying = {path.parent for path in (home.lake / "tables").rglob("*.parquet")}
    registered = home.ledger("SELECT location FROM revisions WHERE state = 'registered'")
    assert lying == {Path(location.removeprefix("file://")) for (location,) in registered}
    assert home.run("doctor", "--deep").returncode == 0


def test_pinning_again_is_refused_when_landing_was_removed(kept: Kept) -> None:
    start = START + timedelta(hours=2)
    bounds = ("--from", iso(start), "--to", iso(start + timedelta(hours=1)))
    refused = kept.home.run("interval", "nest_cameras", *bounds, "--repin", expect=64)
    assert "landing files of nest-logs-" in refused.stderr
