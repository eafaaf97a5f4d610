"""What an output's target is and has, against what the ledger says was sent.

The ledger says how far an output has sent. It is wrong where the target is another one, an older copy of itself, or was
made anew: then rows would be missing that nobody misses.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, select, update
from sqlalchemy.orm import Session

from include.errors import UsageError
from include.ledger.archive.positions import of_query
from include.ledger.archive.row_outputs import query_id_of
from include.ledger.database import session
from include.ledger.models import MicroBatch, MicroBatchRange, Position, RefusedRow, Replay, RowOutput
from include.ledger.quarantine import REPLAY
from include.ledger.streams import writers
from include.pipelines.spec.outputs import is_same_target


@dataclass(frozen=True)
class Reached:
    """Up to which micro-batch and replay a target has rows, as it says itself."""

    micro_batch: int = 0
    replay: int = -1

    def is_behind(self, other: Reached) -> bool:
        """Return whether rows are missing that the other has."""
        return self.micro_batch < other.micro_batch or self.replay < other.replay


def keep_target(lease: writers.Lease, output: str, target: str) -> None:
    """Note where the output's rows go.

    Raises AnotherWriter, UsageError when rows were sent to another target: the declared one would lack these.
    """
    pipeline = lease.pipeline
    with session() as ledger:
        writers.check(ledger, lease)
        row = ledger.get(RowOutput, (pipeline, output)) or RowOutput(
            pipeline=pipeline, output=output, micro_batch_id=0, replay=-1, rows=0, refused=0, target=""
        )
        # Before targets were noted, they were not compared.
        if row.target and (row.rows or row.refused) and not is_same_target(row.target, target):
            raise UsageError(
                f"the output {output} has sent {row.rows} rows to {row.target}, and is declared to go to {target}, "
                "which would lack these",
                remedy=f"give the output another name: it then sends everything; or declare {row.target} again",
                pipeline=pipeline,
            )
        row.target = target
        ledger.add(row)


def set_back(lease: writers.Lease, output: str, reached: Reached) -> int:
    """Go back to what the target has; return how many of the rows that were sent are sent again.

    A target is moved by rows only: it is not behind where nothing but micro-batches without any came after. Rows that
    were refused since are no longer noted: they are sent again, too. Raises AnotherWriter.
    """
    with session() as ledger:
        writers.check(ledger, lease)
        row = ledger.get(RowOutput, (lease.pipeline, output))
        if row is None:
            return 0
        if again := _forget(ledger, row, reached.micro_batch, is_replay=False):
            row.micro_batch_id = reached.micro_batch
        if replayed := _forget(ledger, row, reached.replay, is_replay=True):
            row.replay = reached.replay
        row.rows -= again + replayed
        return again + replayed


def _forget(ledger: Session, row: RowOutput, after: int, *, is_replay: bool) -> int:
    """Forget that what came after this number was sent or refused, if rows were sent; return how many."""
    pipeline, output = row.pipeline, row.output
    of = (MicroBatch.query_id == query_id_of(pipeline, output, is_replay=is_replay), MicroBatch.batch_id > after)
    sent = select(MicroBatch.id).where(*of)
    rows = int(ledger.scalar(select(func.sum(MicroBatch.rows)).where(*of)) or 0)
    if rows:
        begins = ledger.execute(
            select(MicroBatchRange.topic, MicroBatchRange.topic_partition, func.min(MicroBatchRange.from_offset))
            .where(MicroBatchRange.micro_batch_id.in_(sent))
            .group_by(MicroBatchRange.topic, MicroBatchRange.topic_partition)
        )
        for topic, partition, offset in begins.tuples():
            if position := ledger.get(Position, (pipeline, output, topic, partition)):
                position.next_offset = offset
        since = _of_replays(pipeline, after) if is_replay else _of_micro_batches(pipeline, sent)
        refused = delete(RefusedRow).where(RefusedRow.pipeline == pipeline, RefusedRow.output == output, since)
        row.refused -= len(ledger.scalars(refused.returning(RefusedRow.id)).all())
        ledger.execute(delete(MicroBatch).where(*of))
    return rows


def _of_micro_batches(pipeline: str, sent: Select[int]) -> ColumnElement[bool]:
    """Return the condition that a refused row is of what was sent in these micro-batches, and of no replay."""
    read = exists().where(
        MicroBatchRange.micro_batch_id.in_(sent),
        MicroBatchRange.topic_id == RefusedRow.topic_id,
        MicroBatchRange.topic_partition == RefusedRow.topic_partition,
        MicroBatchRange.from_offset <= RefusedRow.record_offset,
        MicroBatchRange.until_offset > RefusedRow.record_offset,
    )
    return and_(read, ~_of_replays(pipeline, -1))


def _of_replays(pipeline: str, after: int) -> ColumnElement[bool]:
    """Return the condition that a refused row's record was replayed after this replay."""
    return exists().where(
        of_query(pipeline, REPLAY),
        MicroBatch.batch_id > after,
        Replay.micro_batch_id == MicroBatch.id,
        Replay.topic_id == RefusedRow.topic_id,
        Replay.topic_partition == RefusedRow.topic_partition,
        Replay.record_offset == RefusedRow.record_offset,
    )


def outputs_to(target: str) -> list[tuple[str, str]]:
    """Return the outputs, each as pipeline and name, that go to the target, or may: some have not noted theirs yet."""
    with session() as ledger:
        wanted = select(RowOutput.pipeline, RowOutput.output).where(RowOutput.target.in_((target, "")))
        return list(ledger.execute(wanted).tuples())


def note_sending(pipeline: str, output: str) -> None:
    """Note that the output waits for nothing."""
    with session() as ledger:
        of = (RowOutput.pipeline == pipeline, RowOutput.output == output, RowOutput.waits_for != "")
        ledger.execute(update(RowOutput).where(*of).values(waits_for="", waits_since=None))
