"""A patient process goes through an outage of a real PostgreSQL, and commits what it was about to, once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from include.erasure.run import Wish, erase, resume
from include.errors import AnotherWriter, ServiceUnreachable
from include.intervals import steps
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.connection import reading
from include.ledger.intervals import locks
from include.ledger.patience import patient
from include.ledger.streams import writers
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from spark_jobs import build_interval, publish
from tests.conftest import Home, SetSettings, wait_for
from tests.support.attempts import hour

pytestmark = [pytest.mark.services, pytest.mark.own_services]

LONG = 60.0
"""Seconds of patience: longer than PostgreSQL takes to start on a busy machine."""


@pytest.fixture
def lease(pipeline: str, set_settings: SetSettings) -> writers.Lease:
    set_settings(TIDEMARK_LEASE_SECONDS="300")
    return writers.acquire(pipeline)


@pytest.fixture
def killed(postgres: Home) -> Iterator[None]:
    """PostgreSQL is killed; it runs again after the test."""
    server = psutil.Process(postgres.services["postgres"]["pid"])
    every = [server, *server.children(recursive=True)]
    for process in every:
        process.kill()
    psutil.wait_procs(every, timeout=30)
    yield
    postgres.run("up", "postgres")


def batch_of(pipeline: str, number: int = 0) -> BatchCommit:
    ranges = [OffsetRange(TopicPartition(pipeline, 0), number, number + 1)]
    return BatchCommit(pipeline, ARCHIVE, pipeline, number, ranges, {pipeline: TopicIdentity(pipeline, "id", 1)})


def committed(home: Home, pipeline: str) -> list[tuple[int, int]]:
    """Numbers of the pipeline's micro-batches, and where its positions then are."""
    return home.ledger(
        "SELECT b.batch_id, p.next_offset FROM micro_batches b JOIN positions p USING (pipeline, query) "
        "WHERE pipeline = %s ORDER BY b.id",
        pipeline,
    )


def test_commit_waits_for_postgresql_and_says_so_when_it_is_killed_before(
    postgres: Home, pipeline: str, lease: writers.Lease, killed: None, caplog: pytest.LogCaptureFixture
) -> None:
    with patient(LONG), ThreadPoolExecutor(1) as beside, caplog.at_level(logging.WARNING, "tidemark"):
        committing = beside.submit(micro_batches.commit, lease, batch_of(pipeline))
        postgres.run("up", "postgres")
        committing.result(LONG)
    assert committed(postgres, pipeline) == [(0, 1)]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2, told
    assert told[0].startswith("waiting up to 60 s for the ledger: connection to server at "), told
    assert told[1].startswith("the ledger answers again after "), told


def test_commit_is_made_once_more_when_its_transaction_was_ended(
    postgres: Home, pipeline: str, lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = iter([True])

    def end_own_transaction(place: str) -> None:
        if place == "commit_written" and next(ended, False):
            done = postgres.ledger(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = 'ledger' AND state = 'idle in transaction' AND pid <> pg_backend_pid()"
            )
            assert done == [(True,)]

    monkeypatch.setattr(micro_batches, "crash_point", end_own_transaction)
    with patient(LONG):
        micro_batches.commit(lease, batch_of(pipeline))
    assert next(ended, None) is None
    assert committed(postgres, pipeline) == [(0, 1)]


def test_commit_is_not_made_twice_when_its_answer_was_lost(
    postgres: Home, pipeline: str, lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, tries = micro_batches._commit, []

    def lose_the_answer(lease: writers.Lease, batch: BatchCommit) -> None:
        commit(lease, batch)
        tries.append(batch.batch_id)
        raise ServiceUnreachable("the connection was lost", remedy="")

    monkeypatch.setattr(micro_batches, "_commit", lose_the_answer)
    with patient(LONG):
        micro_batches.commit(lease, batch_of(pipeline))
    assert tries == [0]
    assert committed(postgres, pipeline) == [(0, 1)]


def test_nothing_is_committed_when_another_driver_took_over_during_the_outage(
    postgres: Home, pipeline: str, lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = micro_batches._commit

    def be_overtaken(lease: writers.Lease, batch: BatchCommit) -> None:
        monkeypatch.setattr(micro_batches, "_commit", commit)
        writers.release(lease)
        commit(writers.acquire(pipeline), batch)
        raise ServiceUnreachable("the connection was lost", remedy="")

    monkeypatch.setattr(micro_batches, "_commit", be_overtaken)
    with patient(LONG), pytest.raises(AnotherWriter, match="nothing was committed"):
        micro_batches.commit(lease, batch_of(pipeline))
    assert committed(postgres, pipeline) == [(0, 1)]


def test_commands_fail_at_once_when_postgresql_is_away(
    postgres: Home, pipeline: str, lease: writers.Lease, killed: None
) -> None:
    began = time.monotonic()
    with pytest.raises(ServiceUnreachable):
        micro_batches.commit(lease, batch_of(pipeline))
    with pytest.raises(ServiceUnreachable), reading():
        pass
    assert time.monotonic() - began < LONG / 2


def test_waiting_ends_when_patience_does(postgres: Home, pipeline: str, lease: writers.Lease, killed: None) -> None:
    with patient(1.0), pytest.raises(ServiceUnreachable):
        writers.renew(lease)
    failed = threading.Event()

    def renew() -> None:
        with pytest.raises(ServiceUnreachable):
            writers.renew(lease)
        failed.set()

    waiting = threading.Thread(target=renew)
    with patient(3 * LONG):
        waiting.start()
        assert not failed.wait(2)
    waiting.join(LONG)
    assert failed.is_set()


BEGINNINGS: dict[str, tuple[Callable[[], object], str]] = {
    "pin": (lambda: steps.pin("isp_hits", hour(0), run_by="test"), "the embedded kafka was never started"),
    "build": (lambda: build_interval.main(["--pipeline", "isp_hits", "--attempt", "404"]), "no attempt 404"),
    "publish": (lambda: publish.main(["--pipeline", "isp_hits", "--attempt", "404"]), "no attempt 404"),
    "erase": (lambda: erase(load_pipeline("isp_hits"), Wish(("k",), ("no_column",), "r", "test"), print), "no_column"),
    "resume": (lambda: resume(load_pipeline("isp_hits"), print), "no erasure is unfinished"),
}
"""What begins an interval, a step of it or an erasure, and its first error for which the ledger must answer."""

WAITING = "waiting up to 210 s for the ledger"


def test_intervals_and_erasures_wait_for_postgresql_when_it_is_restarted_as_they_begin(
    postgres: Home, lease: writers.Lease, killed: None, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(len(BEGINNINGS)) as beside, caplog.at_level(logging.WARNING, "tidemark"):
        begun = {name: beside.submit(begin) for name, (begin, _) in BEGINNINGS.items()}
        wait_for("one to wait", lambda: any(said.startswith(WAITING) for said in caplog.messages), 60)
        assert not any(each.done() for each in begun.values())
        postgres.run("up", "postgres")
        ends = {name: str(each.exception(LONG)) for name, each in begun.items()}
    assert {name: said for name, said in ends.items() if BEGINNINGS[name][1] not in said} == {}


def test_step_waits_a_bounded_time_when_postgresql_stays_away(
    postgres: Home, killed: None, set_settings: SetSettings
) -> None:
    set_settings(TIDEMARK_LEASE_SECONDS="3")
    began = time.monotonic()
    with pytest.raises(ServiceUnreachable, match="PostgreSQL at"), locks.attempt_under_way("isp_hits", hour(0)):
        pass
    assert time.monotonic() - began > 2
    # A command that only reads does not wait.
    with pytest.raises(ServiceUnreachable), reading():
        pass


def test_step_is_not_repeated_and_fails_when_postgresql_is_restarted_in_it(
    postgres: Home, lease: writers.Lease
) -> None:
    ran = []

    def step() -> None:
        with locks.attempt_under_way("isp_hits", hour(0)):
            ran.append(locks.with_attempts("isp_hits", [hour(0)]))
            postgres.run("down", "postgres")
            postgres.run("up", "postgres")
            # Its lock went with its connection: somebody may have pinned the interval again.
            ran.append(locks.with_attempts("isp_hits", [hour(0)]))

    with pytest.raises(ServiceUnreachable, match="PostgreSQL at"):
        step()
    assert ran == [{hour(0)}, set()]
