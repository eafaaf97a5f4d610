"""Airflow on several hosts that share the lake alone: who runs which task, and what happens when one vanishes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.conftest import Home, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_runs import trigger_hour, unpause_without_schedule, wait_for_success
from tests.support.edge_workers import Site, central_airflow
from tests.support.hosts import Host
from tests.support.looked_at import those

pytestmark = [
    pytest.mark.services,
    pytest.mark.airflow,
    pytest.mark.own_drivers,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
]

STREAM, INTERVAL = "stream__nest_cameras", "interval__nest_cameras"
START = last_hours(4)
HOURS = [START + timedelta(hours=hour) for hour in range(3)]
EVENTS = 3000
PATIENCE = 900
"""Seconds: beside this, the machine may do more."""

BACK_WITHIN = 60.0
"""Seconds from the end of a host to the stream's new driver on another one: the issue's promise."""

QUEUES = {"pin_ranges": "left", "publish": "right"}
"""One host serves `left`, one `right`, both `default`: no host can run an interval alone."""


@dataclass
class Hosts:
    """The hosts by their names, and where Airflow's central parts are."""

    site: Site
    home: Home
    by_name: dict[str, Host] = field(default_factory=dict)

    def boot(self, name: str) -> Host:
        """Start a host with an empty disk."""
        self.by_name[name] = Host(name, self.home.path.parent / f"{self.home.path.name}-{name}", self.home.lake)
        return self.by_name[name]

    def of(self, worker: str) -> Host:
        """The host of a worker, which is named after it: `worker-a.2` is the second one on `worker-a`."""
        return self.by_name[worker.partition(".")[0]]


def committed(home: Home) -> dict[str, int]:
    """How many offsets each query of the stream has committed."""
    rows = home.ledger("SELECT query, sum(next_offset) FROM positions WHERE pipeline = 'nest_cameras' GROUP BY query")
    return {query: int(offsets) for query, offsets in rows}


def wait_until_committed(home: Home, offsets: int) -> None:
    queries = {"archive", "hourly_counts"}
    wait_for(
        f"{offsets} offsets to be committed",
        lambda: {query for query, at in committed(home).items() if at == offsets} == queries,
        PATIENCE,
    )


def launches(home: Home) -> list[tuple[Any, ...]]:
    return home.ledger("SELECT id, split_part(host, '/', 1), exit_code FROM stream_launches ORDER BY number")


def writer(home: Home) -> tuple[str, int]:
    """The host of the stream's live driver, and its fencing token; empty where nobody has the lease."""
    rows = home.ledger(
        "SELECT split_part(holder, ':', 1), token FROM writers WHERE holder <> '' AND expires_at > now()"
    )
    return rows[0] if rows else ("", 0)


def produce(home: Home, minutes: int, span: str = "90s") -> None:
    """Records whose time is so many minutes after the first ones': what comes later is later, so that none is late."""
    home.produce("nest_cameras", EVENTS, START + timedelta(minutes=minutes), span, bad=0.02, seed=minutes)


def check_committed(home: Home, offsets: int) -> None:
    """Hold landing, ledger and the view's compacted topic against what is in Kafka: each record once, none missing."""
    assert audit.check_archive(home.kafka, home.database, home.lake) == offsets
    counts = audit.sightings(audit.read_topic(home.kafka, "nest-logs"), audit.zip_codes())
    assert audit.by_zip_and_hour(audit.last_values(home.kafka, "nest-camera-stats")) == counts


def ran_on(api: AirflowApi, run: str) -> dict[str, str]:
    """The worker that ran each task of an interval's run last."""
    path = f"/api/v2/dags/{INTERVAL}/dagRuns/{run}/taskInstances"
    return {each["task_id"]: each["hostname"] for each in api._call("GET", path)["task_instances"]}


def tries_of(api: AirflowApi, run: str, task: str) -> list[tuple[str, str]]:
    """Worker and state of each try of a task, oldest first."""
    path = f"/api/v2/dags/{INTERVAL}/dagRuns/{run}/taskInstances/{task}/tries"
    tries = api._call("GET", path)["task_instances"]
    return [(each["hostname"], each["state"]) for each in sorted(tries, key=lambda each: each["try_number"])]


def check_registered(home: Home, hour: datetime) -> int:
    """Hold the rows at the registered locations of an hour against Kafka; how many there are."""
    label = f"interval={hour:%Y-%m-%dT%H}"
    locations = home.ledger(
        "SELECT location FROM revisions WHERE state = 'registered' AND table_name = 'nest_cameras' "
        "AND strpos(table_partition, %s) > 0",
        label,
    )
    ranges = home.json("ranges", "nest_cameras", "--from", iso(hour), "--json")
    expected = audit.expected(audit.in_ranges(audit.read_topic(home.kafka, "nest-logs"), ranges))
    table = audit.read_parquet(location for (location,) in locations)
    assert audit.identities(table) == dict.fromkeys(expected.rows, 1)
    return len(expected.rows)


@pytest.fixture(scope="module")
def hosts(home: Home) -> Iterator[Hosts]:
    with central_airflow(home, QUEUES) as site:
        made = Hosts(site, home)
        wait_for("the DAGs", lambda: {STREAM, INTERVAL} <= site.api.dag_ids(), 180)
        assert site.api.import_errors() == []
        yield made
        for host in made.by_name.values():
            host.vanish()


@pytest.fixture(scope="module")
def api(hosts: Hosts) -> AirflowApi:
    return hosts.site.api


@dataclass(frozen=True)
class Adopted:
    launch: str
    token: int
    log: str


@pytest.fixture(scope="module")
def adopted(home: Home, hosts: Hosts, api: AirflowApi) -> Adopted:
    """The stream's driver on `worker-a`, whose worker and task were killed before the task could wait for it.

    Nobody on that host runs tasks then. `worker-b` was started after that.
    """
    produce(home, 0, "3h")
    first = hosts.boot("worker-a")
    hosts.site.start_worker(first, "worker-a.1", "default,left", TIDEMARK_PAUSE_AT="driver_launched")
    api.set_paused(STREAM, False)
    wait_for("the driver to have its lease", lambda: writer(home)[0] == "worker-a", PATIENCE)
    first.kill_all_but_drivers()
    token = writer(home)[1]
    second = hosts.boot("worker-b")
    for path in (first.folder, home.path / "services"):
        assert path.exists()
        assert not second.sees(path)
    assert second.sees(home.lake)
    hosts.site.start_worker(second, "worker-b.1", "default,right")
    run = wait_for("the next try", lambda: api.watched_run(STREAM), PATIENCE)

    def told() -> str | None:
        log = api.log(STREAM, run, "stream", 2)
        return log if "adopting" in log else None

    # A worker pushes a log when its task is over.
    return Adopted(launches(home)[0][0], token, wait_for("the log of it", told, 60))


@pytest.fixture(scope="module")
def both(home: Home, hosts: Hosts, adopted: Adopted) -> Hosts:
    """Workers on both hosts again, and a stream that has committed all."""
    hosts.site.start_worker(hosts.by_name["worker-a"], "worker-a.2", "default,left")
    wait_until_committed(home, EVENTS)
    return hosts


@pytest.fixture(scope="module")
def interval(api: AirflowApi, both: Hosts) -> str:
    """The run of the first hour, which has succeeded."""
    unpause_without_schedule(api, INTERVAL)
    run = trigger_hour(api, INTERVAL, HOURS[0])
    wait_for_success(api, INTERVAL, run, PATIENCE)
    return run


@dataclass(frozen=True)
class Vanished:
    seconds: float
    """From the end of `worker-a` until a driver on `worker-b` had the lease."""
    offsets: int
    """That were in the topic at last."""


@pytest.fixture(scope="module")
def vanished(home: Home, both: Hosts, interval: str, api: AirflowApi, adopted: Adopted) -> Vanished:
    """`worker-a` is gone with the stream's driver, in the midst of its work."""
    wait_for("the trigger to watch the driver", lambda: api.watched_run(STREAM), PATIENCE)
    at = sum(committed(home).values())
    produce(home, 185)
    wait_for("a micro-batch of it", lambda: sum(committed(home).values()) > at, PATIENCE)
    produce(home, 190)
    both.by_name["worker-a"].vanish()
    began = time.monotonic()
    wait_for("the stream on worker-b", lambda: writer(home)[0] == "worker-b", PATIENCE)
    seconds = time.monotonic() - began
    produce(home, 195)
    wait_until_committed(home, 4 * EVENTS)
    print(f"the stream was back on another host after {seconds:.1f} s")
    return Vanished(seconds, 4 * EVENTS)


def test_driver_that_lives_on_is_adopted_by_another_host_when_worker_and_task_were_killed(
    home: Home, adopted: Adopted, both: Hosts
) -> None:
    assert "adopting the driver that runs already: worker-a:" in adopted.log
    assert [launch for launch, *_ in launches(home)] == [adopted.launch]
    assert writer(home) == ("worker-a", adopted.token)


def test_tasks_of_one_interval_run_on_both_hosts_and_it_is_registered_once(
    home: Home, api: AirflowApi, interval: str
) -> None:
    workers = ran_on(api, interval)
    assert (workers["pin_ranges"], workers["publish"]) == ("worker-a.2", "worker-b.1")
    assert check_registered(home, HOURS[0]) > 0


def test_task_logs_of_all_hosts_are_read_at_one_place_when_their_disks_cannot_be(
    api: AirflowApi, interval: str
) -> None:
    for task, line in {"pin_ranges": "pinned", "build_interval": "built", "publish": "registered"}.items():
        assert wait_for(f"the log of {task}", lambda t=task, said=line: said in api.log(INTERVAL, interval, t), 60)


def test_stream_comes_back_on_the_other_host_within_a_minute_when_its_own_vanishes(
    home: Home, adopted: Adopted, vanished: Vanished
) -> None:
    (first, first_host, code), (_, second_host, _) = launches(home)
    assert (first, first_host, second_host, code) == (adopted.launch, "worker-a", "worker-b", None)
    assert writer(home)[1] > adopted.token
    assert vanished.seconds < BACK_WITHIN


def test_each_record_is_committed_once_when_the_host_of_the_stream_vanishes(home: Home, vanished: Vanished) -> None:
    check_committed(home, vanished.offsets)


def test_driver_of_another_host_ends_after_its_micro_batch_when_its_run_is_marked_failed(
    home: Home, api: AirflowApi, vanished: Vanished
) -> None:
    run = wait_for("the trigger to watch the driver", lambda: api.watched_run(STREAM), PATIENCE)
    api.set_paused(STREAM, True)
    api.fail_run(STREAM, run)
    assert wait_for("its end", lambda: launches(home)[-1][2] is not None, PATIENCE)
    assert launches(home)[-1][1:] == ("worker-b", 0)
    check_committed(home, vanished.offsets)


def test_interval_is_registered_once_by_another_host_when_that_of_its_build_vanishes(
    home: Home, both: Hosts, api: AirflowApi, vanished: Vanished
) -> None:
    both.boot("worker-c")
    both.site.start_worker(both.by_name["worker-c"], "worker-c.1", "default,left")
    run = trigger_hour(api, INTERVAL, HOURS[1])

    def builds() -> str | None:
        if api.tasks(INTERVAL, run).get("build_interval") != "running":
            return None
        worker = ran_on(api, run)["build_interval"]
        processes = both.of(worker).processes() if worker else []
        return worker if those(processes, lambda each: each.name() == "java") else None

    worker = wait_for("Spark on the host of the build", builds, PATIENCE)
    both.of(worker).vanish()
    wait_for("the next try", lambda: len(tries_of(api, run, "build_interval")) > 1, PATIENCE)
    if worker == "worker-b.1":
        # What publishes is asked of that host alone.
        both.site.start_worker(both.boot("worker-d"), "worker-d.1", "default,right")
    wait_for_success(api, INTERVAL, run, PATIENCE)
    (first, *_, last) = tries_of(api, run, "build_interval")
    assert first == (worker, "failed")
    assert last[0] != worker
    assert last[1] == "success"
    assert check_registered(home, HOURS[1]) > 0
