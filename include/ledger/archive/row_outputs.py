"""What outputs have sent of the archive: committed micro-batches and quarantine replays, each in their order.

An output follows what is committed, so it sends what is archived and nothing else. Its position is moved in one
transaction that checks the lease, after its rows were sent: a driver killed in between leads to sending them again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from include.errors import TidemarkError
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import BatchCommit
from include.ledger.archive.positions import ARCHIVE, of_query, position_rows
from include.ledger.database import session
from include.ledger.models import LandingFileRow, MicroBatch, MicroBatchRange, Position, RefusedRow, Replay, RowOutput
from include.ledger.quarantine import REPLAY
from include.ledger.streams import writers
from include.offsets import Fate, OffsetRange, TopicPartition

MOST_ROWS = 20_000
"""Rows of micro-batches that are sent together; a larger micro-batch is sent alone, in slices."""

MOST_REFUSED = 1000
"""When more of the rows sent together are refused, the declaration or the target is wrong, and the output waits."""

_AT_ONCE = 500
"""Micro-batches that are sent together at most."""


@dataclass(frozen=True)
class Unsent:
    """What an output sends next: rows of micro-batches, or those of one replay."""

    number: int
    """Number of the last micro-batch, or of the replay."""
    ranges: Sequence[OffsetRange]
    """The offsets of the micro-batches, each with its topic's id; none for a replay."""
    topic_ids: Mapping[str, str]
    """Id of each topic when the records were read."""
    rows: int
    paths: Sequence[str] = ()
    """Files of the replay's rows, below the lake."""
    is_replay: bool = False


@dataclass(frozen=True)
class Refused:
    """A row that cannot be sent."""

    topic: str
    partition: int
    offset: int
    element: int
    """Position in the message; -1 for all rows of the record."""
    reason: str
    detail: str


def too_many(pipeline: str, output: str, refused: Sequence[Refused], sent: int) -> TidemarkError:
    """Return the error of an output that refuses more than `MOST_REFUSED` of the rows that are sent together."""
    first = refused[0]
    return TidemarkError(
        f"the output {output} cannot send {len(refused)} of {len(refused) + sent} rows, the first is "
        f"{first.topic}-{first.partition} offset {first.offset}: {first.detail}",
        remedy="correct its declaration, or the place that it writes to, and start the stream again",
        pipeline=pipeline,
    )


@dataclass(frozen=True)
class OutputState:
    """How far an output has sent rows."""

    pipeline: str
    output: str
    rows: int
    refused: int
    sent_at: datetime | None
    waits_for: str
    """Why nothing can be sent; empty while it can."""
    waits_since: datetime | None
    behind: int
    """Committed micro-batches of the archive, and replays, that are not sent yet."""


def next_unsent(pipeline: str, output: str) -> Unsent | None:
    """Return what the output sends next: a replay before micro-batches; None when everything is sent."""
    with session() as ledger:
        row = ledger.get(RowOutput, (pipeline, output))
        sent, replay = (row.micro_batch_id, row.replay) if row else (0, -1)
        return _next_replay(ledger, pipeline, replay) or _next_batches(ledger, pipeline, sent)


def _next_replay(ledger: Session, pipeline: str, after: int) -> Unsent | None:
    # Replays are numbered in the order of their commits; their micro-batches are not.
    row = ledger.scalar(
        select(MicroBatch)
        .where(of_query(pipeline, REPLAY), MicroBatch.batch_id > after)
        .order_by(MicroBatch.batch_id)
        .limit(1)
    )
    if row is None:
        return None
    files = select(LandingFileRow.path).where(
        LandingFileRow.micro_batch_id == row.id, LandingFileRow.fate == Fate.ARCHIVED
    )
    read = select(Replay.topic, Replay.topic_id).where(Replay.micro_batch_id == row.id).distinct()
    topic_ids = dict(ledger.execute(read).tuples().all())
    return Unsent(row.batch_id, (), topic_ids, row.rows, sorted(ledger.scalars(files)), is_replay=True)


def _next_batches(ledger: Session, pipeline: str, after: int) -> Unsent | None:
    number, rows = after, 0
    ranges: dict[TopicPartition, list[OffsetRange]] = defaultdict(list)
    topic_ids: dict[str, str] = {}
    batches = _that_fit(ledger, pipeline, after)
    # Only of these: a wide topic has hundreds of ranges in each micro-batch.
    read = _ranges_of(ledger, list(batches))
    for key, more in batches.items():
        ids = {each.topic_partition.topic: each.topic_id for each in read[key]}
        if any(topic_ids.get(topic, topic_id) != topic_id for topic, topic_id in ids.items()):
            break
        number, rows = key, rows + more
        topic_ids |= ids
        for each in read[key]:
            ranges[each.topic_partition].append(each)
    if number == after:
        return None
    return Unsent(number, [_spanned(parts) for _, parts in sorted(ranges.items())], topic_ids, rows)


def _that_fit(ledger: Session, pipeline: str, after: int) -> dict[int, int]:
    """Return the next micro-batches, with their rows, that are at most MOST_ROWS together, or the next one alone."""
    wanted = (
        select(MicroBatch.id, MicroBatch.rows)
        .where(of_query(pipeline, ARCHIVE), MicroBatch.id > after)
        .order_by(MicroBatch.id)
        .limit(_AT_ONCE)
    )
    fitting: dict[int, int] = {}
    together = 0
    for key, rows in ledger.execute(wanted).tuples():
        together += rows
        if fitting and together > MOST_ROWS:
            break
        fitting[key] = rows
    return fitting


def _ranges_of(ledger: Session, batches: Sequence[int]) -> dict[int, list[OffsetRange]]:
    read: dict[int, list[OffsetRange]] = defaultdict(list)
    for r in ledger.scalars(select(MicroBatchRange).where(MicroBatchRange.micro_batch_id.in_(batches))):
        tp = TopicPartition(r.topic, r.topic_partition)
        read[r.micro_batch_id].append(OffsetRange(tp, r.from_offset, r.until_offset, r.topic_id))
    return read


def _spanned(parts: Sequence[OffsetRange]) -> OffsetRange:
    first = min(each.from_offset for each in parts)
    return OffsetRange(parts[0].topic_partition, first, max(each.until_offset for each in parts), parts[0].topic_id)


def query_id_of(pipeline: str, output: str, *, is_replay: bool) -> str:
    """Return the id under which the ledger keeps what the output sent of micro-batches, or of replays."""
    return f"rows:{pipeline}:{output}{':replay' if is_replay else ''}"


def record_sent(
    lease: writers.Lease, output: str, unsent: Unsent, refused: Sequence[Refused], *, rows: int, seconds: float
) -> None:
    """Record that the rows, except those refused, are sent, in one transaction. Raises AnotherWriter."""
    pipeline = lease.pipeline
    query_id = query_id_of(pipeline, output, is_replay=unsent.is_replay)
    batch = BatchCommit(pipeline, output, query_id, unsent.number, rows=rows, seconds=seconds)
    with session() as ledger:
        writers.check(ledger, lease)
        written = micro_batches.write(ledger, lease.token, batch)
        _move(ledger, pipeline, output, unsent.ranges, written.id)
        noted = _note_refused(ledger, pipeline, output, unsent.topic_ids, refused)
        row = ledger.get(RowOutput, (pipeline, output)) or RowOutput(
            pipeline=pipeline, output=output, micro_batch_id=0, replay=-1, rows=0, refused=0
        )
        if unsent.is_replay:
            row.replay = unsent.number
        else:
            row.micro_batch_id = unsent.number
        row.rows += rows
        row.refused += noted
        row.waits_for, row.waits_since = "", None
        row.sent_at = ledger.scalar(select(func.clock_timestamp()))
        ledger.add(row)


def _move(ledger: Session, pipeline: str, output: str, ranges: Iterable[OffsetRange], micro_batch: int) -> None:
    at = {TopicPartition(p.topic, p.topic_partition): p for p in position_rows(ledger, pipeline, output)}
    for each in ranges:
        tp = each.topic_partition
        names = {"topic": tp.topic, "topic_partition": tp.partition}
        ledger.add(
            MicroBatchRange(
                micro_batch_id=micro_batch,
                topic_id=each.topic_id,
                from_offset=each.from_offset,
                until_offset=each.until_offset,
                **names,
            )
        )
        position = at.get(tp) or Position(pipeline=pipeline, query=output, **names)
        position.next_offset, position.micro_batch_id = each.until_offset, micro_batch
        ledger.add(position)


def _note_refused(
    ledger: Session, pipeline: str, output: str, topic_ids: Mapping[str, str], refused: Sequence[Refused]
) -> int:
    """Note the refused rows and return how many were not noted before: rows that are sent again are refused again."""
    rows = [
        {
            "pipeline": pipeline,
            "output": output,
            "topic": each.topic,
            "topic_id": topic_ids[each.topic],
            "topic_partition": each.partition,
            "record_offset": each.offset,
            "element": each.element,
            "reason": each.reason,
            "detail": each.detail,
        }
        for each in refused
    ]
    if not rows:
        return 0
    return len(ledger.scalars(insert(RefusedRow).on_conflict_do_nothing().returning(RefusedRow.id), rows).all())


def note_waiting(pipeline: str, output: str, reason: str) -> None:
    """Note why the output cannot send now; the time at which it began to wait stays."""
    with session() as ledger:
        now = func.clock_timestamp()
        values = {"pipeline": pipeline, "output": output, "waits_for": reason}
        fresh = {"micro_batch_id": 0, "replay": -1, "rows": 0, "refused": 0, "waits_since": now}
        since = func.coalesce(RowOutput.waits_since, now)
        ledger.execute(
            insert(RowOutput)
            .values(**values, **fresh)
            .on_conflict_do_update(
                index_elements=["pipeline", "output"], set_={"waits_for": reason, "waits_since": since}
            )
        )


def states(pipeline: str, outputs: Iterable[str]) -> list[OutputState]:
    """Return how far each of the outputs has sent rows."""
    with session() as ledger:
        return [_state(ledger, pipeline, output) for output in outputs]


def _state(ledger: Session, pipeline: str, output: str) -> OutputState:
    row = ledger.get(RowOutput, (pipeline, output))
    after = {ARCHIVE: row.micro_batch_id, REPLAY: row.replay} if row else {ARCHIVE: 0, REPLAY: -1}
    of = select(func.count()).where(MicroBatch.pipeline == pipeline)
    behind = [
        ledger.scalar(of.where(MicroBatch.query == ARCHIVE, MicroBatch.id > after[ARCHIVE])),
        ledger.scalar(of.where(MicroBatch.query == REPLAY, MicroBatch.batch_id > after[REPLAY])),
    ]
    told = (row.rows, row.refused, row.sent_at, row.waits_for, row.waits_since) if row else (0, 0, None, "", None)
    return OutputState(pipeline, output, *told, behind=sum(each or 0 for each in behind))


def refused_rows(pipeline: str, output: str, most: int) -> list[Refused]:
    """Return the rows that the output could not send, the newest first."""
    wanted = (
        select(RefusedRow)
        .where(RefusedRow.pipeline == pipeline, RefusedRow.output == output)
        .order_by(RefusedRow.id.desc())
        .limit(most)
    )
    with session() as ledger:
        return [
            Refused(r.topic, r.topic_partition, r.record_offset, r.element, r.reason, r.detail)
            for r in ledger.scalars(wanted)
        ]
