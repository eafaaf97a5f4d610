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
from tests.support.killed import was_killed
from tests.support.registered import Registered, in_catalog, in_ledger

pytestmark = [pytest.mark.services, pytest.mark.faults]


def kill_interval(home: Home, interval: Interval, moment: str) -> None:
    bounds = ("--from", iso(interval.from_time), "--to", iso(interval.to_time))
    killed = home.run("interval", "nest_cameras", *bounds, expect=None, TIDEMARK_CRASH_AT=moment)
    assert was_killed(killed), f"not killed at {moment}: {killed.stderr[-2000:]}"


@pytest.fixture
def interval(home: Home, request: pytest.FixtureRequest) -> Interval:
    """An hour of its own per test, landed."""
    start = last_hours(2 if "build" in request.node.name else 3)
    arguments = ("--events", "1200", "--bad-fraction", "0.05", "--start", iso(start), "--span", "59m")
    home.run("produce", "nest_cameras", *arguments)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return Interval(start, start + timedelta(hours=1))


def check_result(home: Home, interval: Interval, begun: Registered) -> None:
    """Run the interval to its end: it is registered, each row once, and every build is equal."""
    verdict: dict[str, Any] = home.interval("nest_cameras", interval.from_time)
    assert {(r["table"], r["partition"]) for r in verdict["registered"]} == {(t, p) for t, p, _ in begun}
    assert in_catalog(home.database, interval.label) == begun
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
    begun = in_ledger(home.database, "registering", interval.label)
    assert len(in_catalog(home.database, interval.label)) == 1 < len(begun)
    assert in_catalog(home.database, interval.label) < begun
    assert in_ledger(home.database, "registered", interval.label) == set()

    check_result(home, interval, begun)
    assert in_ledger(home.database, "registering", interval.label) == set()
    assert in_ledger(home.database, "registered", interval.label) == begun


@pytest.mark.slow
def test_nothing_is_visible_and_a_rerun_converges_when_the_interval_is_killed_at_any_step_of_its_build(
    home: Home, interval: Interval
) -> None:
    for moment in ("interval_pinned", "revision_staged", "revision_written", "revisions_noted"):
        kill_interval(home, interval, moment)
        assert in_catalog(home.database, interval.label) == set(), f"something is visible after a kill at {moment}"
        assert in_ledger(home.database, "registered", interval.label) == set()
    kill_interval(home, interval, "interval_published")
    check_result(home, interval, in_ledger(home.database, "registered", interval.label))
