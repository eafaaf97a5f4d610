"""kill -9 between any two steps of an interval: nothing half visible, and a rerun converges.

And, before one of them, of its stream's driver: the short form of `test_driver_kills.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from include.times import Interval
from tests.conftest import Home, iso, last_hours, warm_jvm
from tests.support.killed import check_landed, was_killed
from tests.support.registered import Registered, in_catalog, in_ledger

pytestmark = [pytest.mark.services, pytest.mark.faults]


def kill_interval(home: Home, interval: Interval, moment: str, **settings: str) -> None:
    bounds = ("--from", iso(interval.from_time), "--to", iso(interval.to_time))
    killed = home.run("interval", "nest_cameras", *bounds, expect=None, TIDEMARK_CRASH_AT=moment, **settings)
    assert was_killed(killed), f"not killed at {moment}: {killed.stderr[-2000:]}"


def land(home: Home, start: datetime, **settings: str) -> Interval:
    """An hour of records, landed; where `settings` kill the first driver, by a second one."""
    home.produce("nest_cameras", 1200, start, "59m", bad=0.05)
    if settings:
        killed = home.run("stream", "nest_cameras", "--until-caught-up", expect=None, **settings)
        assert was_killed(killed), killed.stderr[-2000:]
    home.run("stream", "nest_cameras", "--until-caught-up")
    return Interval(start, start + timedelta(hours=1))


@dataclass(frozen=True)
class Rerun:
    """An interval whose driver was killed in the middle of its registration, and which was run again."""

    interval: Interval
    begun: Registered
    """What was being registered."""
    visible: Registered
    """What readers saw of it after the kill."""
    registered: Registered
    """What the ledger held to be registered after the kill."""
    verdict: dict[str, Any]


@pytest.fixture(scope="module")
def rerun(home: Home) -> Rerun:
    """Also the stream's driver was killed before, when its landing files were written."""
    interval = land(home, last_hours(3), TIDEMARK_CRASH_AT="landing_written")
    # The driver is one in a JVM that is kept, as after `up spark`: that goes on.
    kill_interval(home, interval, "partition_registered", **warm_jvm().environment())
    begun, registered = (in_ledger(home.database, state, interval.label) for state in ("registering", "registered"))
    visible = in_catalog(home.database, interval.label)
    return Rerun(interval, begun, visible, registered, home.interval("nest_cameras", interval.from_time))


def check_result(home: Home, interval: Interval, begun: Registered, verdict: dict[str, Any]) -> None:
    """The verdict is of all that was begun: it is registered, and every build is equal."""
    assert {(r["table"], r["partition"]) for r in verdict["registered"]} == {(t, p) for t, p, _ in begun}
    assert in_catalog(home.database, interval.label) == begun
    assert verdict["records"]["in_ranges"] == 1200
    # Every build that lived long enough to be noted holds the same rows.
    counts = "SELECT count(DISTINCT content_hash) FROM revisions WHERE table_partition LIKE %s GROUP BY table_name"
    assert {distinct for (distinct,) in home.ledger(counts, f"%interval={interval.label}")} == {1}


def test_rerun_finishes_the_registration_when_the_interval_is_killed_in_the_middle_of_it(
    home: Home, rerun: Rerun
) -> None:
    # What is visible passed its checkpoint, and the intent is noted.
    assert len(rerun.visible) == 1 < len(rerun.begun)
    assert rerun.visible < rerun.begun
    assert rerun.registered == set()
    check_result(home, rerun.interval, rerun.begun, rerun.verdict)
    assert in_ledger(home.database, "registering", rerun.interval.label) == set()
    assert in_ledger(home.database, "registered", rerun.interval.label) == rerun.begun


def test_nothing_is_lost_or_doubled_when_drivers_of_stream_and_interval_are_killed(home: Home, rerun: Rerun) -> None:
    check_landed(home, rerun.verdict)


@pytest.mark.slow
def test_nothing_is_visible_and_a_rerun_converges_when_the_interval_is_killed_at_any_step_of_its_build(
    home: Home,
) -> None:
    interval = land(home, last_hours(2))
    for moment in ("interval_pinned", "revision_staged", "revision_written", "revisions_noted"):
        kill_interval(home, interval, moment)
        assert in_catalog(home.database, interval.label) == set(), f"something is visible after a kill at {moment}"
        assert in_ledger(home.database, "registered", interval.label) == set()
    kill_interval(home, interval, "interval_published")
    begun = in_ledger(home.database, "registered", interval.label)
    verdict = home.interval("nest_cameras", interval.from_time)
    check_result(home, interval, begun, verdict)
    check_landed(home, verdict)
