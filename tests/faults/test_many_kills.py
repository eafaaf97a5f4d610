"""The long tier: a hundred driver kills over 200,000 records, half at named moments, half at any moment.

    ./tidemark test -m slow tests/faults/test_many_kills.py

`KILLS` and `SEED` in the environment change it; the same seed gives the same records and the same named moments.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections import Counter

import pytest

from tests.faults.conftest import Rig

KILLS = int(os.environ.get("KILLS", "100"))
SEED = int(os.environ.get("SEED", "20261121"))
RECORDS = 200_000
RUNS = 4 * KILLS
"""A driver may be done before its moment comes: so often at most is one started."""
MOMENTS = (
    "batch_planned",
    "landing_written",
    "quarantine_moved",
    "commit_written",
    "batch_committed",
    "speed_emitted",
    "speed_committed",
)

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(5400)]


def kill_at_any_moment(rig: Rig, after: float) -> bool:
    """kill -9 of the driver and its JVM so many seconds after it holds the lease; False when it was done before."""
    stream = rig.started("--until-caught-up")
    try:
        stream.wait(after)
    except subprocess.TimeoutExpired:
        # The command's death is its driver's and its JVM's: both die with it.
        stream.send_signal(signal.SIGKILL)
        stream.communicate(timeout=60)
        return True
    return False


def test_nothing_is_lost_or_doubled_when_the_driver_is_killed_a_hundred_times(rig: Rig) -> None:
    rng = random.Random(SEED)
    done: Counter[str] = Counter()
    runs = 0
    while done.total() < KILLS and runs < RUNS:
        runs += 1
        rig.produce(RECORDS // KILLS, bad_fraction=0.02)
        if rng.random() < 0.5:
            if kill_at_any_moment(rig, rng.uniform(0, 8)):
                done["any moment"] += 1
            continue
        moment = rng.choice(MOMENTS)
        ended = rig.home.run("stream", "nest_cameras", "--until-caught-up", expect=None, TIDEMARK_CRASH_AT=moment)
        # Not one of the command's own codes: the moment came, and the driver died of it.
        if ended.returncode not in (*range(8), 64):
            done[moment] += 1
    assert done.total() >= KILLS, f"{done.total()} kills in {runs} runs, {KILLS} were wanted: {dict(done)}"
    # With fewer kills chance may leave a moment out.
    if KILLS >= 100:
        assert set(done) == {"any moment", *MOMENTS}, f"moments without a kill: {dict(done)}"
    rig.catch_up()
    rig.audit()
    rig.audit_intervals()
    print(
        f"{done.total()} kills in {runs} runs over {rig.produced} records, seed {SEED}: {dict(done)}; lost 0, doubled 0"
    )
