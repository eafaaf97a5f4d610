"""The long tier: Airflow's parts are killed again and again while a stream and intervals run.

    AIRFLOW_KILLS=40 ./tidemark test -m slow tests/faults/test_airflow_faults.py

Without the variable it happens twice. `SEED` chooses which parts and when; the same seed chooses the same.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.conftest import Home
from tests.faults.scheduled import INTERVAL, SEED, STREAM, Scheduled, check_agreement, check_hours
from tests.support import audit

pytestmark = [
    pytest.mark.services,
    pytest.mark.airflow,
    pytest.mark.own_drivers,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.timeout(43_200),
]

KILLS = int(os.environ.get("AIRFLOW_KILLS", "2"))
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")


@pytest.fixture(scope="module")
def scheduled(home: Home) -> Iterator[Scheduled]:
    made = Scheduled(home, KILLS)
    made.begin(STREAM, INTERVAL)
    yield made
    made.api.set_paused(STREAM, True)
    home.run("stream", "nest_cameras", "--stop", expect=None)


def test_each_interval_is_registered_once_and_whole_when_parts_of_airflow_are_killed_while_it_runs(
    scheduled: Scheduled,
) -> None:
    rng, killed, runs, cleared = scheduled.rng, Counter[str](), [], 0
    for hour in range(KILLS):
        # The stream has something to do, too, while Airflow's parts die.
        scheduled.produce()
        runs.append(scheduled.run_interval(hour))
        # Any moment of the run: before its first task, in one of its drivers, between two, after it.
        time.sleep(rng.uniform(0, 60))
        part = rng.choice(PARTS)
        scheduled.kill(part)
        killed[part] += 1
        # It does not wait for the run's end, as on an ordinary day.
        if rng.random() < 0.5:
            cleared += scheduled.succeeds(runs[-1])
    cleared += sum(map(scheduled.succeeds, runs))
    scheduled.settle()
    home = scheduled.home
    assert audit.check_archive(home.kafka, home.database, home.lake) == scheduled.produced
    check_hours(scheduled, range(KILLS))
    check_agreement(scheduled)
    told = f"{KILLS} kills over {scheduled.produced} records, seed {SEED}: {dict(killed)}, {cleared} runs cleared"
    print(f"{told}; lost 0, doubled 0")
