"""What one module leaves in the services that it shares is not there for the next one."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import psycopg2
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from include.pipelines import load_pipeline
from tests.conftest import Home, end_of, settings_of, wait_for
from tests.support.shared_services import SharedServices
from tests.support.topic_log import Log

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def services(new_home: Callable[..., Home], prepared: Path) -> Iterator[SharedServices]:
    """Services that are shared by the homes of this module alone."""
    made = SharedServices(new_home, prepared)
    yield made
    made.end()


@pytest.fixture
def lend(services: SharedServices, tmp_path: Path) -> Callable[[str], Home]:
    def to(name: str, *names: str, spoiled: bool = False) -> Home:
        if name != "first":
            services.give_back(spoiled=spoiled)
        made = Home(tmp_path / name)
        services.lend(made.path, *(names or ("kafka", "postgres")))
        return made

    yield to
    services.give_back(spoiled=False)


def ask(home: Home, statement: str, database: str = "ledger") -> list[tuple[Any, ...]]:
    address = home.database.replace("/ledger", f"/{database}")
    with closing(psycopg2.connect(address)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def rows(home: Home, database: str) -> dict[str, int]:
    """How many rows each table of a database has."""
    tables = ask(home, "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables", database)
    return {name: ask(home, f"SELECT count(*) FROM {name}", database)[0][0] for (name,) in tables if "pg_" not in name}


def topics(home: Home) -> set[str]:
    admin = AdminClient({"bootstrap.servers": home.kafka})
    return {name for name in admin.list_topics(timeout=10).topics if not name.startswith("__")}


def create(home: Home, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": home.kafka})
    admin.create_topics([NewTopic("left-over", partitions)])["left-over"].result(30)


def groups(home: Home) -> list[str]:
    admin = AdminClient({"bootstrap.servers": home.kafka})
    return [each.group_id for each in admin.list_consumer_groups().result(10).valid]


def test_databases_are_as_they_were_prepared_when_the_next_module_gets_them(
    lend: Callable[..., Home], new_home: Callable[..., Home]
) -> None:
    first = lend("first")
    with settings_of(first):
        log = Log(load_pipeline("nest_cameras"))
        log.create(1)
        log.send(0, 0.1, 1.1)
        log.archive()
        log.pin(0)
        # Its clients would go on looking for a broker that a later test ends.
        del log
    assert rows(first, "ledger")["public.micro_batches"] > 0
    ask(first, "CREATE TABLE left_over (id int)", "serving")
    ask(first, "CREATE DATABASE left_over")
    ask(first, "CREATE ROLE left_over")
    ask(first, "ALTER DATABASE ledger SET default_transaction_read_only = on")
    held = psycopg2.connect(first.database.replace("/ledger", "/catalog"))
    held.cursor().execute('LOCK TABLE "DBS"')

    second = lend("second")
    alone = new_home()
    alone.run("up", "postgres")
    for database in ("ledger", "catalog", "airflow", "serving"):
        assert rows(second, database) == rows(alone, database)
    for catalog in ("SELECT datname FROM pg_database WHERE NOT datistemplate", "SELECT rolname FROM pg_roles"):
        assert sorted(ask(second, catalog)) == sorted(ask(alone, catalog))
    assert ask(second, "SHOW default_transaction_read_only") == [("off",)]
    alone.end()
    held.close()


def test_only_databases_that_something_was_written_to_are_made_again(lend: Callable[..., Home]) -> None:
    def made(home: Home) -> dict[str, int]:
        return dict(ask(home, "SELECT datname, oid FROM pg_database WHERE NOT datistemplate"))

    first = lend("first", "postgres")
    ask(first, "CREATE ROLE left_over")
    ask(first, "GRANT CONNECT ON DATABASE airflow TO left_over")
    ask(first, "ALTER DATABASE catalog SET default_transaction_read_only = on")
    with closing(psycopg2.connect(first.database)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE left_over (id serial)")
        connection.rollback()
    held = psycopg2.connect(first.database.replace("/ledger", "/serving"))
    held.cursor().execute("SELECT count(*) FROM pg_tables")
    before = made(first)

    after = made(lend("second", "postgres"))
    assert {name for name, oid in after.items() if before[name] == oid} == {"postgres", "serving"}
    held.close()


def test_catalog_is_the_next_modules_own_when_the_same_jvm_reads_it(lend: Callable[..., Home]) -> None:
    first = lend("first")
    before = first.json("sql", "SHOW DATABASES", "--json")
    ask(first, 'INSERT INTO "DBS" ("DB_ID", "NAME", "DB_LOCATION_URI", "OWNER_NAME") '
        "VALUES (4711, 'left_over', 'file:///nowhere', 'nobody')", "catalog")  # fmt: skip
    assert {"namespace": "left_over"} in first.json("sql", "SHOW DATABASES", "--json")

    assert lend("second").json("sql", "SHOW DATABASES", "--json") == before


def test_broker_has_no_topic_and_no_group_when_the_next_module_gets_it(lend: Callable[..., Home]) -> None:
    first = lend("first")
    create(first, 3)
    producer = first.producer(**{"transactional.id": "left-over"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("left-over", b"of the first")
    producer.commit_transaction(30)
    consumer = Consumer({"bootstrap.servers": first.kafka, "group.id": "left-over"})
    consumer.commit(offsets=[TopicPartition("left-over", 0, 1)], asynchronous=False)
    consumer.close()
    assert topics(first) == {"left-over"}
    assert groups(first) == ["left-over"]

    second = lend("second")
    assert topics(second) == set()
    assert groups(second) == []
    # A topic of the same name begins anew, and is written by whoever has the same name.
    create(second, 1)
    again = second.producer(**{"transactional.id": "left-over"})
    again.init_transactions(30)
    again.begin_transaction()
    again.produce("left-over", b"of the second")
    again.commit_transaction(30)
    readers = {"group.id": "left-over", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": second.kafka, **readers})
    consumer.subscribe(["left-over"])
    (found,) = consumer.consume(1, 30)
    consumer.close()
    assert (found.offset(), found.value()) == (0, b"of the second")


def test_topic_begins_at_0_when_the_first_module_left_a_transaction_open(lend: Callable[..., Home]) -> None:
    first = lend("first")
    create(first, 1)
    left = first.producer(**{"transactional.id": "left-over"})
    left.init_transactions(30)
    left.begin_transaction()
    left.produce("left-over", b"of the first")
    left.flush(30)

    second = lend("second")
    create(second, 1)
    again = second.producer(**{"transactional.id": "left-over"})
    again.init_transactions(30)
    consumer = Consumer({"bootstrap.servers": second.kafka, "group.id": "reader"})
    assert consumer.get_watermark_offsets(TopicPartition("left-over", 0), 30) == (0, 0)
    consumer.close()


def test_folder_is_new_and_nothing_runs_in_the_first_one_when_the_next_module_begins(
    lend: Callable[..., Home],
) -> None:
    first = lend("first")
    (first.lake / "landing").mkdir(parents=True)
    left = first.start("monitor")
    try:
        wait_for("the monitor", lambda: psutil.Process(left.pid).net_connections("inet"))
        second = lend("second")
        assert left.wait(30) == -signal.SIGKILL
    finally:
        end_of(left)
    assert {each.name for each in second.path.iterdir()} == {"services", "metastore"}
    assert second.json("status", "--json")["services"]["kafka"]["healthy"]


@pytest.mark.parametrize(("name", "lent"), [("kafka", ("kafka", "postgres")), ("postgres", ("postgres",))])
def test_other_services_are_started_when_a_module_has_ended_one(
    lend: Callable[..., Home], name: str, lent: tuple[str, ...]
) -> None:
    first = lend("first", *lent)
    pid = first.process_id(name)
    psutil.Process(pid).kill()
    second = lend("second", *lent)
    assert second.services[name]["healthy"]
    assert second.services[name]["pid"] != pid


def test_other_services_are_started_when_a_module_has_failed(lend: Callable[..., Home]) -> None:
    before = lend("first", "postgres").process_id("postgres")
    found = lend("second", "postgres", spoiled=True).services["postgres"]
    assert found["healthy"]
    assert found["pid"] != before


def test_second_home_is_refused_when_a_module_has_the_services(
    lend: Callable[..., Home], services: SharedServices, tmp_path: Path
) -> None:
    lend("first", "postgres")
    with pytest.raises(AssertionError, match="make a home of its own"):
        services.lend(tmp_path / "beside", "postgres")
