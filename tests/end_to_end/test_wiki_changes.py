"""wiki_changes from generated and hostile records to published partitions, audited from outside."""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from include.producing.messages import nest_cameras
from tests.conftest import Home, end_of, iso, last_hours
from tests.support import audit
from tests.support.changes import as_change, edits_of, text_of, top_of
from tests.support.corpora import NAUGHTY
from tests.support.event_server import made_up_changes

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
HOUR = START + timedelta(hours=1)
TOPIC = "wiki-changes"
STRANGE = [
    "\x00", "\x00\x1f", "\ud800", "\u2028", "", "../..", "null", "NULL", "__HIVE_DEFAULT_PARTITION__", "a=b", "%2F",
    "-", "<script>alert(1)</script>", "'; DROP TABLE x; --", "x" * 90_000, "é" * 127, "\ufeff", "\\", '"', "Ω≈ç√",
]  # fmt: skip


def hostile(moment: datetime) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values that somebody may send, each for a reason."""
    base = made_up_changes(1, moment)[0]
    strings = [*STRANGE, *NAUGHTY]
    sent: list[tuple[bytes | None, bytes | None]] = [(None, None), (b"tombstone", None), (b"", b""), (None, b"[]")]
    for number, text in enumerate(strings):
        for field in ("server_name", "user", "title"):
            meta = {**base["meta"], "id": f"{field}-{number}"}
            sent.append((None, json.dumps({**base, "type": "edit", field: text, "meta": meta}).encode()))
    rng = random.Random(1)
    sent += [nest_cameras.message(moment, rng) for _ in range(20)]
    for dt in (
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999Z",
        "-0001-01-01T00:00:00Z",
        "1e9",
        "+294247-01-10T04:00:55Z",
    ):
        sent.append((None, json.dumps({**base, "meta": {**base["meta"], "dt": dt}}).encode()))
    filler = len(json.dumps({**base, "comment": ""}).encode())
    for size in (1_000_000, 1_048_576, 1_048_577):
        sent.append((None, json.dumps({**base, "comment": "y" * (size - filler)}).encode()))
    sent.append((None, json.dumps({**base, "type": "edit", "user": "z" * 1_000_000}).encode()))
    return sent


@pytest.fixture(scope="module")
def landed(home: Home) -> Home:
    """Three hours of records, two in a hundred bad, and the hostile ones in the middle of the second hour."""
    moment = HOUR + timedelta(minutes=30)
    home.produce("wiki_changes", 3000, START, "90m", bad=0.02, seed=3)
    producer = home.producer(**{"message.max.bytes": 4_000_000, "compression.type": "gzip"})
    for key, value in hostile(moment):
        producer.produce(TOPIC, value, key, timestamp=int(moment.timestamp() * 1000))
        producer.poll(0)
    assert producer.flush(60) == 0
    home.produce("wiki_changes", 3000, moment, "90m", bad=0.02, seed=4)
    home.run("stream", "wiki_changes", "--until-caught-up")
    return home


@pytest.fixture(scope="module")
def verdict(landed: Home) -> dict[str, Any]:
    return landed.interval("wiki_changes", HOUR)


@pytest.fixture(scope="module")
def records(landed: Home) -> dict[audit.Coordinates, audit.Record]:
    return audit.read_topic(landed.kafka, TOPIC)


@pytest.fixture(scope="module")
def archived(
    verdict: dict[str, Any], records: dict[audit.Coordinates, audit.Record]
) -> dict[audit.Coordinates, dict[str, Any]]:
    """What the interval must hold, by coordinates."""
    inside = audit.in_ranges(records, verdict["ranges"])
    return {c: found for c, r in inside.items() if (found := as_change(r.value, r.timestamp))}


def test_every_offset_has_one_fate(
    verdict: dict[str, Any],
    records: dict[audit.Coordinates, audit.Record],
    archived: dict[audit.Coordinates, dict[str, Any]],
) -> None:
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["validation"]["success"] is True
    inside = audit.in_ranges(records, verdict["ranges"])
    fates = Counter(
        "quarantined" if change is None else "archived" if change else "empty"
        for change in (as_change(r.value, r.timestamp) for r in inside.values())
    )
    assert {name: verdict["records"][name] for name in ("archived", "empty", "quarantined", "gaps")} == {
        **fates,
        "gaps": 0,
    }
    assert min(fates.values()) > 0
    assert verdict["records"]["quarantined"] > 50


def test_registered_partitions_hold_each_change_once_below_its_server(
    verdict: dict[str, Any], archived: dict[audit.Coordinates, dict[str, Any]]
) -> None:
    found: Counter[audit.Coordinates] = Counter()
    for partition in [r for r in verdict["registered"] if r["table"] == "wiki_changes"]:
        names = dict(part.split("=", 1) for part in partition["partition"].split("/"))
        assert list(names) == ["date", "server", "interval"]
        folder = Path(unquote(partition["location"].removeprefix("file://")))
        assert (folder.parents[1].name, folder.parents[2].name) == (
            f"server={names['server']}",
            f"date={names['date']}",
        )
        for row in audit.read_parquet([partition["location"]]).to_pylist():
            at = (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])
            found[at] += 1
            change = archived[at]
            assert row["server_name"] == change["server_name"] == names["server"]
            assert row["changed_at"].strftime("%Y-%m-%d") == names["date"]
            assert row["changed_at"] == change["moment"]
            for name in ("title", "user", "wiki", "type", "bot", "id", "namespace"):
                assert row[name] == (text_of(change[name]) if isinstance(change[name], str) else change[name])
            assert row["meta"]["id"] == change["meta"]["id"]
            assert (row["length"] or {}).get("new") == change.get("length", {}).get("new")
    assert found == Counter(archived.keys())


def test_quarantine_keeps_the_others_whole(landed: Home, records: dict[audit.Coordinates, audit.Record]) -> None:
    table = audit.read_parquet([str(landed.lake / "quarantine" / "wiki_changes")])
    bad = {c for c, r in records.items() if as_change(r.value, r.timestamp) is None}
    assert audit.coordinates_of(table) == Counter(bad)
    for row in table.to_pylist():
        record = records[(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"])]
        assert (row["key"], row["value"]) == (record.key, record.value)
    assert set(table["reason"].to_pylist()) >= {
        "null_value", "empty_value", "wrong_type", "too_large", "required_missing", "unsafe_partition_value",
        "value_too_long", "event_time_out_of_bounds", "malformed_json", "trailing_content", "not_utf8",
    }  # fmt: skip


def test_batch_view_speed_view_and_oracle_count_the_same_edits(
    landed: Home, verdict: dict[str, Any], archived: dict[audit.Coordinates, dict[str, Any]]
) -> None:
    oracle = edits_of(archived)
    locations = [r["location"] for r in verdict["registered"] if r["table"] == "wiki_changes_user_edits"]
    rows = audit.read_parquet(locations).to_pylist()
    assert {(r["user"], r["bot"], iso(r["window"]["start"])): r["count"] for r in rows} == oracle
    assert len(rows) == len(oracle)
    speed: Counter[tuple[str, bool, str]] = Counter()
    for key, value in audit.last_values(landed.kafka, "wiki-user-edits").items():
        parts = json.loads(key)
        if iso(HOUR) <= parts["window"]["start"] < iso(HOUR + timedelta(hours=1)):
            speed[parts["user"], parts["bot"], parts["window"]["start"]] += value["count"]
    assert speed == oracle


def test_report_lists_the_ten_users_with_most_edits(
    landed: Home, verdict: dict[str, Any], archived: dict[audit.Coordinates, dict[str, Any]]
) -> None:
    totals: Counter[str] = Counter()
    for (user, _, _), count in edits_of(archived).items():
        totals[user] += count
    last = "SELECT verdict->'report' FROM attempts WHERE verdict ? 'report' ORDER BY id DESC LIMIT 1"
    [(report,)] = landed.ledger(last)
    section = next(each for each in report["sections"] if each["title"] == "Top 10 users by edits")
    assert section["columns"] == ["user", "count"]
    expected = sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:10]
    assert section["rows"] == [[user, count] for user, count in expected]
    page = Path(verdict["report"]).read_text()
    assert "Top 10 users by edits" in page
    assert expected[0][0][0] in page
    assert "<script" not in page


def test_columns_can_be_queried_by_their_names(landed: Home, verdict: dict[str, Any]) -> None:
    columns = "user, length.new AS size, server"
    query = f"SELECT {columns} FROM lake.wiki_changes WHERE server = 'en.wikipedia.org' AND bot LIMIT 3"
    rows = landed.json("sql", query, "--json")
    assert [row["server"] for row in rows] == ["en.wikipedia.org"] * 3
    assert all(row["user"].endswith("Bot") for row in rows)


@pytest.fixture(scope="module")
def all_edits(records: dict[audit.Coordinates, audit.Record]) -> Counter[tuple[str, bool, str]]:
    every = {c: found for c, r in records.items() if (found := as_change(r.value, r.timestamp))}
    return edits_of(every)


def test_top_shows_the_committed_files_and_no_others(landed: Home, all_edits: Counter[tuple[str, bool, str]]) -> None:
    # What a driver leaves that was killed before its commit.
    source = next((landed.lake / "landing" / "wiki_changes").rglob("fate=archived/**/*.parquet"))
    uncommitted = landed.lake / "landing" / "wiki_changes" / "0badcafe-000000007-1" / "fate=archived"
    uncommitted.mkdir(parents=True)
    shutil.copy(source, uncommitted / "part-0.parquet")
    arguments = ["--once", "--json", "--since", "5h", "--windows", "18"]
    found = landed.json("top", "wiki_changes", *arguments)
    shutil.rmtree(uncommitted.parent)
    windows = sorted({start for *_, start in all_edits}, reverse=True)[:18]
    assert [window["from"] for window in found["windows"]] == windows
    for window in found["windows"]:
        inside = [count for (*_, start), count in all_edits.items() if start == window["from"]]
        assert (window["total"], window["keys"]) == (sum(inside), len(inside))
        assert window["rows"] == top_of(all_edits, window["from"])
    assert found["late"] == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_top_follows_what_is_landed_until_it_is_stopped(
    landed: Home, all_edits: Counter[tuple[str, bool, str]]
) -> None:
    window = max(start for *_, start in all_edits)
    before = sum(count for (*_, start), count in all_edits.items() if start == window)
    process = landed.start("top", "wiki_changes", "--json", "--since", "5h")
    try:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert [(w["from"], w["total"]) for w in first["windows"]] == [(window, before)]
        begin = datetime.fromisoformat(window) + timedelta(minutes=3)
        landed.run("produce", "wiki_changes", "--events", "400", "--start", iso(begin), "--span", "5m", "--seed", "8")
        landed.run("stream", "wiki_changes", "--until-caught-up")
        now = audit.read_topic(landed.kafka, TOPIC)
        edits = edits_of({c: found for c, r in now.items() if (found := as_change(r.value, r.timestamp))})
        total = sum(count for (*_, start), count in edits.items() if start == window)
        assert total > before
        shown = first
        while shown["windows"][0]["total"] != total:
            shown = json.loads(process.stdout.readline())
        assert shown["windows"][0]["rows"] == top_of(edits, window)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    finally:
        end_of(process)
