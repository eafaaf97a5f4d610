"""The JVM that stays: who uses it, who does not, and that nothing which ends badly in it is felt by the next."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from include.spark.kept import as_note, can_run
from include.spark.kept.start import kept_jars
from spark_jobs.kept.keeper import MOST_SERVED
from tests.conftest import Home, end_of, iso, last_hours, lives, settings_of, wait_for
from tests.support.looked_at import those

pytestmark = [pytest.mark.services, pytest.mark.own_services, pytest.mark.own_drivers]

OTHER = {"TIDEMARK_DRIVER_MEMORY": "900m"}
"""Settings with which the JVM is not to be used."""


@pytest.fixture(scope="module")
def kept(home: Home) -> Iterator[Home]:
    home.run("up", "spark")
    yield home
    home.run("down", "spark")


def gateway_file(home: Home) -> Path:
    return home.path / "services" / "spark.gateway"


def gateway(home: Home) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(gateway_file(home).read_text())
    return told


def keeper(home: Home) -> psutil.Process:
    return psutil.Process(json.loads((home.path / "services" / "spark.json").read_text())["pid"])


def jvm(home: Home) -> psutil.Process:
    return next(iter(those(keeper(home).children(), lambda each: each.name() == "java")))


def answer(home: Home, **settings: str) -> object:
    return home.json("sql", "SELECT 6 * 7 AS answer", "--json", **settings)


def has_executor(home: Home) -> bool:
    """Whether the JVM has threads for tasks of Spark: they end with the context, or a minute after the last task."""
    names = (each.read_text() for each in Path(f"/proc/{jvm(home).pid}/task").glob("*/comm"))
    return any(name.startswith("Executor task l") for name in names)


def answer_to_an_object(port: int) -> bytes:
    """What a port of Spark's answers to a request for a driver's endpoint that is an object of an unknown class.

    The frame is that of Spark's RPC; one that deserializes it answers `ClassNotFoundException`.
    """

    def text(of: str) -> bytes:
        return struct.pack(">H", len(of)) + of.encode()

    host = b"\1" + text("127.0.0.1")
    to = host + struct.pack(">i", 1) + host + struct.pack(">i", port) + text("HeartbeatReceiver")
    body = to + b"\xac\xed\0\5\x73\x72" + text("no.such.Class") + bytes(7) + b"\1\2\0\0\x78\x70"
    message = b"\3" + struct.pack(">qi", 7, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(struct.pack(">q", 8 + len(message)) + message)
        received = connection.makefile("rb")
        length: int = struct.unpack(">q", received.read(8))[0]
        return received.read(length - 8)


# By default, Airflow's intervals are built in it.
@pytest.mark.slow
def test_interval_is_built_and_its_table_read_in_the_jvm_that_stays(kept: Home) -> None:
    start = last_hours(2)
    kept.run("produce", "nest_cameras", "--events", "500", "--start", iso(start), "--span", "1h")
    kept.run("stream", "nest_cameras", "--until-caught-up")
    before = gateway(kept)
    first = kept.interval("nest_cameras", start)
    assert first["records"]["in_ranges"] == 500
    [counted] = kept.json("sql", "SELECT count(*) AS n FROM lake.nest_cameras", "--json")
    assert counted["n"] == sum(each["rows"] for each in first["registered"] if each["table"].endswith("nest_cameras"))
    # Once more, beside what the first one has left in the JVM.
    assert kept.interval("nest_cameras", start)["registered"] == first["registered"]
    assert gateway(kept) == {**before, "served": before["served"] + 3, "by": gateway(kept)["by"]}


def test_application_has_a_jvm_of_its_own_when_another_one_uses_that(kept: Home) -> None:
    before = gateway(kept)
    with gateway_file(kept).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.pwrite(file.fileno(), as_note({**before, "by": os.getpid()}).encode(), 0)
        own = kept.run("sql", "SELECT nothing", expect=64)
        os.pwrite(file.fileno(), as_note(before).encode(), 0)
    assert gateway(kept)["served"] == before["served"]
    # The error of a statement is told as by that JVM.
    assert kept.run("sql", "SELECT nothing", expect=64).stderr == own.stderr
    assert answer(kept) == [{"answer": 42}]
    assert gateway(kept)["served"] == before["served"] + 2
    shown = kept.services["spark"]
    assert (shown["healthy"], shown["address"]) == (True, f"127.0.0.1:{before['port']}")
    assert shown["detail"] == f"applications served: {before['served'] + 2}"


def test_status_says_that_the_jvm_is_not_used_when_the_settings_are_others(kept: Home) -> None:
    assert "started with other settings" in kept.json("status", "--json", **OTHER)["services"]["spark"]["detail"]
    conf = {"spark.jars": ",".join(kept_jars())}
    with settings_of(kept):
        assert can_run("publish", conf)
    with settings_of(kept, **OTHER):
        assert not can_run("publish", conf)


def test_tasks_of_a_killed_driver_end_with_its_jvm_and_the_next_one_has_another(kept: Home) -> None:
    before, java = gateway(kept), jvm(kept)
    endless = kept.start("sql", "SELECT count(*) FROM range(1e12) WHERE sqrt(id) < 0")
    wait_for("the driver to have the JVM", lambda: gateway(kept)["by"])
    wait_for("its tasks to run", lambda: has_executor(kept))
    ports = {each.laddr.port for each in java.net_connections("tcp") if each.status == psutil.CONN_LISTEN}
    # The driver's and that of its blocks, which are those of any other local driver.
    answers = [answer_to_an_object(port) for port in ports - {before["port"]}]
    assert len(answers) == 2
    assert all(b"Expected SaslMessage" in each for each in answers), answers
    end_of(endless)
    # Whoever comes before the keeper has looked has a JVM of its own.
    assert answer(kept) == [{"answer": 42}]
    wait_for("its tasks to end", lambda: not lives(java), 60)
    wait_for("another JVM", lambda: gateway_file(kept).exists() and gateway(kept)["port"] != before["port"])
    assert answer(kept) == [{"answer": 42}]
    assert gateway(kept)["served"] == 1


@pytest.mark.slow
def test_jvm_is_started_again_when_it_was_killed(kept: Home) -> None:
    before = gateway(kept)
    jvm(kept).kill()
    wait_for("another JVM", lambda: gateway_file(kept).exists() and gateway(kept)["port"] != before["port"])
    assert answer(kept) == [{"answer": 42}]
    assert gateway(kept)["served"] == 1


@pytest.mark.slow
def test_jvm_is_replaced_when_it_has_served_its_time(kept: Home) -> None:
    before = gateway(kept)
    with gateway_file(kept).open("r+") as file:
        os.pwrite(file.fileno(), as_note({**before, "served": MOST_SERVED - 1}).encode(), 0)
    assert answer(kept) == [{"answer": 42}]
    wait_for("another JVM", lambda: gateway_file(kept).exists() and gateway(kept)["port"] != before["port"])
    assert answer(kept) == [{"answer": 42}]
    assert gateway(kept)["served"] == 1


def test_catalog_is_read_when_postgresql_was_started_again_meanwhile(kept: Home) -> None:
    databases = kept.json("sql", "SHOW DATABASES", "--json")
    assert databases == [{"namespace": "default"}]
    kept.run("down", "postgres")
    kept.run("up", "postgres")
    assert kept.json("sql", "SHOW DATABASES", "--json") == databases


def test_doctor_says_that_it_is_down_and_repairs_it_when_its_keeper_was_killed(kept: Home) -> None:
    java = jvm(kept)
    keeper(kept).kill()
    wait_for("its JVM to end, too", lambda: not lives(java))
    assert answer(kept) == [{"answer": 42}]
    found = kept.json("doctor", "--json", expect=1)["findings"]
    assert [each["remedy"] for each in found if not each["ok"]] == ["./tidemark up spark"]
    kept.run("doctor", "--repair")
    assert answer(kept) == [{"answer": 42}]
    assert gateway(kept)["served"] == 1


def test_it_is_refused_where_applications_run_elsewhere(kept: Home) -> None:
    kept.run("down", "spark")
    refused = kept.run("up", "spark", expect=64, TIDEMARK_SPARK_MASTER="spark://127.0.0.1:7077")
    assert "TIDEMARK_SPARK_MASTER=local[*]" in refused.stderr
