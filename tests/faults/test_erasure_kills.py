"""kill -9 of an erasure between any two of its steps: the next run goes on, and in the end it is as without a kill."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit, remnants

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.slow]

START = last_hours(3)
SECOND = START + timedelta(hours=1)

KILLED_AT = (
    "erased_file_written",
    "erased_file_swapped",
    "erased_from_landing",
    "erased_from_views",
    "erased_interval_built",
    "erased_revisions_retired",
    "erased_files_swept",
)
"""After the beginning, in order."""


@pytest.fixture(scope="module")
def landed(home: Home) -> Home:
    """Two hours, published; the landing files of both are removed, so that only revisions hold their rows."""
    home.produce("nest_cameras", 900, START, "2h", bad=0.05, seed=3)
    home.run("stream", "nest_cameras", "--until-caught-up")
    for start in (START, SECOND):
        home.interval("nest_cameras", start)
    home.run("housekeeping", "nest_cameras", "--older-than", "0s")
    home.produce("nest_cameras", 300, START, "2h", seed=3)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home


def persons_of(records: dict[audit.Coordinates, audit.Record]) -> list[str]:
    """Three devices with rows in many messages."""
    counted = Counter(row["device_id"] for row in audit.expected(records).rows.values())
    return sorted(name for name, _ in counted.most_common(3))


def test_erasure_ends_as_without_a_kill_when_it_is_killed_between_all_of_its_steps(landed: Home) -> None:
    records = audit.read_topic(landed.kafka, "nest-logs")
    persons = persons_of(records)
    named = [part for each in persons for part in ("--key", each)]
    asked = ("erase", "nest_cameras", *named, "--reason", "a test")
    refused = landed.run(*asked, expect=64)
    assert "--whole-records" in refused.stderr
    killed = landed.run(*asked, "--whole-records", expect=None, TIDEMARK_CRASH_AT="erasure_noted")
    assert killed.returncode < 0

    # What is begun is known to everybody: doctor names it, and an interval waits for it.
    assert "--resume" in landed.run("doctor", expect=1).stdout
    waits = landed.run("interval", "nest_cameras", "--from", iso(START), "--to", iso(SECOND), expect=5)
    assert "--resume" in waits.stderr
    other = landed.run("erase", "nest_cameras", "--key", "somebody", "--reason", "r", expect=64)
    assert "unfinished" in other.stderr

    for moment in KILLED_AT:
        again = asked if moment == "erased_from_landing" else ("erase", "nest_cameras", "--resume")
        options = ("--whole-records",) if again is asked else ()
        killed = landed.run(*again, *options, expect=None, TIDEMARK_CRASH_AT=moment)
        assert killed.returncode < 0, f"not killed at {moment}: {killed.stderr[-3000:]}"
    account: dict[str, Any] = landed.json("erase", "nest_cameras", "--resume", "--json")
    assert account["ended_at"]
    assert "no erasure is unfinished" in landed.run("erase", "nest_cameras", "--resume", expect=64).stderr
    check_result(landed, records, persons, account)


def check_result(
    home: Home, records: dict[audit.Coordinates, audit.Record], persons: list[str], account: dict[str, Any]
) -> None:
    """Records of the persons are gone everywhere, and all others are where they were."""
    kept = {
        at: record
        for at, record in records.items()
        if not any(person.encode() in (record.value or b"") for person in persons)
    }
    assert account["records"] == len(records) - len(kept) > 0
    for person in persons:
        found = [each for each in remnants.in_files(home.lake, person) if "/references/" not in each]
        assert found == []
        assert [table for table in remnants.in_database(home, person) if table != "reference_versions"] == []
    for start in (START, SECOND):
        verdict = home.interval("nest_cameras", start)
        counts = verdict["records"]
        assert verdict["reconciliation"]["unexplained"] == 0
        assert counts["in_ranges"] == sum(counts[f] for f in ("archived", "empty", "quarantined", "gaps", "erased"))
        own, others = (audit.in_ranges(each, verdict["ranges"]) for each in (records, kept))
        assert counts["erased"] == len(own) - len(others)
        table = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras")
        assert audit.identities(table) == Counter(audit.expected(others).rows.keys())
    findings = json.loads(home.run("doctor", "--json", "--deep", expect=None).stdout)["findings"]
    assert [each for each in findings if not each["ok"] and (each["kind"] or "erasure" in each["what"])] == []
