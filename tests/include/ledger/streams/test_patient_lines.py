"""A stream of lines goes on when its ledger was away for a moment, and writes nothing twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select

from include.errors import ServiceUnreachable
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.database import session
from include.ledger.models import LineConnection, LineSpan, MicroBatch
from include.ledger.patience import patient
from include.ledger.streams import lines, writers
from include.ledger.streams.lines import LinesRead, NotedFile
from tests.conftest import Home, settings_of
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

ADDRESS = "socket://127.0.0.1:1"
AT = datetime(2026, 11, 20, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def in_this_process(postgres: Home) -> Iterator[None]:
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="60"):
        yield


@pytest.fixture
def lease(request: pytest.FixtureRequest) -> Iterator[writers.Lease]:
    with held_lease(request.node.name[-60:]) as held:
        yield held


@pytest.fixture(params=["before it", "after it"])
def away(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The next transaction of each entry finds no ledger, or loses its answer after it was committed."""
    due: list[bool] = []

    @contextmanager
    def lost() -> Iterator[Any]:
        if due and request.param == "before it":
            due.pop()
            raise ServiceUnreachable("the ledger is away")
        with session() as ledger:
            yield ledger
        if due:
            due.pop()
            raise ServiceUnreachable("the connection was lost")

    monkeypatch.setattr(lines, "session", lost)
    return due


def file_of(number: int, size: int = 10) -> NotedFile:
    return NotedFile(f"file:///{number}", size, AT, f"file:///{number}")


def files(lease: writers.Lease) -> list[str]:
    return [each.location for each in lines.files_between(lease.pipeline, 0, 2**62)]


def test_each_file_is_noted_once_and_in_order_when_the_ledger_is_away(lease: writers.Lease, away: list[bool]) -> None:
    with patient(20):
        for first in (0, 2):
            away.append(True)
            lines.note_files(lease, [file_of(first), file_of(first + 1)])
            assert away == []
    assert files(lease) == [f"file:///{number}" for number in range(4)]


def test_lines_of_a_connection_count_once_when_the_ledger_is_away(lease: writers.Lease, away: list[bool]) -> None:
    with patient(20):
        for ended in ("closed by the other side", "stopped"):
            away.append(True)
            connection = lines.open_connection(lease, ADDRESS).number
            away.append(True)
            lines.note_received(lease, connection, file_of(connection), 7)
            lines.note_received(lease, connection, file_of(1000 + connection), 4)
            away.append(True)
            lines.close_connection(lease, connection, ended, 3)
            assert away == []
    with session() as ledger:
        wanted = select(LineConnection).where(LineConnection.pipeline == lease.pipeline).order_by(LineConnection.id)
        told = [(row.lines, row.cut_bytes, row.ended) for row in ledger.scalars(wanted)]
    assert told == [(11, 3, "closed by the other side"), (11, 3, "stopped")]
    assert len(files(lease)) == 4


def test_micro_batch_of_lines_is_committed_once_when_the_ledger_is_away(lease: writers.Lease, away: list[bool]) -> None:
    name = lease.pipeline
    with patient(20):
        for number in range(2):
            lines.note_files(lease, [file_of(number)])
            away.append(True)
            after = lines.position(name, ARCHIVE)
            away.append(True)
            until = lines.noted_until(name, after, None)
            away.append(True)
            lines.commit(lease, BatchCommit(name, ARCHIVE, name, number), LinesRead(after, until))
            assert away == []
    with session() as ledger:
        of_pipeline = select(LineSpan.after_file, LineSpan.until_file).join(
            MicroBatch, MicroBatch.id == LineSpan.micro_batch_id
        )
        spans = list(ledger.execute(of_pipeline.where(MicroBatch.pipeline == name).order_by(MicroBatch.id)))
    assert [after for after, _ in spans] == [0, spans[0].until_file]
    assert len(spans) == 2


def test_source_of_lines_waits_in_its_own_process_when_the_ledger_is_away(
    lease: writers.Lease, away: list[bool]
) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from spark_jobs.lines.line_source import LineReader

    lines.note_files(lease, [file_of(0), file_of(1)])
    reader = LineReader(lease.pipeline, 0)
    away.append(True)
    reader.prepareForTriggerAvailableNow()
    away.append(True)
    until = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    away.append(True)
    assert [[file.location for file in part.files] for part in reader.partitions({"file": 0}, until)] == [
        ["file:///0", "file:///1"]
    ]
    assert away == []


def test_source_of_lines_ends_when_the_ledger_stays_away(
    lease: writers.Lease, away: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.lines import line_source

    monkeypatch.setattr(line_source, "settings", lambda: SimpleNamespace(lease_seconds=1.0))
    away += [True] * 100
    with pytest.raises(ServiceUnreachable):
        line_source.LineReader(lease.pipeline, 0).prepareForTriggerAvailableNow()


def test_files_are_noted_in_parts_that_each_renew_the_lease_when_there_are_many(
    lease: writers.Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can renew it meanwhile, and all of them may take longer than it lasts."""
    monkeypatch.setattr(lines, "_AT_ONCE", 2, raising=False)
    done: list[str] = []

    def noting(module: Any, name: str) -> None:
        step = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *arguments: (done.append(name), step(*arguments))[1])

    noting(writers, "check")
    noting(lines, "_add_file")
    noting(writers, "renew_checked")
    lines.note_files(lease, [file_of(number) for number in range(3)])
    assert done == ["check", "_add_file", "_add_file", "renew_checked", "check", "_add_file", "renew_checked"]
    assert files(lease) == [f"file:///{number}" for number in range(3)]


def test_small_files_share_a_task_when_they_follow_each_other(lease: writers.Lease) -> None:
    from spark_jobs.lines.line_source import LineReader

    mebibyte = 1024 * 1024
    sizes = [0, mebibyte, 2 * mebibyte, mebibyte, 9 * mebibyte, 1, 1]
    lines.note_files(lease, [file_of(number, size) for number, size in enumerate(sizes)])
    parts = LineReader(lease.pipeline, 0).partitions({"file": 0}, {"file": 2**62})
    assert [[int(file.location[-1]) for file in part.files] for part in parts] == [[0, 1, 2, 3], [4], [5, 6]]
