"""The long tier: runs of intervals are cleared, repeated, backfilled, pinned again and failed, as people do it.

    SEQUENCES=200 ./tidemark test -m slow tests/faults/test_airflow_sequences.py

Without the variable there are two sequences. `SEED` chooses what happens; the same seed chooses the same. A sequence is
dozens of Spark applications: those of the intervals use the JVM that `up spark` keeps, one at a time, so that it takes
a minute or two. The stream has a JVM of its own.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import REPOSITORY, Home, iso, wait_for
from tests.faults.scheduled import INTERVAL, PATIENCE, SEED, TASKS, Scheduled, check_agreement, check_hours

pytestmark = [
    pytest.mark.services,
    pytest.mark.airflow,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.own_drivers,
    pytest.mark.timeout(43_200),
]

SEQUENCES = int(os.environ.get("SEQUENCES", "2"))
HOURS = 3
"""The next one is the last complete hour when the test begins, which only the schedule and `repin` ask for."""


@pytest.fixture(scope="module")
def scheduled(home: Home) -> Iterator[Scheduled]:
    made = Scheduled(home, HOURS)
    home.run("up", "spark")
    made.begin(INTERVAL)
    with (home.path / "stream.log").open("w") as log:
        stream = subprocess.Popen(
            home.command("stream", "nest_cameras"), env=home.environment(), cwd=REPOSITORY, stdout=log, stderr=log
        )
        yield made
        home.run("stream", "nest_cameras", "--stop", expect=None)
        stream.wait(120)


Operation = Callable[[Scheduled, random.Random, range], None]


def clear(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    """Any task of a run that has ended, with or without those that follow it."""
    ended = [each for each in scheduled.api.runs(INTERVAL) if each["state"] in ("success", "failed")]
    if ended:
        run, task = rng.choice(ended)["dag_run_id"], rng.choice(TASKS)
        scheduled.api.clear(INTERVAL, run, task, downstream=rng.random() < 0.5)


def run_again(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    scheduled.run_interval(rng.choice(hours), source=rng.choice(("kafka", "archive")))


def repin(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    """Pin again: done for the last interval, refused for another one."""
    scheduled.run_interval(rng.choice((*hours, HOURS)), repin=True)


def backfill(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    """Airflow takes one backfill of a DAG at a time."""
    first = rng.choice(hours)
    bounds = iso(scheduled.hour_at(first)), iso(scheduled.hour_at(hours[-1]))
    number = scheduled.api.backfill(INTERVAL, *bounds, again=True)
    wait_for("the backfill", lambda: scheduled.api.backfill_ended(number), 3 * PATIENCE, every=1)


def mark_failed(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    """Clear a running run in the middle of its work, as a person does in the UI."""
    for each in scheduled.api.runs(INTERVAL):
        if each["state"] == "running":
            scheduled.api.fail_run(INTERVAL, each["dag_run_id"])
            return


OPERATIONS: tuple[Operation, ...] = (clear, clear, run_again, run_again, repin, backfill, mark_failed)


def test_catalog_ledger_and_files_agree_after_each_sequence_of_clears_reruns_backfills_and_repins(
    scheduled: Scheduled,
) -> None:
    rng, hours = random.Random(SEED), range(HOURS)
    for hour in hours:
        assert scheduled.ended(scheduled.run_interval(hour)) == "success"
    done: Counter[str] = Counter()
    for number in range(SEQUENCES):
        names = []
        for operation in rng.choices(OPERATIONS, k=rng.randint(2, 3)):
            operation(scheduled, rng, hours)
            names.append(operation.__name__)
            if rng.random() < 0.5:
                scheduled.settle()
            else:
                time.sleep(rng.uniform(0, 20))
        scheduled.settle()
        done.update(names)
        print(f"sequence {number} of seed {SEED}: {', '.join(names)}", flush=True)
        check_agreement(scheduled)
        check_hours(scheduled, hours)
    for hour in hours:
        assert scheduled.ended(scheduled.run_interval(hour)) == "success"
    check_agreement(scheduled)
    check_hours(scheduled, hours)
    assert done.total() >= 2 * SEQUENCES
    detail = scheduled.home.services["spark"]["detail"]
    assert detail != "applications served: 0"
    print(f"{SEQUENCES} sequences, seed {SEED}: {dict(done)}; lost 0, doubled 0; {detail}")
