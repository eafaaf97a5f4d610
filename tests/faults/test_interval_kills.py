"""kill -9 between any two steps of an interval: nothing half visible, and a rerun converges."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from include.times import Interval
from tests.conftest import Home, iso, last_hours
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.faults]

Registered = set[tuple[str, str, str]]
"""Table, partition and location."""


def catalog(home: Home, interval: Interval) -> Registered:
    """Everything registered of the interval, from the metastore's own tables."""
    with psycopg2.connect(home.database.replace("/ledger", "/catalog")) as connection, connection.cursor() as cursor:
        cursor.execute(
            'SELECT t."TBL_NAME", p."PART_NAME", s."LOCATION" FROM "PARTITIONS" p '
            'JOIN "TBLS" t ON t."TBL_ID" = p."TBL_ID" JOIN "SDS" s ON s."SD_ID" = p."SD_ID" '
            'WHERE p."PART_NAME" LIKE %s',
            (f"%interval={interval.label}",),
        )
        return {(table, part, location.replace("file:///", "file:/")) for table, part, location in cursor.fetchall()}


def revisions(home: Home, interval: Interval, state: str) -> Registered:
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, table_partition, location FROM revisions WHERE state = %s AND table_partition LIKE %s",
            (state, f"%interval={interval.label}"),
        )
        return {(table, part, location.replace("file:///", "file:/")) for table, part, location in cursor.fetchall()}


def kill_interval(home: Home, interval: Interval, moment: str) -> None:
    bounds = ("--from", iso(interval.from_time), "--to", iso(interval.to_time))
    killed = home.run("interval", "nest_cameras", *bounds, expect=None, TIDEMARK_CRASH_AT=moment)
    assert killed.returncode not in (0, 1, 2, 3), f"not killed at {moment}: {killed.stderr[-2000:]}"


@pytest.fixture
def interval(home: Home, request: pytest.FixtureRequest) -> Interval:
    """An hour of its own per test, landed."""
    start = last_hours(2 if "build" in request.node.name else 3)
    arguments = ("--events", "1200", "--bad-fraction", "0.05", "--start", iso(start), "--span", "59m")
    home.run("produce", "nest_cameras", *arguments)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return Interval(start, start + timedelta(hours=1))


def check_result(home: Home, interval: Interval, begun: Registered) -> None:
    """The interval runs to its end now: what was begun is registered, each row once, built equal every time."""
    verdict: dict[str, Any] = home.interval("nest_cameras", interval.from_time)
    assert {(r["table"], r["partition"]) for r in verdict["registered"]} == {(t, p) for t, p, _ in begun}
    assert catalog(home, interval) == begun
    records = audit.in_ranges(audit.read_topic(home.kafka, "nest-logs"), verdict["ranges"])
    assert len(records) == 1200
    table = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras")
    assert audit.identities(table) == Counter(audit.expected(records).rows.keys())
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        # Every build that lived long enough to be noted holds the same rows.
        cursor.execute(
            "SELECT count(DISTINCT content_hash) FROM revisions WHERE table_partition LIKE %s GROUP BY table_name",
            (f"%interval={interval.label}",),
        )
        assert {distinct for (distinct,) in cursor.fetchall()} == {1}


def test_rerun_finishes_the_registration_when_the_interval_is_killed_in_the_middle_of_it(
    home: Home, interval: Interval
) -> None:
    # What is visible passed its checkpoint, and the intent is noted.
    kill_interval(home, interval, "partition_registered")
    begun = revisions(home, interval, "registering")
    assert len(catalog(home, interval)) == 1 < len(begun)
    assert catalog(home, interval) < begun
    assert revisions(home, interval, "registered") == set()

    check_result(home, interval, begun)
    assert revisions(home, interval, "registering") == set()
    assert revisions(home, interval, "registered") == begun


@pytest.mark.slow
def test_nothing_is_visible_and_a_rerun_converges_when_the_interval_is_killed_at_any_step_of_its_build(
    home: Home, interval: Interval
) -> None:
    for moment in ("interval_pinned", "revision_staged", "revision_written", "revisions_noted"):
        kill_interval(home, interval, moment)
        assert catalog(home, interval) == set(), f"something is visible after a kill at {moment}"
        assert revisions(home, interval, "registered") == set()
    kill_interval(home, interval, "interval_published")
    check_result(home, interval, revisions(home, interval, "registered"))
