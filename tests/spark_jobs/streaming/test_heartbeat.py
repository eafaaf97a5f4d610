"""A driver's heartbeat outlives what a real PostgreSQL does to it, and says so when the lease is lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from include.errors import ServiceUnreachable, TidemarkError
from include.ledger.database import engine, session
from include.ledger.streams import writers
from spark_jobs.streaming.queries import Heartbeat
from tests.conftest import Home, settings_of, wait_for

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
