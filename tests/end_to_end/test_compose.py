"""What `docker compose up` would run, run: each service's command, as its user, on its network, in the given order."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import psycopg2
import pytest
from dotenv import dotenv_values

from include.deploy import generate_env
from include.services.process import free_port
from tests.conftest import iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_runs import trigger_hour, wait_for_success
from tests.support.compose_file import parse, parser
from tests.support.containers import Composition

pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.slow, pytest.mark.timeout(3600)]

TOOLS = ("apt-get", "chroot", "dpkg-deb", "ip", "nsenter", "setpriv", "unshare")
ONE_SHOT = {"setup", "airflow-migrate"}
NOT_TO_BE_HAD = {"grafana"}
"""Services whose programs no registry here has."""

COMMAND = ("python", "-m", "include.cli")
START = last_hours(3)
EVENTS = 600
PATIENCE = 1200
"""Seconds: four JVMs for a stream and an interval, on a machine that does more."""


@pytest.fixture(scope="module")
def composition(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composition]:
    if sys.platform != "linux" or os.geteuid() != 0 or not all(shutil.which(tool) for tool in TOOLS):
        said = f"namespaces need root and {', '.join(TOOLS)}"
        assert not os.environ.get("CI"), said
        pytest.skip(said)
    folder = tmp_path_factory.mktemp("compose")
    generate_env.write_environment(folder / ".env")
    secrets = {name: value or "" for name, value in dotenv_values(folder / ".env").items()}
    # As one changes them in the file where others listen on them.
    secrets |= {name: str(free_port()) for name in generate_env.PORTS}
    parsed = parse(parser(), secrets)
    assert parsed.returncode == 0, parsed.stderr
    composition = Composition(json.loads(parsed.stdout), secrets, folder)
    try:
        composition.up(*(composition.model["services"].keys() - NOT_TO_BE_HAD))
        for name in composition.started:
            if name not in ONE_SHOT:
                composition.wait_until_healthy(name)
        yield composition
    finally:
        composition.down()


def page(composition: Composition, port: str, path: str, **options: Any) -> Any:
    """What a published port answers."""
    url = f"http://127.0.0.1:{composition.secrets[port]}{path}"
    return httpx.get(url, timeout=30, **options).raise_for_status().json()


def test_services_start_in_the_file_s_order_and_pass_their_own_checks(composition: Composition) -> None:
    begun = composition.started
    assert set(begun) == composition.model["services"].keys() - NOT_TO_BE_HAD
    for name in begun:
        assert all(begun.index(other) < begun.index(name) for other in composition.needs(name))
    assert {composition.running[name].poll() for name in ONE_SHOT} == {0}
    assert {composition.running[name].poll() for name in set(begun) - ONE_SHOT} == {None}


def test_containers_are_contained(composition: Composition) -> None:
    look = "id -u; hostname; grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ls /run/secrets; cat /proc/1/comm"
    said = composition.run("monitor", ["bash", "-c", look]).stdout.split()
    zeros, first = "0" * 16, ["monitor_token", "first-process"]
    assert said == ["10001", "monitor", "CapEff:", zeros, "CapBnd:", zeros, "NoNewPrivs:", "1", *first]
    # What one writes beside volumes, no other sees.
    assert composition.run("monitor", ["touch", "/opt/tidemark/mark", "/tmp/mark"]).returncode == 0
    assert composition.run("airflow-triggerer", ["ls", "/opt/tidemark/mark", "/tmp/mark"]).returncode == 2
    # Pages with figures of the data listen on loopback alone.
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://{composition.addresses['monitor']}:8090/health", timeout=10)


def test_services_reach_each_other_by_their_names(composition: Composition) -> None:
    status = composition.run("monitor", [*COMMAND, "status", "--json"])
    assert status.returncode == 0, status.stderr
    services = json.loads(status.stdout)["services"]
    assert services["kafka"]["healthy"]
    assert services["kafka"]["address"] == "kafka:9092"
    assert services["postgres"]["healthy"]
    assert services["postgres"]["address"].endswith("@postgres:5432")
    assert services["registry"]["healthy"]
    pools = composition.run("airflow-migrate", ["airflow", "pools", "get", "tidemark_spark", "--output", "json"])
    assert json.loads(pools.stdout[pools.stdout.index("[") :])[0]["slots"] == "2"
    passwords = composition.volume("state") / "airflow" / "passwords.json"
    assert stat.S_IMODE(passwords.stat().st_mode) == 0o600


def test_schemas_are_registered_when_records_in_avro_are_produced(composition: Composition) -> None:
    done = composition.run("airflow-scheduler", [*COMMAND, "produce", "gps_positions", "--events", "50"])
    assert done.returncode == 0, done.stderr
    assert page(composition, "REGISTRY_PORT", "/apis/ccompat/v7/subjects")
    with psycopg2.connect(database(composition)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = 'registry' AND datname = 'registry'")
        assert cursor.fetchone()[0] > 0


def test_metrics_are_scraped_and_rules_evaluated_by_prometheus(composition: Composition) -> None:
    def up() -> list[Any]:
        found = page(composition, "PROMETHEUS_PORT", "/api/v1/query", params={"query": 'up{job="tidemark"} == 1'})
        return list(found["data"]["result"])

    assert len(wait_for("a scrape", up, 120)) == 1
    groups = page(composition, "PROMETHEUS_PORT", "/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} <= {"ok", "unknown"}
    assert sum(len(group["rules"]) for group in groups) > 0


def database(composition: Composition) -> str:
    """The ledger, through the published port."""
    password, port = composition.secrets["TIDEMARK_DB_PASSWORD"], composition.secrets["POSTGRES_PORT"]
    return f"postgresql://tidemark:{password}@127.0.0.1:{port}/ledger"


def ledger(composition: Composition, query: str) -> list[tuple[Any, ...]]:
    with psycopg2.connect(database(composition)) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def committed(composition: Composition) -> int:
    """Offsets that every query of the stream has committed."""
    by_query = "SELECT sum(next_offset) AS total FROM positions WHERE pipeline = 'nest_cameras' GROUP BY query"
    return int(ledger(composition, f"SELECT coalesce(min(total), 0) FROM ({by_query}) queries")[0][0])


def produce(composition: Composition, events: int, seed: int) -> None:
    bounds = ["--start", iso(START), "--span", "1h", "--seed", str(seed), "--bad-fraction", "0.02"]
    made = [*COMMAND, "produce", "nest_cameras", "--events", str(events), *bounds]
    done = composition.run("airflow-triggerer", made)
    assert done.returncode == 0, done.stderr


def kafka(composition: Composition) -> str:
    """The broker, through the published port."""
    return f"127.0.0.1:{composition.secrets['KAFKA_PORT']}"


@pytest.fixture(scope="module")
def airflow(composition: Composition) -> AirflowApi:
    """Airflow, through the published port."""
    address = f"http://127.0.0.1:{composition.secrets['AIRFLOW_PORT']}"
    api = AirflowApi(address, "admin", json.loads(composition.secrets["AIRFLOW_PASSWORDS"])["admin"])
    wanted = {"stream__nest_cameras", "interval__nest_cameras"}
    wait_for("the DAGs", lambda: wanted <= api.dag_ids(), 300)
    assert api.import_errors() == []
    return api


@pytest.fixture(scope="module")
def streaming(composition: Composition, airflow: AirflowApi) -> None:
    """A stream that Airflow started, which has archived what there is."""
    produce(composition, EVENTS, seed=1)
    airflow.set_paused("stream__nest_cameras", False)
    wait_for("the stream", lambda: committed(composition) == EVENTS, PATIENCE)


def check(composition: Composition, records: int) -> None:
    """Each record of the topic has one fate, and each row is landed once."""
    assert audit.check_archive(kafka(composition), database(composition), composition.volume("lake")) == records


def test_stream_has_its_executors_on_both_workers_when_airflow_starts_it(
    composition: Composition, streaming: None
) -> None:
    state = page(composition, "SPARK_MASTER_UI_PORT", "/json/")
    assert [(each["name"], each["cores"]) for each in state["activeapps"]] == [("stream nest_cameras", 2)]
    assert [each["coresused"] for each in state["workers"]] == [1, 1]
    check(composition, EVENTS)


def test_interval_is_registered_from_the_cluster_when_airflow_runs_it(
    composition: Composition, airflow: AirflowApi, streaming: None
) -> None:
    dag = "interval__nest_cameras"
    airflow.set_paused(dag, False)
    wait_for_success(airflow, dag, trigger_hour(airflow, dag, START), PATIENCE)
    found = ledger(
        composition, "SELECT location FROM revisions WHERE state = 'registered' AND table_name = 'nest_cameras'"
    )
    locations = [location.removeprefix("file:///srv/lake/") for (location,) in found]
    bounds = ["--from", iso(START), "--to", iso(START + timedelta(hours=1))]
    ranges = composition.run("monitor", [*COMMAND, "ranges", "nest_cameras", *bounds, "--json"])
    records = audit.in_ranges(audit.read_topic(kafka(composition), "nest-logs"), json.loads(ranges.stdout))
    assert len(records) == EVENTS
    table = audit.read_parquet(str(composition.volume("lake") / location) for location in locations)
    expected = audit.expected(records).rows
    assert audit.identities(table) == Counter(expected.keys())
    # The catalog's own answer, by a Spark application of its own beside the stream's.
    asked = composition.run(
        "airflow-scheduler", [*COMMAND, "sql", "SELECT count(*) AS many FROM lake.nest_cameras", "--json"]
    )
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout) == [{"many": len(expected)}]


def test_stream_comes_back_when_the_scheduler_s_container_was_killed(
    composition: Composition, airflow: AirflowApi, streaming: None
) -> None:
    launched = "SELECT count(*) FROM stream_launches WHERE pipeline = 'nest_cameras'"
    before = ledger(composition, launched)
    composition.kill("airflow-scheduler")
    produce(composition, 200, seed=2)
    # As `restart: unless-stopped` does.
    composition.start("airflow-scheduler")
    wait_for("the next driver's commits", lambda: committed(composition) == EVENTS + 200, PATIENCE)
    assert ledger(composition, launched) > before
    assert not airflow.is_paused("stream__nest_cameras")
    check(composition, EVENTS + 200)


def test_services_end_when_they_are_asked_to(composition: Composition) -> None:
    for name in [name for name in reversed(composition.running) if name not in ONE_SHOT]:
        assert composition.stop(name) not in (-9, 137), composition.log(name)[-2000:]
