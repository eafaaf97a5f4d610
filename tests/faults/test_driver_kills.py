"""kill -9 of the driver at named moments of a micro-batch: after restarts everything is as without kills.

One such kill by default is in `test_interval_kills.py`, and one between the targets of views in
`tests/end_to_end/test_isp_hits.py`.
"""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.conftest import Home, end_of, iso, last_hours, wait_for
from tests.support.killed import check_landed, was_killed

pytestmark = [pytest.mark.services, pytest.mark.faults]

MOMENTS = (
    "batch_planned",
    "landing_written",
    "quarantine_moved",
    "batch_committed",
    "speed_emitted",
    "speed_committed",
)


def test_next_job_removes_a_temporary_folder_when_its_driver_was_killed(home: Home) -> None:
    folders = home.path / "tmp"
    start = last_hours(4)
    home.run("produce", "nest_cameras", "--events", "10", "--start", iso(start), "--span", "1m")
    stream = home.start("stream", "nest_cameras")
    try:
        wait_for("Spark's local folder", lambda: list(folders.glob("stream-*/blockmgr-*")))
    finally:
        end_of(stream)
    stream.communicate()
    [left] = folders.iterdir()
    assert list(left.glob("blockmgr-*"))
    # Of another driver, which ends well and leaves nothing either.
    home.run("sql", "SELECT 1 AS one")
    assert list(folders.iterdir()) == []


def test_interval_waits_for_the_archive_and_ends_with_exit_code_7_when_no_stream_runs(home: Home) -> None:
    start = last_hours(4)
    home.run("produce", "nest_cameras", "--events", "10", "--start", iso(start), "--span", "1m")
    bounds = ("--from", iso(start), "--to", iso(start + timedelta(hours=1)))
    refused = home.run("interval", "nest_cameras", *bounds, expect=7, TIDEMARK_ARCHIVE_WAIT="1s")
    assert "nest-logs-" in refused.stderr
    assert "is the stream running" in refused.stderr
    assert home.json("ranges", "nest_cameras", "--json") == []


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_the_driver_is_killed_at_named_moments(home: Home) -> None:
    start = last_hours(2)
    for number, moment in enumerate(MOMENTS):
        # New records before each kill, so that every kill hits a micro-batch with work in it.
        home.produce("nest_cameras", 600, start + timedelta(minutes=10 * number), "9m", bad=0.05, seed=number)
        killed = home.run("stream", "nest_cameras", "--until-caught-up", expect=None, TIDEMARK_CRASH_AT=moment)
        assert was_killed(killed), f"the driver was not killed at {moment}: {killed.stderr[-2000:]}"
    home.run("stream", "nest_cameras", "--until-caught-up")
    verdict = home.interval("nest_cameras", start)
    assert verdict["records"]["in_ranges"] >= 600 * len(MOMENTS)
    check_landed(home, verdict)
