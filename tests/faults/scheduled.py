"""A home whose stream and intervals Airflow runs, for tests that kill its parts or use its API as people do."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psutil

from include.errors import ServiceUnreachable
from tests.conftest import Home, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_ui import api_of
from tests.support.registered import in_catalog, in_ledger

SEED = int(os.environ.get("SEED", "20261124"))
EVENTS = 400
"""In each hour."""
STREAM, INTERVAL = "stream__nest_cameras", "interval__nest_cameras"
TASKS = ("pin_ranges", "build_interval", "reconcile", "publish")
ENDED = ("success", "failed")
LEFT_BEHIND = "revision unknown to the ledger"
PATIENCE = 900
"""Seconds in which a run must end: a task that a dead scheduler left behind is noticed only some time later."""


@dataclass
class Scheduled:
    """A home whose stream and intervals Airflow runs."""

    home: Home
    hours: int
    """Complete hours with records before the current one, numbered from 0."""
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    produced: int = 0
    _api: tuple[int, AirflowApi] | None = None

    def __post_init__(self) -> None:
        # The hour after them is complete, too: only the schedule asks for it.
        self._first = last_hours(self.hours + 1)

    def hour_at(self, number: int) -> datetime:
        """The start of an hour."""
        return self._first + timedelta(hours=number)

    @property
    def api(self) -> AirflowApi:
        """A client that is logged in once for each start of Airflow."""
        started = self.home.process_id("airflow")
        if self._api is None or self._api[0] != started:
            self._api = started, api_of(self.home)
        return self._api[1]

    def up(self) -> None:
        self.home.run("up", "airflow", TIDEMARK_ARCHIVE_WAIT="10m")

    def begin(self, *dags: str) -> None:
        """Produce the records, start Airflow, and have it run these DAGs."""
        # Before any interval is pinned: the schedule asks for the last hour, and what came later would be late.
        for hour in range(self.hours):
            self.produce(hour)
        self.up()
        wait_for("the DAGs", lambda: set(dags) <= self.api.dag_ids(), 180)
        for dag in dags:
            self.api.set_paused(dag, False)

    def produce(self, hour: int | None = None) -> None:
        """Produce records of that hour, else of the last minute."""
        bounds = ("--span", "1m") if hour is None else ("--span", "59m", "--start", iso(self.hour_at(hour)))
        many = ("--events", str(EVENTS), "--bad-fraction", "0.05", "--seed", str(self.produced))
        self.home.run("produce", "nest_cameras", *many, *bounds)
        self.produced += EVENTS

    def run_interval(self, hour: int, **wishes: Any) -> str:
        bounds = {"from": iso(self.hour_at(hour)), "to": iso(self.hour_at(hour + 1))}
        return self.api.trigger(INTERVAL, **bounds, **wishes)

    def kill(self, part: str) -> None:
        """Kill one part with SIGKILL. Its parent notices, ends the others, and is started again, as by an operator."""
        served = psutil.Process(self.home.process_id("airflow"))
        # Some name themselves anew, as `airflow api_server -- …`.
        named = {" ".join(child.cmdline()).replace("_", "-"): child for child in served.children()}
        [process] = [child for line, child in named.items() if f"airflow {part} " in f"{line} "]
        process.kill()
        served.wait(120)
        self.up()

    def ended(self, run: str) -> str:
        """The state in which a run has ended."""
        state: str = wait_for(run, lambda: self.states([run]).get(run), PATIENCE, every=1)
        return state

    def succeeds(self, run: str) -> int:
        """Wait until a run has succeeded; return how often it was cleared until then.

        Each kill may cost a task one of its tries. A run whose tries are used up is cleared, as by a person on call.
        """
        for cleared in range(3):
            if self.ended(run) == "success":
                return cleared
            self.api.clear(INTERVAL, run, TASKS[0])
            wait_for("the run to begin again", lambda: run in self._under_way(), 60)
        raise AssertionError(f"{run} has failed, although it was cleared: {self.api.tasks(INTERVAL, run)}")

    def states(self, runs: list[str]) -> dict[str, str]:
        """The states of those runs that have ended."""
        found = {each["dag_run_id"]: each["state"] for each in self._every_run()}
        return {run: found[run] for run in runs if found.get(run) in ENDED}

    def _under_way(self) -> set[str]:
        return {each["dag_run_id"] for each in self._every_run() if each["state"] not in ENDED}

    def _every_run(self) -> list[dict[str, Any]]:
        """All runs; none while a busy machine lets the API server's answer wait too long."""
        try:
            return self.api.runs(INTERVAL)
        except ServiceUnreachable:
            return []

    def settle(self) -> None:
        """Wait until no run of an interval is queued or running."""

        def have_ended() -> bool:
            every = self._every_run()
            return bool(every) and all(each["state"] in ENDED for each in every)

        wait_for("all runs to end", have_ended, PATIENCE, every=1)

    def findings(self) -> list[dict[str, str]]:
        """What the doctor objects to."""
        answer = self.home.run("doctor", "--json", "--deep", expect=None)
        return [each for each in json.loads(answer.stdout)["findings"] if not each["ok"]]


def check_agreement(scheduled: Scheduled) -> None:
    """Catalog, ledger and files agree; a killed build may have left files that nobody knows, and nothing else."""
    home = scheduled.home
    in_force = in_ledger(home.database, "registered")
    assert in_catalog(home.database) == in_force
    assert in_ledger(home.database, "registering") == set()
    registered = "SELECT location, rows FROM revisions WHERE state = 'registered' AND table_name = 'nest_cameras'"
    for location, rows in home.ledger(registered):
        found = audit.identities(audit.read_parquet([location]))
        assert found.total() == rows, f"{location}: the ledger says {rows} rows"
        assert set(found.values()) <= {1}, f"{location}: {[row for row, n in found.items() if n > 1][:5]} doubled"
    assert [each for each in scheduled.findings() if each["kind"] != LEFT_BEHIND] == []
    scheduled.home.run("doctor", "--repair")
    assert scheduled.findings() == []


def check_hours(scheduled: Scheduled, hours: range) -> None:
    """What is registered of each hour holds the rows of its ranges, each once."""
    home, every = scheduled.home, audit.read_topic(scheduled.home.kafka, "nest-logs")
    for hour in hours:
        label = scheduled.hour_at(hour).strftime("%Y-%m-%dT%H")
        ranges = home.json("ranges", "nest_cameras", "--from", iso(scheduled.hour_at(hour)), "--json")
        records = audit.in_ranges(every, ranges)
        assert len(records) == EVENTS, f"{label}: {len(records)} records in its ranges"
        locations = [at for table, _, at in in_catalog(home.database, label) if table == "nest_cameras"]
        assert locations, f"{label}: nothing is registered"
        table = audit.read_parquet(locations)
        assert audit.identities(table) == Counter(audit.expected(records).rows.keys()), label
