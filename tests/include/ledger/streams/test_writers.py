"""The lease is taken from a driver that has certainly ended, and from no other, on a real PostgreSQL."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import OperationalError

from include.errors import AnotherWriter
from include.ledger.archive import micro_batches, row_outputs
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit, commit, is_committed
from include.ledger.archive.row_outputs import Unsent
from include.ledger.connection import IDLE_SECONDS, LOCK_SECONDS
from include.ledger.database import clock, session
from include.ledger.models import Writer
from include.ledger.outputs import targets
from include.ledger.streams import flags, generations, lines, writers
from include.ledger.streams.lines import LinesRead, NotedFile
from include.ledger.streams.overview import overview
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.processes import ProcessIdentity
from include.settings import REPOSITORY
from tests.conftest import Home, SetSettings, wait_for
from tests.support.ledger_waits import waiting_query

pytestmark = pytest.mark.services


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def impatient(pipeline: str, set_settings: SetSettings) -> None:
    """A driver that finds the lease taken gives up soon."""
    set_settings(TIDEMARK_LEASE_SECONDS="2")


def held_by(pipeline: str, process: ProcessIdentity, host: str | None = None, ahead: timedelta = timedelta(0)) -> int:
    """Let a process of this host, or of another, hold the lease for an hour; return its fencing token.

    `ahead`: how far the ledger's clock was ahead when it was renewed.
    """
    now = datetime.now(UTC) + ahead
    with session() as ledger:
        ledger.merge(
            Writer(
                pipeline=pipeline,
                token=7,
                holder=f"{host or socket.gethostname()}:{process}",
                acquired_at=now,
                renewed_at=now,
                expires_at=now + timedelta(hours=1),
                stop_requested=False,
            )
        )
    return 7


def test_lease_is_taken_at_once_when_its_driver_was_killed(
    pipeline: str, driver: subprocess.Popen[bytes], impatient: None
) -> None:
    token = held_by(pipeline, ProcessIdentity.of(driver.pid))
    driver.kill()
    driver.wait()
    assert writers.live_writer(pipeline) is None
    assert writers.acquire(pipeline).token == token + 1


@pytest.mark.parametrize("step", [-3600, -1, 1, 3600])
def test_lease_stays_with_a_living_driver_when_the_clock_steps(
    pipeline: str, driver: subprocess.Popen[bytes], impatient: None, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    token = held_by(pipeline, ProcessIdentity.of(driver.pid))
    boot_time = psutil._pslinux.boot_time()
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: boot_time + step)
    live = writers.live_writer(pipeline)
    assert live is not None
    assert live.token == token
    if step == 1:
        with pytest.raises(AnotherWriter, match=f"fencing token {token}"):
            writers.acquire(pipeline)


@pytest.mark.parametrize("elsewhere", ["container of the same name", "boot of before", "host"])
def test_lease_stays_with_its_driver_when_it_cannot_be_seen_from_here(
    pipeline: str, driver: subprocess.Popen[bytes], impatient: None, elsewhere: str
) -> None:
    here = ProcessIdentity.of(driver.pid)
    driver.kill()
    driver.wait()
    # No process of this host has the pid any more, but the driver may run on another host.
    theirs = {
        "container of the same name": replace(here, pid_namespace="1"),
        "boot of before": replace(here, boot_id="another"),
        "host": here,
    }[elsewhere]
    held_by(pipeline, theirs, "elsewhere" if elsewhere == "host" else None)
    assert writers.live_writer(pipeline) is not None
    assert pipeline not in writers.live_drivers()
    if elsewhere == "container of the same name":
        with pytest.raises(AnotherWriter):
            writers.acquire(pipeline)


def test_lease_of_a_driver_that_vanished_is_free_when_the_clock_of_the_ledger_was_set_back(
    pipeline: str, driver: subprocess.Popen[bytes], impatient: None
) -> None:
    token = held_by(pipeline, ProcessIdentity.of(driver.pid), "elsewhere", timedelta(hours=1))
    assert writers.live_writer(pipeline) is None
    assert overview(pipeline).writer is None
    assert writers.acquire(pipeline).token == token + 1


def test_lease_stays_with_a_driver_that_renews_it_when_the_clock_of_the_ledger_was_set_back(
    pipeline: str, driver: subprocess.Popen[bytes], impatient: None
) -> None:
    token = held_by(pipeline, ProcessIdentity.of(driver.pid), "elsewhere", timedelta(hours=1))
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.5):
            writers.renew(writers.Lease(pipeline, token, "elsewhere"))

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        with pytest.raises(AnotherWriter, match=f"fencing token {token}"):
            writers.acquire(pipeline)
    finally:
        ended.set()
        renewing.join()


RENEWING = """
from include.ledger.streams import writers
lease = writers.acquire("{pipeline}")
print("held", flush=True)
while True:
    writers.renew(lease)
"""


@pytest.fixture
def renewing(pipeline: str) -> Iterator[psutil.Popen]:
    """A process that does nothing but renew its lease."""
    process = psutil.Popen(
        [sys.executable, "-c", RENEWING.format(pipeline=pipeline)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_no_lock_is_left_behind_when_a_driver_is_frozen_while_it_renews(
    postgres: Home, pipeline: str, renewing: psutil.Popen
) -> None:
    rng = random.Random(7)
    # `active`: PostgreSQL still works on what the frozen process has sent.
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND (state LIKE 'idle in transaction%' OR state = 'active') AND backend_type = 'client backend'"
    )

    def in_transaction() -> int:
        with session() as ledger:
            return int(ledger.scalar(text(others)) or 0)

    def renewed_at() -> datetime | None:
        found = writers.live_writer(pipeline)
        return found.renewed_at if found else None

    frozen_at = set()
    for _ in range(20):
        # Renewals follow each other, so that any moment is within one.
        renewing.send_signal(signal.SIGCONT)
        before = renewed_at()
        wait_for("a renewal", lambda at=before: renewed_at() != at, 30, every=rng.uniform(0.001, 0.03))
        renewing.send_signal(signal.SIGSTOP)
        wait_for("its locks to go", lambda: in_transaction() == 0, 30)
        frozen_at.add(renewed_at())
    # It went on each time, so it was frozen at as many moments.
    assert len(frozen_at) == 20


def test_lease_lasts_from_when_it_is_got_when_another_transaction_kept_it_waiting(
    pipeline: str, driver: subprocess.Popen[bytes], impatient: None
) -> None:
    held_by(pipeline, ProcessIdentity.of(driver.pid))
    driver.kill()
    driver.wait()
    got: list[writers.Lease] = []
    waiting = threading.Thread(target=lambda: got.append(writers.acquire(pipeline)))
    with session() as frozen:
        frozen.get_one(Writer, pipeline, with_for_update=True)
        waiting.start()
        longer_than_a_lease = clock() + timedelta(seconds=3)

        def has_waited() -> bool:
            return bool(waiting_query()) and clock() > longer_than_a_lease

        wait_for("the wait to last", has_waited, 30)
    waiting.join(30)
    assert not writers.renew(got[0])


def let_run_out(lease: writers.Lease) -> None:
    with session() as ledger:
        ledger.get_one(Writer, lease.pipeline).expires_at = func.clock_timestamp()


def test_lease_stays_with_its_holder_when_a_driver_that_held_it_before_releases_it(pipeline: str) -> None:
    first = writers.acquire(pipeline)
    let_run_out(first)
    second = writers.acquire(pipeline)
    writers.release(first)
    assert writers.renew(second) is False


def test_nothing_is_committed_when_the_lease_ran_out_and_nobody_has_taken_it(pipeline: str) -> None:
    lease = writers.acquire(pipeline)
    let_run_out(lease)
    with pytest.raises(AnotherWriter, match="lease is over"):
        commit(lease, BatchCommit(pipeline, ARCHIVE, pipeline, 0))
    assert not is_committed(pipeline, 0)


def batch(lease: writers.Lease) -> BatchCommit:
    return BatchCommit(lease.pipeline, ARCHIVE, lease.pipeline, 0)


BY = {"started_by": "test", "reason": "test"}
LOST = OffsetRange(TopicPartition("events", 0), 0, 1, "id")
SUCCESSOR = TopicIdentity("events", "other", 1)
FILE = NotedFile("file:///1", 1, datetime(2026, 11, 20, tzinfo=UTC), "file:///1")

FENCED: dict[str, Callable[[writers.Lease], object]] = {
    "note code": lambda lease: writers.note_code(lease, {}),
    "commit records": lambda lease: micro_batches.commit(lease, batch(lease)),
    "move a query": lambda lease: micro_batches.move_query(lease, batch(lease)),
    "open a generation": lambda lease: generations.open_generation(lease, **BY),
    "leave a topic": lambda lease: generations.open_without_topic(lease, "events", left_by="test", reason="test"),
    "accept losses": lambda lease: generations.open_with_losses(
        lease, [LOST], [LOST], {}, accepted_by="test", reason="test"
    ),
    "adopt a topic": lambda lease: generations.open_with_topic(
        lease, SUCCESSOR, None, [], adopted_by="test", reason="test"
    ),
    "note a source of lines": lambda lease: lines.note_source(lease, load_pipeline("nest_cameras"), "files", ""),
    "note files": lambda lease: lines.note_files(lease, [FILE]),
    "open a connection": lambda lease: lines.open_connection(lease, "socket://127.0.0.1:1"),
    "note received lines": lambda lease: lines.note_received(lease, 1, FILE, 1),
    "close a connection": lambda lease: lines.close_connection(lease, 1, "closed", 0),
    "commit lines": lambda lease: lines.commit(lease, batch(lease), LinesRead(0, 0)),
    "note limits": lambda lease: flags.note_limits(lease, [], []),
    "note a run of flags": lambda lease: flags.note_run(lease, None, "code", {}, {}),
    "note a target": lambda lease: targets.keep_target(lease, "out", "there"),
    "go back to a target": lambda lease: targets.set_back(lease, "out", targets.Reached()),
    "note sent rows": lambda lease: row_outputs.record_sent(
        lease, "out", Unsent(1, (), {}, 1), [], rows=1, seconds=0.1
    ),
}
"""Everything that only the holder of the lease may write; an erasure's beginning is in test_beginning.py."""


@pytest.mark.parametrize("write", FENCED.values(), ids=FENCED)
def test_nothing_is_written_when_another_driver_has_taken_the_lease(
    pipeline: str, write: Callable[[writers.Lease], object]
) -> None:
    former = writers.acquire(pipeline)
    let_run_out(former)
    writers.acquire(pipeline)
    with pytest.raises(AnotherWriter, match="lease is over"):
        write(former)


@pytest.mark.parametrize("lines_or_records", ["commit records", "commit lines"])
def test_lease_lasts_from_the_end_of_the_transaction_when_a_commit_takes_long(
    pipeline: str, monkeypatch: pytest.MonkeyPatch, lines_or_records: str
) -> None:
    write, written = micro_batches.write, list[datetime]()

    def write_and_look_at_the_clock(*arguments: Any, **options: Any) -> Any:
        row = write(*arguments, **options)
        written.append(arguments[0].scalars(select(func.clock_timestamp())).one())
        return row

    monkeypatch.setattr(micro_batches, "write", write_and_look_at_the_clock)
    FENCED[lines_or_records](writers.acquire(pipeline))
    live = writers.live_writer(pipeline)
    assert live is not None
    assert live.renewed_at > written[0]


def test_wait_for_a_lock_outlasts_a_stopped_process_that_holds_it() -> None:
    assert LOCK_SECONDS > IDLE_SECONDS


def test_nobody_can_take_the_lease_when_the_transaction_that_checked_it_is_not_over(pipeline: str) -> None:
    lease = writers.acquire(pipeline)
    row = text("SELECT token FROM writers WHERE pipeline = :pipeline FOR UPDATE NOWAIT")
    with session() as committing:
        writers.check(committing, lease)
        # Whoever takes it would wait here.
        with session() as other, pytest.raises(OperationalError, match="could not obtain lock"):
            other.execute(row, {"pipeline": pipeline})
    with session() as other:
        assert other.scalar(row, {"pipeline": pipeline}) == lease.token
