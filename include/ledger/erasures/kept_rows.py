"""Every file that may hold rows of a pipeline's archive: landing, and revisions in whatever state."""

from __future__ import annotations

from sqlalchemy import select

from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.database import session
from include.ledger.intervals.revisions import BuiltRevision, as_built
from include.ledger.intervals.states import RevisionState
from include.ledger.models import LandingFileRow, MicroBatch, Revision
from include.ledger.quarantine import REPLAY
from include.offsets import Fate


def landing_paths(pipeline: str) -> list[str]:
    """Return the paths of the archived landing files that are there, those of replays too."""
    wanted = (
        select(LandingFileRow.path)
        .join(MicroBatch, MicroBatch.id == LandingFileRow.micro_batch_id)
        .where(
            MicroBatch.pipeline == pipeline,
            MicroBatch.query.in_((ARCHIVE, REPLAY)),
            LandingFileRow.fate == Fate.ARCHIVED,
            LandingFileRow.removed_at.is_(None),
        )
        .distinct()
    )
    with session() as ledger:
        return sorted(ledger.scalars(wanted))


def revisions_kept(table: str) -> list[BuiltRevision]:
    """Return the revisions of a table that are not removed."""
    wanted = select(Revision).where(Revision.table_name == table, Revision.state != RevisionState.REMOVED)
    with session() as ledger:
        return [as_built(row) for row in ledger.scalars(wanted.order_by(Revision.table_partition, Revision.id))]
