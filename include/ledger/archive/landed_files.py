"""The archive's landing files in the order of their commits: what a stream over them asks for.

Micro-batch numbers grow in the order of commits within a pipeline (each commit holds the lease), so a reader
that has seen all up to one number misses none by asking for what follows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import func, select

from include.ledger.archive.micro_batches import ARCHIVE, may_hold_events
from include.ledger.database import session
from include.ledger.models import LandingFile, MicroBatch

_END_OF_TIME = datetime(9999, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class CommittedFile:
    """A landing file with archived rows."""

    micro_batch: int
    path: str
    """Below the lake."""
    rows: int
    is_removed: bool
    """Whether housekeeping has removed it: its rows are in registered revisions."""


def before_events(pipeline: str, since: datetime) -> int:
    """The number before the first micro-batch with an event at `since` or later, removed files left out.

    The last number when there is none yet; 0 for a pipeline without commits.
    """
    of_archive = (MicroBatch.pipeline == pipeline, MicroBatch.query == ARCHIVE)
    with session() as ledger:
        first = ledger.scalar(
            select(func.min(MicroBatch.id))
            .join(LandingFile, LandingFile.micro_batch_id == MicroBatch.id)
            .where(
                *of_archive,
                LandingFile.outcome == "archived",
                LandingFile.removed_at.is_(None),
                may_hold_events(since, _END_OF_TIME),
            )
        )
        last = ledger.scalar(select(func.max(MicroBatch.id)).where(*of_archive))
    return first - 1 if first is not None else last or 0


def committed_until(pipeline: str, after: int, most_rows: int | None) -> int:
    """The number of the last micro-batch behind `after` so that at most so many rows lie between, but one at least.

    `after` when nothing was committed since.
    """
    rows = func.sum(MicroBatch.rows).over(order_by=MicroBatch.id)
    counted = (
        select(MicroBatch.id, rows.label("so_far"), func.row_number().over(order_by=MicroBatch.id).label("place"))
        .where(MicroBatch.pipeline == pipeline, MicroBatch.query == ARCHIVE, MicroBatch.id > after)
        .subquery()
    )
    wanted = select(func.max(counted.c.id))
    if most_rows is not None:
        wanted = wanted.where((counted.c.so_far <= most_rows) | (counted.c.place == 1))
    with session() as ledger:
        return ledger.scalar(wanted) or after


def committed_files(pipeline: str, after: int, until: int) -> list[CommittedFile]:
    """Files with archived rows of the micro-batches behind `after` up to and with `until`, in order."""
    wanted = (
        select(LandingFile.micro_batch_id, LandingFile.path, LandingFile.rows, LandingFile.removed_at.is_not(None))
        .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
        .where(
            MicroBatch.pipeline == pipeline,
            MicroBatch.query == ARCHIVE,
            MicroBatch.id > after,
            MicroBatch.id <= until,
            LandingFile.outcome == "archived",
        )
        .order_by(LandingFile.id)
    )
    with session() as ledger:
        return [CommittedFile(*row) for row in ledger.execute(wanted)]
