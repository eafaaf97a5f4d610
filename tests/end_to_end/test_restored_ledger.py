"""PostgreSQL is lost and made anew, or restored from an older copy, while the lake and Kafka are as they were.

What each step of the way does is in this order; in the end every record has one fate, and tables hold each row once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit

# A JVM that outlives PostgreSQL would keep what Hive's client knew of the former one.
pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.slow]

NAME, TOPIC = "nest_cameras", "nest-logs"
HOURS = [last_hours(4) + timedelta(hours=n) for n in range(2)]
STREAM = ("stream", NAME, "--until-caught-up")
NEW_GENERATION = ("new-generation", NAME, "--reason", "the ledger was lost")


def produce_and_stream(home: Home, number: int, events: int, seed: int) -> None:
    home.produce(NAME, events, HOURS[number], "1h", bad=0.02, seed=seed)
    home.run(*STREAM)


def let_days_pass(home: Home) -> None:
    """Make what was committed so far three days older."""
    home.ledger("UPDATE micro_batches SET committed_at = committed_at - interval '3 days'")
    for folder in ("landing", "quarantine"):
        for path in (home.lake / folder).rglob("*"):
            os.utime(path, 2 * (path.stat().st_mtime - timedelta(days=3).total_seconds(),))


def registered(home: Home, number: int) -> list[str]:
    """Run an hour's interval; where its rows are registered."""
    verdict = home.interval(NAME, HOURS[number])
    assert verdict["reconciliation"]["unexplained"] == 0
    return [each["location"] for each in verdict["registered"] if each["table"] == NAME]


def files(home: Home) -> set[Path]:
    return {path for path in home.lake.rglob("*") if path.is_file()}


def replace_postgres(home: Home, by: Path | None) -> None:
    """Start PostgreSQL with a copy of its data, or without any."""
    home.run("down", "postgres")
    shutil.rmtree(home.path / "postgres")
    if by is not None:
        keep(by, home.path / "postgres")
    home.run("up", "postgres")


def keep(data: Path, copy: Path) -> None:
    """Copy PostgreSQL's data with their owner, who is not root."""
    subprocess.run(["cp", "-a", data, copy], check=True)


def check_refused(home: Home, match: str) -> None:
    """Stream, interval, housekeeping and repair change nothing, and say what to do."""
    before = files(home)
    interval = ("interval", NAME, "--from", iso(HOURS[0]), "--to", iso(HOURS[1]))
    for arguments in (STREAM, interval, ("housekeeping", NAME, "--older-than", "0s")):
        said = home.run(*arguments, expect=64).stderr
        assert match in said
        assert "TIDEMARK_DATABASE_URL" in said
    examined: list[dict[str, Any]] = json.loads(home.run("doctor", "--repair", "--json", expect=1).stdout)["findings"]
    assert [each for each in examined if not each["ok"] and match in each["what"]]
    assert files(home) == before


def disagreements(home: Home) -> set[str]:
    examined = json.loads(home.run("doctor", "--deep", "--json", expect=None).stdout)["findings"]
    return {each["kind"] for each in examined if not each["ok"] and each["kind"]}


def check_nothing_moves(home: Home) -> None:
    """What only the former ledger knew stays where it is, as the runbook says, when the rest is repaired."""
    before = files(home)
    home.run("doctor", "--repair", expect=1)
    assert before <= files(home)


def check_all(home: Home, former: int) -> None:
    """Every record has one fate, the tables hold each row once, and nothing else is left once it is let go.

    `former` is the generation of which the former ledger knew more.
    """
    records = audit.read_topic(home.kafka, TOPIC)
    assert audit.check_archive(home.kafka, home.database, home.lake, queries="archive") == len(records)
    locations = [location for number in range(len(HOURS)) for location in registered(home, number)]
    assert audit.identities(audit.read_parquet(locations)) == Counter(audit.expected(records).rows.keys())
    assert home.json("sql", f"SELECT count(*) AS n FROM lake.{NAME}", "--json") == [
        {"n": len(audit.expected(records).rows)}
    ]
    checkpoints = home.lake / "checkpoints" / NAME / f"g{former}"
    (done,) = home.json("housekeeping", NAME, "--older-than", "0s", "--json")
    assert [line.split(":")[0] for line in done["kept"]] == [f"checkpoints/{NAME}/{checkpoints.name}"]
    assert done["orphans"] == []
    assert disagreements(home) == {"landing unknown to the ledger", "revision unknown to the ledger"}
    shutil.rmtree(checkpoints)
    home.run("housekeeping", NAME, "--older-than", "0s")
    assert disagreements(home) == set()
    assert audit.identities(audit.read_parquet(locations)) == Counter(audit.expected(records).rows.keys())
    quarantined = audit.coordinates_of(audit.read_parquet([str(home.lake / "quarantine")]))
    assert quarantined == Counter(audit.expected(records).bad)
    assert not list((home.lake / "replaced").rglob("*.parquet"))


@pytest.fixture(scope="module")
def copy(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of PostgreSQL of after the first hour.

    Since then housekeeping has replaced what the copy names, and a second hour was archived and registered.
    """
    for seed in range(2):
        produce_and_stream(home, 0, 250, seed)
    registered(home, 0)
    let_days_pass(home)
    made = tmp_path_factory.mktemp("copies") / "postgres"
    home.run("down", "postgres")
    keep(home.path / "postgres", made)
    home.run("up", "postgres")
    (done,) = home.json("housekeeping", NAME, "--json")
    assert done["landing"]["micro_batches"] >= 2
    assert done["set_aside"]["files"] >= 2
    produce_and_stream(home, 1, 400, 2)
    registered(home, 1)
    return made


def test_rest_is_read_again_when_the_ledger_was_restored_from_an_older_copy(home: Home, copy: Path) -> None:
    replace_postgres(home, copy)
    check_refused(home, "of generation 0, the ledger at")
    assert "put back" in home.run(*NEW_GENERATION).stderr
    assert not {"landing file missing", "landing file of wrong size"} & disagreements(home)
    check_nothing_moves(home)
    home.run(*STREAM)
    check_all(home, former=0)


def test_all_that_kafka_has_is_read_again_when_the_ledger_was_made_anew(home: Home, copy: Path) -> None:
    replace_postgres(home, None)
    check_refused(home, "has generation 1 of the stream, the ledger at")
    home.run(*NEW_GENERATION)
    check_nothing_moves(home)
    home.run(*STREAM)
    check_all(home, former=1)
