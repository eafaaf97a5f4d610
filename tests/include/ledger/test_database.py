"""Connections to the ledger end in bounded time: a stopped process and a held lock, on a real PostgreSQL."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from threading import Barrier

import pytest
from sqlalchemy import create_engine, text

from include.cli.services import status
from include.doctor.repair import repair
from include.errors import AnotherWriter, LockHeld, ServiceUnreachable, TidemarkError, UsageError
from include.housekeeping.run import holding_files
from include.intervals.lake_of_ledger import check_lake
from include.ledger import connection, database
from include.ledger.connection import SILENT_SECONDS
from include.ledger.database import engine, lock, migrate, session
from include.ledger.held_locks import held_lock
from include.ledger.intervals.locks import no_attempt_under_way
from include.ledger.quarantine import deciding
from include.ledger.streams import writers
from include.ledger.validation import approvals
from include.monitor.streams.metrics import metrics_text
from include.pipelines import load_pipeline
from include.services import metastore
from include.settings import settings
from include.streams.generations import no_stream
from tests.conftest import REPOSITORY, Home, settings_of, wait_for
from tests.support.attempts import hour

pytestmark = pytest.mark.services

SHORT = 2
"""Seconds of the timeouts in these tests; a wait for a lock ends after half of them."""

HOLDER = f"""
import time
from include.ledger import connection, database
connection.IDLE_SECONDS = {SHORT}
with database.session() as ledger:
    database.lock(ledger, "held by a stopped process")
    print("held", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def short(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(connection, "LOCK_SECONDS", SHORT // 2)
    monkeypatch.setattr(connection, "STATEMENT_SECONDS", SHORT)
    monkeypatch.setattr(connection, "IDLE_SECONDS", SHORT)
    engine().dispose()
    engine.cache_clear()
    yield
    engine().dispose()
    engine.cache_clear()


def test_lock_is_free_when_the_process_that_holds_it_was_stopped(postgres: Home) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        with session() as ledger:
            lock(ledger, "held by a stopped process")
        assert time.monotonic() - began < SHORT + 20
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()


def test_wait_for_a_lock_ends_as_another_writer_s_when_it_stays_held(short: None) -> None:
    with session() as first:
        lock(first, "busy")
        # Streams, outputs and tasks that wait for the ledger wait for this, too.
        with pytest.raises(ServiceUnreachable, match="has held a lock in the ledger") as raised, session() as second:
            lock(second, "busy")
    assert (raised.value.exit_code, raised.value.meaning) == (AnotherWriter.exit_code, AnotherWriter.meaning)
    assert "./tidemark up" not in raised.value.remedy


def test_deadlock_ends_as_another_writer_s_when_two_commands_lock_in_other_orders(postgres: Home) -> None:
    def lock_both(first: str, second: str, ready: Barrier) -> None:
        with session() as ledger:
            lock(ledger, first)
            ready.wait(30)
            lock(ledger, second)

    ready = Barrier(2)
    with ThreadPoolExecutor(2) as others:
        begun = [others.submit(lock_both, *names, ready) for names in (("a", "b"), ("b", "a"))]
    [error] = [raised for each in begun if (raised := each.exception()) is not None]
    assert isinstance(error, LockHeld)
    assert str(error) == "another command changes the same rows of the ledger: deadlock detected — run this again"


def test_statement_ends_with_exit_code_6_when_it_takes_too_long(short: None) -> None:
    with pytest.raises(ServiceUnreachable, match="statement timeout"), session() as ledger:
        ledger.execute(text("SELECT pg_sleep(300)"))


def test_connection_counts_as_lost_when_its_transaction_was_ended_for_idleness(short: None) -> None:
    def ended(backend: int) -> bool:
        with session() as other:
            return other.scalar(text("SELECT true FROM pg_stat_activity WHERE pid = :pid"), {"pid": backend}) is None

    def idle() -> None:
        with session() as ledger:
            backend = int(ledger.scalar(text("SELECT pg_backend_pid()")) or 0)
            wait_for("PostgreSQL to end the transaction", lambda: ended(backend), SHORT + 20)
            ledger.execute(text("SELECT 1"))

    with pytest.raises(ServiceUnreachable, match=r"closed the connection|idle-in-transaction"):
        idle()


def test_refusal_leaves_no_transaction_open_when_a_long_lock_is_held(postgres: Home) -> None:
    with held_lock("long") as first:
        assert first
        with held_lock("long", timedelta(seconds=1)) as second:
            assert not second
        with session() as ledger:
            assert ledger.scalar(text("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in%'")) == 0
    with held_lock("long") as again:
        assert again


def test_lock_is_free_at_once_when_its_holder_gives_way(postgres: Home) -> None:
    def give_way() -> None:
        with held_lock("given") as held:
            assert held
            raise AnotherWriter("another one is at work")

    for _ in range(50):
        with pytest.raises(AnotherWriter):
            give_way()
        with held_lock("given") as again:
            assert again


LONG_HOLDER = """
import time
from include.housekeeping.run import holding_files
from include.ledger.intervals.locks import attempt_under_way
from tests.support.attempts import hour
with holding_files("isp_hits"), attempt_under_way("isp_hits", hour(0)):
    print("held", flush=True)
    time.sleep(300)
"""


def test_process_is_named_when_it_was_stopped_with_a_long_lock(postgres: Home) -> None:
    holder = subprocess.Popen([sys.executable, "-c", LONG_HOLDER], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
    named = rf"\(tidemark {holder.pid}@{re.escape(socket.gethostname())}, .*SELECT pg_terminate_backend\((\d+)\)"
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGSTOP)
        with (
            pytest.raises(AnotherWriter, match=f"another housekeeping is under way {named}"),
            holding_files("isp_hits"),
        ):
            pass
        with (
            pytest.raises(UsageError, match=f"an attempt of it is under way {named}") as told,
            no_attempt_under_way("isp_hits", hour(0)),
        ):
            pass
        (backend,) = re.findall(r"pg_terminate_backend\((\d+)\)", told.value.message)
        with session() as ledger:
            assert ledger.scalar(text("SELECT pg_terminate_backend(:pid)"), {"pid": int(backend)})
        with no_attempt_under_way("isp_hits", hour(0)):
            pass
    finally:
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()


def test_both_sides_notice_it_when_the_other_has_vanished(postgres: Home) -> None:
    with engine().connect() as connection:
        assert connection.connection.dbapi_connection is not None
        number = os.dup(connection.connection.dbapi_connection.fileno())  # type: ignore[attr-defined]
        with socket.socket(fileno=number) as client:
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * SILENT_SECONDS
        for name in ("tcp_user_timeout", "tcp_keepalives_idle", "client_connection_check_interval"):
            assert connection.scalar(text(f"SELECT setting::int FROM pg_settings WHERE name = '{name}'")) > 0


def test_idle_connection_stays_when_the_database_ends_idle_sessions(postgres: Home) -> None:
    """A lock that is held for minutes lies on a connection that is idle for as long."""
    with engine().connect().execution_options(isolation_level="AUTOCOMMIT") as owner:
        owner.execute(text("ALTER DATABASE ledger SET idle_session_timeout = '1s'"))
        try:
            with closing(connection.connect()) as idle, idle.cursor() as cursor:
                cursor.execute("SHOW idle_session_timeout")
                assert cursor.fetchone() == ("0",)
        finally:
            owner.execute(text("ALTER DATABASE ledger RESET idle_session_timeout"))


def test_version_is_named_when_the_ledger_is_of_other_code(postgres: Home) -> None:
    with pytest.raises(TidemarkError, match="another version of the code"), session() as ledger:
        ledger.execute(text("SELECT outcome FROM landing_files"))


def test_status_and_metrics_tell_it_when_the_ledger_is_of_other_code(
    postgres: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.ledger("ALTER TABLE alerts RENAME TO alerts_of_later")
    try:
        status(as_json=True)
        told = json.loads(capsys.readouterr().out)
        status()
        shown = capsys.readouterr().out
        assert "tidemark_ledger_up 0.0" in metrics_text([]).decode()
    finally:
        postgres.ledger("ALTER TABLE alerts_of_later RENAME TO alerts")
    assert {name for name, value in told.items() if value is not None} == {
        "services", "refused_pipelines", "ledger_error"
    }  # fmt: skip
    assert "another version of the code" in told["ledger_error"]
    assert "the ledger cannot be read: the ledger's tables are of another version of the code" in shown
    assert "./tidemark up postgres brings them to this one" in shown
    status(as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["ledger_error"], told["alerts"]) == ("", [])


def begin_housekeeping() -> None:
    check_lake(load_pipeline("isp_hits"))


def open_a_generation() -> None:
    with no_stream("isp_hits", "adopt"):
        pass


def discard_records() -> None:
    with deciding("isp_hits"):
        pass


def repair_nothing() -> None:
    repair([], lambda _: None)


def decide() -> None:
    with pytest.raises(UsageError) as refused:
        approvals.decide(0, approved=False, by="me@here", reason="rows are missing")
    if refused.value.message != "there is no question 0":
        raise refused.value


ASK_THE_LEDGER = [migrate, connection.await_ledger, connection.check_version]
CHANGE_OR_DECIDE = [begin_housekeeping, open_a_generation, discard_records, repair_nothing, decide]


@pytest.mark.parametrize("ask", [*ASK_THE_LEDGER, *CHANGE_OR_DECIDE])
def test_older_code_refuses_a_ledger_when_newer_code_has_migrated_it(postgres: Home, ask: Callable[[], None]) -> None:
    ask()
    [(before,)] = postgres.ledger("SELECT version_num FROM alembic_version")
    postgres.ledger("UPDATE alembic_version SET version_num = '9999'")
    try:
        with pytest.raises(UsageError, match=r"migrated by newer code \(9999; .* — deploy that code again, or restore"):
            ask()
    finally:
        postgres.ledger("UPDATE alembic_version SET version_num = %s", before)


def test_older_ledger_is_not_migrated_while_a_driver_of_its_code_runs(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgraded: list[object] = []
    monkeypatch.setattr(database, "upgrade", upgraded.append)
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="2"):
        lease = writers.acquire("of_older_code")
        host, pid, start = lease.holder.rsplit(":", 2)
        [(before,)] = postgres.ledger("SELECT version_num FROM alembic_version")
        migrate()
        assert upgraded.pop()
        postgres.ledger("UPDATE alembic_version SET version_num = '0001'")
        try:
            # Else it lapses while it is waited for, as of a driver that was killed on another host.
            postgres.ledger("UPDATE writers SET expires_at = now() + interval '1 min'")
            with pytest.raises(UsageError, match=rf"older code write of_older_code \({host}:{pid}\).*{before}"):
                migrate()
            assert not upgraded
            # One that has ended here is not waited for.
            postgres.ledger("UPDATE writers SET holder = %s", f"{host}:4194305:{start}")
            migrate()
            assert upgraded.pop()
            postgres.ledger("UPDATE writers SET expires_at = now() + interval '1 s'")
            migrate()
            assert upgraded.pop()
            writers.release(lease)
            migrate()
            assert upgraded.pop()
        finally:
            postgres.ledger("UPDATE alembic_version SET version_num = %s", before)


def test_migration_ends_and_names_who_uses_the_tables_when_another_transaction_stays_open(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wait for the table would stop every reader of it for as long."""
    monkeypatch.setattr(database, "CHANGE_SECONDS", 1)
    monkeypatch.setattr(database, "upgrade", lambda used: used.execute(text("ALTER TABLE alerts ADD other int")))
    with engine().connect() as other:
        other.execute(text("SET application_name = 'psql'; SELECT count(*) FROM alerts"))
        pid = other.scalar(text("SELECT pg_backend_pid()"))
        with pytest.raises(LockHeld, match=rf"process {pid} \(psql, .*backend\({pid}\).* nothing was migrated"):
            migrate()
        with engine().connect() as younger:
            younger.execute(text("SELECT count(*) FROM writers"))
            with pytest.raises(LockHeld, match=rf"the oldest .*: process {pid} .* pg_stat_activity has the younger"):
                migrate()
        with session() as ledger:
            assert ledger.scalar(text("SELECT count(*) FROM alerts")) is not None


def test_change_of_the_catalog_ends_when_another_transaction_stays_open(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metastore, "CHANGE_SECONDS", 1)
    catalog = create_engine(settings().database("catalog"))
    with catalog.connect() as other:
        other.execute(text('ALTER TABLE "PARTITION_KEY_VALS" ALTER "PART_KEY_VAL" TYPE varchar COLLATE "default"'))
        other.commit()
        other.execute(text('SELECT count(*) FROM "PARTITION_KEY_VALS"'))
        with pytest.raises(LockHeld, match="has used the Hive catalog in one transaction for more than 1 s"):
            metastore.create_metastore_schema()
    metastore.create_metastore_schema()
    catalog.dispose()


def test_migration_tells_that_it_waits_when_another_process_migrates(
    postgres: Home, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor() as pool, engine().connect() as other:
        other.execute(text(f"SELECT pg_advisory_xact_lock({database._MIGRATION})"))
        second = pool.submit(migrate)
        wait_for("the second to wait", lambda: "waiting: another process migrates the ledger" in caplog.text)
        other.rollback()
        second.result(60)


def test_migrating_fails_when_the_ledger_lacks_what_it_counts_as_having(postgres: Home) -> None:
    postgres.ledger("ALTER TABLE limits_versions RENAME COLUMN erased_rules TO other")
    postgres.ledger("ALTER TABLE alerts RENAME TO other")
    try:
        with pytest.raises(TidemarkError, match=r"there is no alerts, no limits_versions\.erased_rules"):
            migrate()
    finally:
        postgres.ledger("ALTER TABLE limits_versions RENAME COLUMN other TO erased_rules")
        postgres.ledger("ALTER TABLE other RENAME TO alerts")
    migrate()
