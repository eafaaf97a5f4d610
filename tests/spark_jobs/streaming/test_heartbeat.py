"""A driver's heartbeat outlives what a real PostgreSQL does to it, and says so when the lease is lost."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import psutil
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from include.errors import OffsetsLost, ServiceUnreachable, TidemarkError
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.database import engine, session
from include.ledger.streams import outages, writers
from spark_jobs.streaming.heartbeat import Heartbeat, leased
from tests.conftest import REPOSITORY, Home, settings_of, wait_for

pytestmark = pytest.mark.services


@pytest.fixture
def lease_seconds() -> str:
    return "5"


@pytest.fixture
def heartbeat(postgres: Home, request: pytest.FixtureRequest, lease_seconds: str) -> Iterator[Heartbeat]:
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS=lease_seconds):
        lease = writers.acquire(request.node.name[:60])
        beating = Heartbeat(lease)
        beating.start()
        yield beating
        beating.end()
        writers.release(lease)


def ask(statement: str) -> None:
    """Change something as an administrator, without the restrictions of the ledger's connections."""
    with engine().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET default_transaction_read_only = off"))
        connection.execute(text(statement))
    engine().dispose()


@contextmanager
def read_only() -> Iterator[None]:
    """Every new transaction may only read, as on a standby that was not promoted."""
    ask("ALTER DATABASE ledger SET default_transaction_read_only = on")
    ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = 'ledger'")
    try:
        yield
    finally:
        ask("ALTER DATABASE ledger RESET default_transaction_read_only")


@contextmanager
def read_only_once_inside() -> Iterator[Callable[[], object]]:
    """Yields what makes every new transaction one that may only read, until the end of the block."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(read_only())


@contextmanager
def hanging_once_inside() -> Iterator[Callable[[], object]]:
    """Yields what makes PostgreSQL hang until the end of the block."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(hanging())


@contextmanager
def refusing() -> Iterator[None]:
    """Every renewal is refused with an error that is not an outage."""
    ask("CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$")
    ask("CREATE TRIGGER refuse BEFORE UPDATE ON writers FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        yield
    finally:
        ask("DROP FUNCTION refuse CASCADE")


def failed_with(heartbeat: Heartbeat) -> TidemarkError | None:
    try:
        heartbeat.stop_requested()
    except TidemarkError as error:
        return error
    return None


def renewed_at(heartbeat: Heartbeat) -> object:
    with session() as ledger:
        wanted = text("SELECT renewed_at FROM writers WHERE pipeline = :pipeline")
        return ledger.scalar(wanted, {"pipeline": heartbeat._lease.pipeline})


# Longer than the trouble, however slow the machine is.
@pytest.mark.parametrize("lease_seconds", ["20"])
@pytest.mark.parametrize("trouble", [read_only, refusing])
def test_heartbeat_renews_again_when_the_ledger_takes_writes_within_the_lease(
    heartbeat: Heartbeat, trouble: Callable[[], object]
) -> None:
    with trouble():  # type: ignore[attr-defined]
        before = renewed_at(heartbeat)
        # Two renewals fall into it.
        heartbeat._ended.wait(4.5)
        assert renewed_at(heartbeat) == before
    wait_for("a renewal", lambda: renewed_at(heartbeat) != before, 30)
    assert failed_with(heartbeat) is None


@pytest.mark.parametrize(
    ("trouble", "error", "words"),
    # The last renewal may come after the lease's end, which is then reported.
    [(read_only, ServiceUnreachable, "read-only transaction"), (refusing, TidemarkError, "not now|lease is over")],
)
def test_driver_is_told_that_its_lease_is_lost_when_the_ledger_takes_no_writes_for_longer(
    heartbeat: Heartbeat, trouble: Callable[[], object], error: type[TidemarkError], words: str
) -> None:
    with trouble():  # type: ignore[attr-defined]
        failed = wait_for("the driver to be told", lambda: failed_with(heartbeat), 15)
    assert isinstance(failed, error)
    assert re.search(words, str(failed))
    assert not heartbeat.is_alive()


@contextmanager
def hanging() -> Iterator[None]:
    """PostgreSQL's processes are stopped: the kernel still accepts connections for it."""
    with session() as ledger:
        server = psutil.Process(ledger.scalar(text("SELECT pg_backend_pid()"))).parent()
    assert server is not None
    server.suspend()
    stopped = [server, *server.children()]
    try:
        for each in stopped:
            each.suspend()
        yield
    finally:
        for each in stopped:
            each.resume()


def test_stream_ends_when_postgresql_accepts_and_never_answers(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("spark_jobs.streaming.heartbeat._ANSWER_SECONDS", 2)
    monkeypatch.setattr("spark_jobs.streaming.heartbeat._END_SECONDS", 0.5)

    def stream_until_told(hang: Callable[[], object]) -> None:
        with leased("hangs") as (_, heartbeat):
            hang()
            wait_for("the driver to be told", heartbeat.stop_requested, 15)

    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="3"), hanging_once_inside() as hang:
        with pytest.raises(ServiceUnreachable, match="timeout expired"):
            stream_until_told(hang)
        assert "the lease was not released, and ends by itself: a renewal of it has no answer yet" in caplog.text
        # What else is noted at a driver's end connects anew, which does not wait for long.
        assert engine().pool.checkedin() == 0  # type: ignore[attr-defined]


WAITING = """
from sqlalchemy import text

from include.ledger.database import session
from spark_jobs.streaming import heartbeat

heartbeat._ANSWER_SECONDS, heartbeat._UNHEARD_SECONDS = 2, 1
with heartbeat.leased("waits"):
    print("held", flush=True)
    while True:
        with session() as ledger:
            ledger.execute(text("SELECT pg_sleep(0.1)"))
"""
"""A driver whose main thread asks the ledger, as one with flags does, and not the heartbeat."""


def test_driver_ends_when_its_main_thread_waits_for_a_postgresql_that_never_answers(postgres: Home) -> None:
    environment = postgres.environment(TIDEMARK_LEASE_SECONDS="3")
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(
        command, env=environment, cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as driver:
        try:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "held\n"
            with hanging():
                _, told = driver.communicate(timeout=30)
        finally:
            driver.kill()
    assert driver.returncode == ServiceUnreachable.exit_code
    assert re.match(r"waits: PostgreSQL at .*: .*timeout expired", told.splitlines()[-1])


@pytest.mark.parametrize("lease_seconds", ["2"])
def test_driver_ends_when_its_renewals_end_and_its_main_thread_asks_nothing(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renewal may give up before the watch looks, while a statement of the main thread still waits."""
    away, ended = ServiceUnreachable("no answer"), list[TidemarkError]()

    def refuse(*_: object) -> bool:
        raise away

    monkeypatch.setattr("spark_jobs.streaming.heartbeat._UNHEARD_SECONDS", 0.5)
    monkeypatch.setattr("spark_jobs.streaming.heartbeat.end_now", lambda error, _: ended.append(error))
    monkeypatch.setattr(writers, "renew", refuse)
    wait_for("the driver to be ended", lambda: ended, 15)
    assert ended == [away]


def test_postgresql_is_not_to_blame_when_the_driver_itself_was_stopped_for_longer_than_its_lease(
    heartbeat: Heartbeat,
) -> None:
    stopped = Heartbeat(heartbeat._lease)
    # It goes on before its renewals do.
    stopped._renewed = stopped._answered = time.monotonic() - 1000
    assert stopped._hangs() is None


def test_lease_lasts_until_it_ends_by_itself_when_a_query_is_left_in_its_micro_batch(
    postgres: Home, caplog: pytest.LogCaptureFixture
) -> None:
    with settings_of(postgres):
        with leased("left") as (lease, heartbeat):
            heartbeat.keeps_lease = True
        writer = writers.live_writer("left")
        assert writer is not None
        assert writer.token == lease.token
        writers.release(lease)
    assert "the lease was not released, and ends by itself: a query is left in its micro-batch" in caplog.text


@pytest.mark.parametrize("error", [None, OffsetsLost("gone")], ids=["stopped", "failed"])
def test_end_of_a_stream_is_its_own_when_the_ledger_cannot_take_back_its_lease(
    postgres: Home, caplog: pytest.LogCaptureFixture, error: OffsetsLost | None
) -> None:
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="2"):
        ended = None
        with read_only_once_inside() as inside:
            try:
                with leased(f"ends_{error is None}"):
                    inside()
                    if error:
                        raise error
            except TidemarkError as raised:
                ended = raised
        assert ended is error
    assert any("the lease was not released" in each.getMessage() for each in caplog.records)


def test_lease_is_held_when_a_commit_takes_longer_than_it_lasts(
    heartbeat: Heartbeat, monkeypatch: pytest.MonkeyPatch, lease_seconds: str
) -> None:
    def record_slowly(ledger: Session, *_: object) -> None:
        ledger.execute(select(func.pg_sleep(float(lease_seconds) + 2)))

    lease = heartbeat._lease
    with monkeypatch.context() as patched:
        patched.setattr(outages, "record", record_slowly)
        micro_batches.commit(lease, BatchCommit(lease.pipeline, ARCHIVE, f"query-{lease.pipeline}", 0))
    committed = renewed_at(heartbeat)
    wait_for("a renewal", lambda: failed_with(heartbeat) or renewed_at(heartbeat) != committed, 15)
    assert failed_with(heartbeat) is None
