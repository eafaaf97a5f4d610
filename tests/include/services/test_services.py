"""The embedded services through the command: started once, found dead, back with their data, on loopback only."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg2
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from sqlalchemy.engine import make_url

from include.doctor import examine
from include.services.process import ServiceStatus, write_state
from include.services.supervisor import SERVICES, service_names
from include.spark import class_archive
from include.spark.submission import SPARK_POOL
from tests.conftest import JVM_OPTIONS, Home, SetSettings, end_of, iso, last_hours, wait_for
from tests.support.checkout import copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.own_drivers]


@pytest.fixture
def other_home(tmp_path: Path) -> Iterator[Home]:
    """A second home folder beside the module's, nothing started."""
    made = Home(tmp_path / "other")
    yield made
    made.run("down", expect=None)


def state_of(home: Home, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home.path / "services" / f"{name}.json").read_text())
    return found


def family_of(home: Home, name: str) -> list[psutil.Process]:
    process = psutil.Process(state_of(home, name)["pid"])
    return [process, *process.children(recursive=True)]


def listening_addresses(processes: list[psutil.Process]) -> set[str]:
    found = set()
    for process in processes:
        # PostgreSQL's processes of a connection end with it.
        with suppress(psutil.NoSuchProcess):
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    found.add(connection.laddr.ip.removeprefix("::ffff:"))
    return found


def test_embedded_services_are_meant_when_all_is_asked_for() -> None:
    assert service_names(["all"]) == ["kafka", "postgres", "registry", "airflow"]
    assert service_names(None) == ["kafka", "postgres"]
    assert service_names(["yarn", "kafka"]) == ["kafka", "yarn"]
    assert service_names(["all"], everything=tuple(SERVICES)) == list(SERVICES)


def kill(home: Home, name: str) -> list[psutil.Process]:
    """Kill the service's first process with SIGKILL; return its process family."""
    family = family_of(home, name)
    os.kill(family[0].pid, signal.SIGKILL)
    psutil.wait_procs(family[:1], timeout=10)
    return family


def query(home: Home, sql: str) -> list[tuple[Any, ...]]:
    connection = psycopg2.connect(home.database)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def api_client(home: Home, address: str) -> httpx.Client:
    """A client that has logged in to Airflow's API."""
    ((user, password),) = json.loads((home.path / "airflow" / "passwords.json").read_text()).items()
    client = httpx.Client(base_url=address, timeout=60)
    token = client.post("/auth/token", json={"username": user, "password": password}).json()["access_token"]
    client.headers["Authorization"] = f"Bearer {token}"
    return client


def silent_limit(home: Home) -> str:
    """How long a session of Airflow's may say nothing in a transaction."""
    return str(home.rows("airflow", "SHOW idle_in_transaction_session_timeout")[0][0])


def test_nothing_is_started_again_when_up_is_repeated(home: Home) -> None:
    before = {name: each["pid"] for name, each in home.services.items()}
    home.run("up")
    after = {name: each["pid"] for name, each in home.services.items()}
    assert after == before
    assert before["kafka"]
    assert before["postgres"]


def test_service_that_is_only_slow_is_waited_for_and_not_restarted(home: Home) -> None:
    broker = psutil.Process(state_of(home, "kafka")["pid"])
    broker.suspend()
    try:
        waiting = home.start("up", "kafka")
        assert waiting.stderr is not None
        assert "is running but does not answer: waiting for it" in waiting.stderr.readline()
    finally:
        broker.resume()
    assert waiting.wait(120) == 0
    assert state_of(home, "kafka")["pid"] == broker.pid
    assert broker.is_running()


def test_broker_is_found_dead_and_returns_with_its_records_when_killed(home: Home) -> None:
    admin = AdminClient({"bootstrap.servers": home.kafka})
    admin.create_topics([NewTopic("kept", num_partitions=1)])["kept"].result(timeout=10)
    producer = home.producer()
    # A timestamp of the past: retention must not take it.
    producer.produce("kept", value=b"still here", timestamp=1_000_000_000_000)
    assert producer.flush(10) == 0

    kill(home, "kafka")
    found = home.services["kafka"]
    assert (found["healthy"], found["pid"]) == (False, None)

    home.run("up", "kafka")
    assert home.services["kafka"]["healthy"]
    consumer = Consumer({"bootstrap.servers": home.kafka, "group.id": "test", "enable.auto.commit": False})
    consumer.assign([TopicPartition("kept", 0, 0)])
    message = consumer.poll(20)
    consumer.close()
    assert message is not None
    assert message.value() == b"still here"


def test_password_is_not_printed_when_the_database_s_address_is(home: Home) -> None:
    password = str(make_url(home.database).password)
    for told in (("status",), ("up",)):
        shown = home.run(*told).stdout
        assert "127.0.0.1" in shown
        assert password not in shown
    # Programs connect with the address of an embedded service; an address from the settings is known to its user.
    assert home.services["postgres"]["address"] == home.database
    external = home.run("status", "--json", TIDEMARK_DATABASE_URL=home.database).stdout
    assert "127.0.0.1" in external
    assert password not in external


def test_session_of_airflow_that_says_nothing_in_a_transaction_is_ended_after_minutes(home: Home) -> None:
    """Else a frozen scheduler would hold for ever the runs that it had locked."""
    assert silent_limit(home) == "10min"


def test_session_of_airflow_gets_its_limit_when_the_database_was_made_without(home: Home) -> None:
    """As by an older version of the code, or by a start that was interrupted."""
    query(home, "ALTER DATABASE airflow RESET idle_in_transaction_session_timeout")
    assert silent_limit(home) == "0"
    home.run("up", "postgres")
    assert silent_limit(home) == "10min"


def test_limit_of_airflows_sessions_stays_when_somebody_has_set_another(home: Home) -> None:
    query(home, "ALTER DATABASE airflow SET idle_in_transaction_session_timeout = '3min'")
    home.run("up", "postgres")
    assert silent_limit(home) == "3min"
    query(home, "ALTER DATABASE airflow RESET idle_in_transaction_session_timeout")


def test_databases_are_prepared_when_their_user_may_not_set_the_limit(home: Home) -> None:
    """As on a server that somebody else keeps, where the databases are another user's."""
    password = str(make_url(home.database).password)
    query(home, "ALTER DATABASE airflow RESET idle_in_transaction_session_timeout")
    query(home, f"CREATE ROLE guest LOGIN PASSWORD '{password}' IN ROLE pg_read_all_data, pg_write_all_data")
    external = home.database.replace("//tidemark:", "//guest:")
    home.run("setup-database", TIDEMARK_DATABASE_URL=external)
    assert silent_limit(home) == "0"


def test_database_is_found_dead_and_returns_with_its_rows_when_killed(home: Home) -> None:
    query(home, "CREATE TABLE kept AS SELECT 42 AS answer")
    kill(home, "postgres")
    found = home.services["postgres"]
    assert (found["healthy"], found["pid"]) == (False, None)
    assert "bad  postgres — ./tidemark up postgres" in home.run("doctor", expect=1).stdout
    home.run("doctor", "--repair")
    assert query(home, "SELECT answer FROM kept") == [(42,)]


@pytest.mark.slow
def test_stream_finishes_its_micro_batch_before_the_services_that_it_needs_are_stopped(home: Home) -> None:
    home.run("produce", "nest_cameras", "--events", "50", "--start", iso(last_hours(1)), "--span", "5m")
    stream = home.start("stream", "nest_cameras")
    try:
        wait_for("its first commit", lambda: query(home, "SELECT 1 FROM micro_batches"))
        said = home.run("down").stderr
        _, errors = stream.communicate(timeout=30)
        assert stream.returncode == 0, errors
        assert "nest_cameras: stopped, 50 records committed" in errors
    finally:
        end_of(stream)
        home.run("up")
    assert said.index("stopping the stream of nest_cameras") < said.index("stopping postgres")
    assert query(home, "SELECT holder FROM writers") == [("",)]


def test_only_loopback_is_listened_on_when_services_run(home: Home) -> None:
    for name in ("kafka", "postgres"):
        assert listening_addresses(family_of(home, name)) == {"127.0.0.1"}


def test_password_is_required_and_kept_private_when_postgresql_runs(home: Home) -> None:
    url = make_url(home.database)
    with pytest.raises(psycopg2.OperationalError):
        psycopg2.connect(home.database.replace(str(url.password), "guessed"))
    holders = [
        path
        for path in home.path.rglob("*")
        if path.is_file()
        and not path.is_relative_to(home.path / "kafka")
        and not path.is_relative_to(home.path / "postgres")
        and str(url.password).encode() in path.read_bytes()
    ]
    assert home.path / "services" / "postgres.json" in holders
    assert [path for path in holders if stat.S_IMODE(path.stat().st_mode) != 0o600] == []
    for process in psutil.process_iter(["cmdline"]):
        assert str(url.password) not in " ".join(process.info["cmdline"] or [])


def test_only_the_random_password_is_checked_in_one_iteration_when_another_is_set(home: Home) -> None:
    with closing(psycopg2.connect(home.database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE ROLE person PASSWORD 'of a person'")
        cursor.execute(
            "SELECT rolname, split_part(rolpassword, ':', 1) FROM pg_authid WHERE rolname IN ('tidemark', 'person')"
        )
        found = dict(cursor.fetchall())
        connection.rollback()
    assert found == {"tidemark": "SCRAM-SHA-256$1", "person": "SCRAM-SHA-256$4096"}


def test_state_files_are_private_when_they_are_written(home: Home) -> None:
    files = [*(home.path / "services").glob("*.json"), home.path / "services" / "kafka.properties"]
    assert len(files) >= 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_another_port_is_taken_when_the_last_one_is_in_use(home: Home) -> None:
    home.run("down", "kafka")
    assert "kafka: stopped by ./tidemark down" in home.run("doctor").stdout
    before = state_of(home, "kafka")["port"]
    with socket.socket() as intruder:
        intruder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        intruder.bind(("127.0.0.1", before))
        intruder.listen()
        home.run("up", "kafka")
        assert state_of(home, "kafka")["port"] != before
        assert home.services["kafka"]["healthy"]


@pytest.mark.slow
def test_second_home_starts_beside_the_first_when_its_first_start_was_interrupted(home: Home, other_home: Home) -> None:
    unfinished = other_home.path / "postgres.new"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    other_home.run("up", "postgres")
    assert other_home.services["postgres"]["healthy"]
    assert not unfinished.exists()
    assert state_of(other_home, "postgres")["port"] != state_of(home, "postgres")["port"]
    names = {name for (name,) in query(other_home, "SELECT datname FROM pg_database")}
    assert {"ledger", "catalog", "airflow"} <= names

    # The state is lost while the server runs: it is not started a second time on the same data.
    state = other_home.path / "services" / "postgres.json"
    recorded = state.read_text()
    state.write_text(json.dumps({**json.loads(recorded), "pid": None}))
    refused = other_home.run("up", "postgres", expect=6)
    assert f"end process {json.loads(recorded)['pid']}" in refused.stderr
    state.write_text(recorded)
    assert other_home.services["postgres"]["healthy"]


def test_foreign_process_is_left_alone_when_it_got_the_recorded_pid(other_home: Home) -> None:
    foreign = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = psutil.Process(foreign.pid).create_time() - 3600
        folder = other_home.path / "services"
        folder.mkdir(parents=True)
        state = {"address": "127.0.0.1:9", "pid": foreign.pid, "started": started}
        (folder / "kafka.json").write_text(json.dumps(state))
        assert other_home.services["kafka"]["pid"] is None
        other_home.run("down")
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_configured_broker_is_external_and_exit_code_6_when_it_does_not_answer(other_home: Home) -> None:
    settings = {"TIDEMARK_KAFKA_BOOTSTRAP": "127.0.0.1:9"}
    found = other_home.json("status", "--json", **settings)["services"]["kafka"]
    assert (found["address"], found["healthy"], found["external"]) == ("127.0.0.1:9", False, True)
    refused = other_home.run("up", "kafka", expect=6, **settings)
    assert "kafka" in refused.stderr
    assert not (other_home.path / "services" / "kafka.json").exists()


@pytest.mark.slow
@pytest.mark.airflow
def test_airflow_is_on_loopback_asks_for_a_password_and_leaves_nothing_when_killed(home: Home) -> None:
    home.run("up", "airflow")
    found = home.services["airflow"]
    assert found["healthy"]
    family = family_of(home, "airflow")
    assert len(family) > 4
    assert listening_addresses(family) == {"127.0.0.1"}
    assert httpx.get(f"{found['address']}/api/v2/dags", timeout=10).status_code == httpx.codes.UNAUTHORIZED
    for path in (home.path / "airflow").iterdir():
        assert path.is_dir() or stat.S_IMODE(path.stat().st_mode) == 0o600, path

    # As left by a start that was interrupted before it had made the pool: no interval would ever be built.
    with api_client(home, found["address"]) as client:
        pool = f"/api/v2/pools/{SPARK_POOL}"
        assert client.delete(pool).is_success
        home.run("up", "airflow")
        assert client.get(pool).json()["slots"] >= 1
    assert home.services["airflow"]["pid"] == found["pid"]

    kill(home, "airflow")
    assert home.services["airflow"]["pid"] is None
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []


def test_driver_maps_its_classes_when_the_set_up_has_archived_them(home: Home, tmp_path: Path) -> None:
    log = tmp_path / "classes.log"
    options = f"{JVM_OPTIONS} -Xlog:class+load:file={log}"
    home.run("sql", "SELECT 1 AS one", TIDEMARK_JVM_OPTIONS=options)
    loaded = log.read_text().splitlines()
    # Those of Java itself are in an archive of its own, at the bottom.
    mapped = [line for line in loaded if "source: shared objects file (top)" in line]
    assert len(mapped) > 8_000
    assert len(mapped) > len(loaded) / 2


@pytest.mark.slow
def test_driver_starts_without_a_word_of_it_when_the_archive_is_damaged(home: Home, tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "checkout", home)
    state = checkout.path / ".tidemark"
    jars = state.resolve() / "jars"
    state.unlink()
    state.mkdir()
    (state / "jars").symlink_to(jars)
    (state / "classes").mkdir()
    archive = class_archive.find()
    assert archive is not None
    (state / "classes" / archive.name).write_bytes(archive.read_bytes()[:100_000_000])
    done = checkout.run("sql", "SELECT 1 AS one", "--json")
    assert json.loads(done.stdout) == [{"one": 1}]
    assert "shared" not in done.stderr + done.stdout
    assert "cds" not in done.stderr + done.stdout


def test_database_counts_as_down_and_not_as_stopped_when_its_first_start_was_interrupted(
    set_settings: SetSettings, tmp_path: Path
) -> None:
    set_settings(TIDEMARK_HOME=str(tmp_path))
    address = "postgresql://tidemark:x@127.0.0.1:1/ledger"
    found = []
    for stopped in ({}, {"pid": None}):
        write_state("postgres", address=address, port=1, data=str(tmp_path), **stopped)
        found += examine._services({"postgres": ServiceStatus(address, False, None)})
    assert [(each.ok, each.what, each.remedy) for each in found] == [
        (False, "postgres", "./tidemark up postgres"),
        (True, "postgres: stopped by ./tidemark down", ""),
    ]
