"""Lines of files and sockets: their files in the order of reading, and the fate of each line.

Lines have no Kafka offsets, so they are in no table of offsets, and no interval can be pinned over them. A file is
noted here before anything reads it. Every query reads the files in the order in which they were noted, and a
micro-batch is a span of that order.

A patient process waits for a ledger that is away (`include/ledger/patience.py`). What may have been written before the
connection was lost is looked for, and not written twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from include.crash_points import crash_point
from include.errors import TidemarkError
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.archive.positions import of_query
from include.ledger.database import session
from include.ledger.models import LineConnection, LineCount, LineFile, LineSourceRow, LineSpan, MicroBatch
from include.ledger.patience import repeatable
from include.ledger.streams import writers
from include.offsets import Fates
from include.pipelines.spec import Pipeline

DRIVER_ENDED = "the driver ended before it closed the connection: what it received last may be lost"

MOST_FILES = 1000
"""Most files of a micro-batch, each of which is looked at before and after it is read."""

_AT_ONCE = 500
"""Files that are noted in one transaction."""


@dataclass(frozen=True)
class NotedFile:
    """A file of lines as it was when it was noted."""

    location: str
    """URI."""
    bytes: int
    modified_at: datetime
    source_name: str
    """The file itself, or the connection that its lines came over."""
    first_line: int = 1


@dataclass(frozen=True)
class Connection:
    """A connection to a socket, and how much of it is noted."""

    number: int
    address: str
    opened_at: datetime
    lines: int = 0
    files: int = 0

    @property
    def name(self) -> str:
        """What its lines are counted in."""
        return f"{self.address}#{self.number}"


@dataclass(frozen=True)
class LinesRead:
    """What a micro-batch read: the files after one up to another, and the lines of each source in them."""

    after_file: int
    until_file: int
    first_lines: Mapping[str, int] = field(default_factory=dict)
    """By source: the number of its first line; from there on every line has a fate."""
    fates: Mapping[str, Fates] = field(default_factory=dict)
    """By source; empty for a query that archives nothing."""


def note_source(lease: writers.Lease, pipeline: Pipeline, kind: str, guarantee: str) -> None:
    """Record that the pipeline is read from lines, with its guarantee; connections left open count as cut."""
    with session() as ledger:
        writers.check(ledger, lease)
        row = ledger.get(LineSourceRow, pipeline.name) or LineSourceRow(pipeline=pipeline.name)
        row.declared_as, row.kind, row.guarantee = pipeline.code, kind, guarantee
        ledger.add(row)
        ledger.execute(
            update(LineConnection)
            .where(LineConnection.pipeline == pipeline.name, LineConnection.closed_at.is_(None))
            .values(closed_at=func.now(), ended=DRIVER_ENDED)
        )


def sources_of(declared: str) -> list[str]:
    """Return the names under which a declared pipeline was read from lines."""
    with session() as ledger:
        wanted = select(LineSourceRow.pipeline).where(LineSourceRow.declared_as == declared)
        return sorted(ledger.scalars(wanted))


def declared_under(name: str) -> str | None:
    """Return the declared pipeline that was read from lines under this name; None without one."""
    with session() as ledger:
        return ledger.scalar(select(LineSourceRow.declared_as).where(LineSourceRow.pipeline == name))


@repeatable
def noted(pipeline: str) -> dict[str, tuple[int, datetime]]:
    """Return size and modification time of every file that was noted, by location."""
    with session() as ledger:
        wanted = select(LineFile.location, LineFile.bytes, LineFile.modified_at).where(LineFile.pipeline == pipeline)
        return {location: (size, modified) for location, size, modified in ledger.execute(wanted)}


def note_files(lease: writers.Lease, files: Sequence[NotedFile]) -> None:
    """Record files after all others of the pipeline. Raises AnotherWriter: the lease keeps their order."""
    # In parts: nobody can renew the lease while a transaction has checked it.
    for first in range(0, len(files), _AT_ONCE):
        _note_files(lease, files[first : first + _AT_ONCE])


@repeatable
def _note_files(lease: writers.Lease, files: Sequence[NotedFile]) -> None:
    with session() as ledger:
        writers.check(ledger, lease)
        for file in files:
            _add_file(ledger, lease.pipeline, file)
        writers.renew_checked(ledger, lease)


def _add_file(ledger: Session, pipeline: str, file: NotedFile) -> bool:
    """Record a file, and return whether that is new: a try whose answer was lost may have done it."""
    of_location = select(LineFile.bytes).where(LineFile.pipeline == pipeline, LineFile.location == file.location)
    if ledger.scalar(of_location) == file.bytes:
        return False
    ledger.add(
        LineFile(
            pipeline=pipeline,
            location=file.location,
            bytes=file.bytes,
            modified_at=file.modified_at,
            source_name=file.source_name,
            first_line=file.first_line,
        )
    )
    # One by one: their numbers follow their order.
    ledger.flush()
    return True


@repeatable
def open_connection(lease: writers.Lease, address: str) -> Connection:
    """Record a connection, and return it. A driver has one connection at a time."""
    with session() as ledger:
        writers.check(ledger, lease)
        # An open one was recorded by a try whose answer was lost.
        still_open = select(LineConnection).where(
            LineConnection.pipeline == lease.pipeline, LineConnection.closed_at.is_(None)
        )
        row = ledger.scalar(still_open) or LineConnection(pipeline=lease.pipeline, address=address)
        ledger.add(row)
        ledger.flush()
        return Connection(row.id, address, row.opened_at)


@repeatable
def left_open(pipeline: str) -> list[Connection]:
    """Return the connections that a driver did not close, the oldest first."""
    of_pipeline = (LineConnection.pipeline == pipeline, LineConnection.ended == DRIVER_ENDED)
    count = select(LineFile.source_name, func.count()).where(LineFile.pipeline == pipeline)
    with session() as ledger:
        rows = ledger.scalars(select(LineConnection).where(*of_pipeline).order_by(LineConnection.id))
        found = [Connection(row.id, row.address, row.opened_at, row.lines) for row in rows]
        names = LineFile.source_name.in_([each.name for each in found])
        files = dict(ledger.execute(count.where(names).group_by(LineFile.source_name)).tuples().all())
    return [replace(each, files=files.get(each.name, 0)) for each in found]


@repeatable
def note_received(lease: writers.Lease, connection: int, file: NotedFile, lines: int) -> None:
    """Record a file of received lines and, in the same transaction, how many came over its connection."""
    with session() as ledger:
        writers.check(ledger, lease)
        if _add_file(ledger, lease.pipeline, file):
            ledger.get_one(LineConnection, connection, with_for_update=True).lines += lines


@repeatable
def close_connection(lease: writers.Lease, connection: int, ended: str, cut_bytes: int) -> None:
    """Record how a connection ended."""
    with session() as ledger:
        writers.check(ledger, lease)
        row = ledger.get_one(LineConnection, connection, with_for_update=True)
        row.ended, row.cut_bytes, row.closed_at = ended, cut_bytes, func.now()


@repeatable
def noted_until(pipeline: str, after: int, most_bytes: int | None) -> int:
    """Return the last file after `after` with at most `most_bytes` and `MOST_FILES` in between, but at least one file.

    Return `after` when nothing was noted since; without `most_bytes` the last file of all.
    """
    size = func.sum(LineFile.bytes).over(order_by=LineFile.id)
    place = func.row_number().over(order_by=LineFile.id)
    counted = (
        select(LineFile.id, size.label("so_far"), place.label("place"))
        .where(LineFile.pipeline == pipeline, LineFile.id > after)
        .subquery()
    )
    wanted = select(func.max(counted.c.id))
    if most_bytes is not None:
        most = (counted.c.so_far <= most_bytes) & (counted.c.place <= MOST_FILES)
        wanted = wanted.where(most | (counted.c.place == 1))
    with session() as ledger:
        return ledger.scalar(wanted) or after


@repeatable
def files_between(pipeline: str, after: int, until: int) -> list[NotedFile]:
    """Return the files after one up to and including another, in order."""
    wanted = (
        select(LineFile)
        .where(LineFile.pipeline == pipeline, LineFile.id > after, LineFile.id <= until)
        .order_by(LineFile.id)
    )
    with session() as ledger:
        rows = ledger.scalars(wanted)
        return [NotedFile(r.location, r.bytes, r.modified_at, r.source_name, r.first_line) for r in rows]


@repeatable
def position(pipeline: str, query: str) -> int:
    """Return the last file that a query has committed; 0 before its first commit."""
    with session() as ledger:
        return _position(ledger, pipeline, query)


def _position(ledger: Session, pipeline: str, query: str, query_id: str | None = None) -> int:
    wanted = select(LineSpan.until_file).join(MicroBatch, MicroBatch.id == LineSpan.micro_batch_id)
    wanted = wanted.where(of_query(pipeline, query)).order_by(MicroBatch.id.desc()).limit(1)
    if query_id is not None:
        wanted = wanted.where(MicroBatch.query_id == query_id)
    return ledger.scalar(wanted) or 0


@repeatable
def committed_span(query_id: str, batch_id: int) -> tuple[int, int]:
    """Return the files that a micro-batch was committed with: after the first of them, up to the second."""
    wanted = select(LineSpan).join(MicroBatch, MicroBatch.id == LineSpan.micro_batch_id)
    with session() as ledger:
        row = ledger.scalars(wanted.where(MicroBatch.query_id == query_id, MicroBatch.batch_id == batch_id)).one()
        return row.after_file, row.until_file


def commit(lease: writers.Lease, batch: BatchCommit, read: LinesRead) -> None:
    """Commit a micro-batch of lines in one transaction: the lease, what came before, what it read, its files.

    Its last statement renews the lease, as in `micro_batches.commit`.
    A patient process commits through an outage of PostgreSQL. Raises AnotherWriter, or TidemarkError when the span does
    not continue the last one or a line has no fate.
    """
    micro_batches.committed_once(lease, batch, lambda: _commit(lease, batch, read))


def _commit(lease: writers.Lease, batch: BatchCommit, read: LinesRead) -> None:
    with session() as ledger:
        writers.check(ledger, lease)
        # The archive continues across checkpoints; a view's state belongs to one checkpoint.
        reached = _position(ledger, batch.pipeline, batch.query, None if batch.query == ARCHIVE else batch.query_id)
        if reached != read.after_file:
            raise TidemarkError(
                f"micro-batch {batch.batch_id} of {batch.query} begins after file {read.after_file}, but the last "
                f"commit ended with {reached}: checkpoint and ledger do not belong together; nothing was committed",
                remedy=f'begin without the checkpoint: ./tidemark new-generation {batch.pipeline} --reason "…"',
                pipeline=batch.pipeline,
            )
        row = micro_batches.write(ledger, lease.token, batch, records=sum(each.records for each in read.fates.values()))
        ledger.add(LineSpan(micro_batch_id=row.id, after_file=read.after_file, until_file=read.until_file))
        for source, fates in read.fates.items():
            first = read.first_lines[source]
            ledger.add(
                LineCount(
                    micro_batch_id=row.id,
                    source_name=source,
                    from_line=first,
                    until_line=first + fates.records,
                    archived=fates.archived,
                    empty=fates.empty,
                    quarantined=fates.quarantined,
                )
            )
        ledger.flush()
        writers.renew_checked(ledger, lease)
        crash_point("commit_written")
