"""The long tier: Airflow's parts killed, and runs cleared, repeated and pinned again, again and again.

    AIRFLOW_KILLS=40 SEQUENCES=200 ./tidemark test -m slow tests/faults/test_airflow_faults.py

Without these variables each happens twice. `SEED` chooses what happens and when; the same seed chooses the same.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psutil
import psycopg2
import pytest

from include.airflow.api import AirflowApi
from tests.conftest import Home, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_ui import api_of
from tests.support.registered import in_catalog, in_ledger

pytestmark = [
    pytest.mark.services,
    pytest.mark.airflow,
    pytest.mark.own_drivers,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.timeout(43_200),
]

KILLS = int(os.environ.get("AIRFLOW_KILLS", "2"))
SEQUENCES = int(os.environ.get("SEQUENCES", "2"))
SEED = int(os.environ.get("SEED", "20261124"))
EVENTS = 400
"""In each hour."""
HOURS = KILLS + 3
"""One for each kill, then those whose runs are cleared and repeated."""
FIRST = last_hours(HOURS + 1)
LAST = HOURS
"""The last complete hour when the tests begin, which only the schedule and `repin` ask for."""
STREAM, INTERVAL = "stream__nest_cameras", "interval__nest_cameras"
TASKS = ("pin_ranges", "build_interval", "reconcile", "publish")
PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")
PATIENCE = 900
"""Seconds in which a run must end: a task that a dead scheduler left behind is noticed only some time later."""


@dataclass
class Scheduled:
    """A home whose stream and intervals Airflow runs."""

    home: Home
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    produced: int = 0

    @property
    def api(self) -> AirflowApi:
        return api_of(self.home)

    def up(self) -> None:
        self.home.run("up", "airflow", TIDEMARK_ARCHIVE_WAIT="10m")

    def produce(self, hour: int | None = None) -> None:
        """Produce records of that hour, else of the last minute."""
        bounds = ("--span", "1m") if hour is None else ("--span", "59m", "--start", iso(hour_at(hour)))
        many = ("--events", str(EVENTS), "--bad-fraction", "0.05", "--seed", str(self.produced))
        self.home.run("produce", "nest_cameras", *many, *bounds)
        self.produced += EVENTS

    def run_interval(self, hour: int, **wishes: Any) -> str:
        bounds = {"from": iso(hour_at(hour)), "to": iso(hour_at(hour + 1))}
        return self.api.trigger(INTERVAL, **bounds, **wishes)

    def kill(self, part: str) -> None:
        """Kill one part with SIGKILL. Its parent notices, ends the others, and is started again, as by an operator."""
        served = psutil.Process(self.home._state("airflow")["pid"])
        # Some name themselves anew, as `airflow api_server -- …`.
        named = {" ".join(child.cmdline()).replace("_", "-"): child for child in served.children()}
        [process] = [child for line, child in named.items() if f"airflow {part} " in f"{line} "]
        process.kill()
        served.wait(120)
        self.up()

    def ended(self, run: str) -> str:
        """The state in which a run has ended."""
        state: str = wait_for(run, lambda: self.states([run]).get(run), PATIENCE)
        return state

    def succeeds(self, run: str) -> int:
        """Wait until a run has succeeded; return how often it was cleared until then.

        Each kill may cost a task one of its tries. A run whose tries are used up is cleared, as by a person on call.
        """
        for cleared in range(3):
            if self.ended(run) == "success":
                return cleared
            self.api.clear(INTERVAL, run, TASKS[0])
            wait_for("the run to begin again", lambda: run not in self.states([run]), 60)
        raise AssertionError(f"{run} has failed, although it was cleared: {self.api.tasks(INTERVAL, run)}")

    def states(self, runs: list[str]) -> dict[str, str]:
        """The states of those runs that have ended."""
        found = {each["dag_run_id"]: each["state"] for each in self.api.runs(INTERVAL)}
        return {run: found[run] for run in runs if found.get(run) in ("success", "failed")}

    def settle(self) -> None:
        """Wait until no run of an interval is queued or running."""
        wait_for(
            "all runs to end",
            lambda: all(each["state"] in ("success", "failed") for each in self.api.runs(INTERVAL)),
            PATIENCE,
        )

    def findings(self) -> list[dict[str, str]]:
        """What the doctor objects to."""
        answer = self.home.run("doctor", "--json", "--deep", expect=None)
        return [each for each in json.loads(answer.stdout)["findings"] if not each["ok"]]


def hour_at(number: int) -> datetime:
    return FIRST + timedelta(hours=number)


@pytest.fixture(scope="module")
def scheduled(home: Home) -> Iterator[Scheduled]:
    made = Scheduled(home)
    # Before any interval is pinned: the schedule asks for the last hour, and what came later would be late.
    for hour in range(HOURS):
        made.produce(hour)
    made.up()
    wait_for("the DAGs", lambda: {STREAM, INTERVAL} <= made.api.dag_ids(), 180)
    for dag in (STREAM, INTERVAL):
        made.api.set_paused(dag, False)
    yield made
    made.api.set_paused(STREAM, True)
    home.run("stream", "nest_cameras", "--stop", expect=None)


def check_agreement(scheduled: Scheduled) -> None:
    """Catalog, ledger and files agree, and every record that was committed is where Kafka says."""
    home = scheduled.home
    in_force = in_ledger(home.database, "registered")
    assert in_catalog(home.database) == in_force
    assert in_ledger(home.database, "registering") == set()
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT location, rows FROM revisions WHERE state = 'registered' AND table_name = 'nest_cameras'"
        )
        for location, rows in cursor.fetchall():
            found = audit.identities(audit.read_parquet([location]))
            assert found.total() == rows, f"{location}: the ledger says {rows} rows"
            assert set(found.values()) <= {1}, f"{location}: {[row for row, n in found.items() if n > 1][:5]} doubled"
    assert scheduled.findings() == []


def check_hours(scheduled: Scheduled, hours: range) -> None:
    """What is registered of each hour holds the rows of its ranges, each once."""
    home, every = scheduled.home, audit.read_topic(scheduled.home.kafka, "nest-logs")
    for hour in hours:
        label = hour_at(hour).strftime("%Y-%m-%dT%H")
        ranges = home.json("ranges", "nest_cameras", "--from", iso(hour_at(hour)), "--json")
        records = audit.in_ranges(every, ranges)
        assert len(records) == EVENTS, f"{label}: {len(records)} records in its ranges"
        locations = [at for table, _, at in in_catalog(home.database, label) if table == "nest_cameras"]
        assert locations, f"{label}: nothing is registered"
        table = audit.read_parquet(locations)
        assert audit.identities(table) == Counter(audit.expected(records).rows.keys()), label


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


Operation = Callable[[Scheduled, random.Random, range], None]


def clear(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    """Any task of a run that has ended, with or without those that follow it."""
    ended = [each for each in scheduled.api.runs(INTERVAL) if each["state"] in ("success", "failed")]
    if ended:
        run, task = (
            rng.choice(ended)["dag_run_id"],
            rng.choice(("pin_ranges", "build_interval", "reconcile", "publish")),
        )
        scheduled.api.clear(INTERVAL, run, task, downstream=rng.random() < 0.5)


def run_again(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    scheduled.run_interval(rng.choice(hours), source=rng.choice(("kafka", "archive")))


def repin(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    """Pin again: done for the last interval, refused for another one."""
    scheduled.run_interval(rng.choice((*hours, LAST)), repin=True)


def backfill(scheduled: Scheduled, rng: random.Random, hours: range) -> None:
    """Airflow takes one backfill of a DAG at a time."""
    first = rng.choice(hours)
    number = scheduled.api.backfill(INTERVAL, iso(hour_at(first)), iso(hour_at(hours[-1])), again=True)
    wait_for("the backfill", lambda: scheduled.api.backfill_ended(number), 3 * PATIENCE)


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
    rng, hours = random.Random(SEED), range(KILLS, HOURS)
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
    print(f"{SEQUENCES} sequences, seed {SEED}: {dict(done)}; lost 0, doubled 0")
