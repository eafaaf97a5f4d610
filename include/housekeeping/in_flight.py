"""Jobs in flight: which landing files a stream or a replay may be writing, and may still commit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from include import lake
from include.lake.scan import COMPACTED, Folder
from include.ledger import quarantine
from include.ledger.archive.micro_batches import ARCHIVE, CommittedBatch, last_batch
from include.ledger.streams import writers

_BATCH = re.compile(r"[0-9a-f]{8}-\d{9}-(\d+)")
"""Name of a micro-batch's folder; it ends in the fencing token of the driver that writes it."""

_NUMBERED = re.compile(r"([0-9a-f]{8})-(\d{9})(?!\d)")
"""How names of micro-batches' folders and quarantine files begin: with the query's id and the micro-batch's number."""


@dataclass(frozen=True)
class InFlight:
    """What is being written and not committed yet."""

    since: datetime
    """Files that changed since then may belong to a job that is under way."""
    token: int | None
    """Fencing token of the live driver; None without one."""
    is_replaying: bool
    """Whether a replay is under way."""
    last: CommittedBatch | None
    """The last micro-batch of the archive query that was committed."""

    @classmethod
    def of(cls, pipeline: str) -> InFlight:
        """Return what is under way in a pipeline now."""
        now = datetime.now(UTC)
        writer = writers.live_writer(pipeline)
        return cls(
            min(now, writer.acquired_at) if writer else now,
            writer.token if writer else None,
            quarantine.is_being_decided(pipeline),
            last_batch(pipeline, ARCHIVE),
        )

    def has_committed(self, location: str) -> bool:
        """Return whether a folder or file is, by its name, of a micro-batch that was committed before this was read.

        Nothing in it can be committed any more, whoever writes there. A query skips a micro-batch that is committed,
        so only a driver that lost its lease may still write one, and the ledger takes neither its token nor a number
        twice. What was committed of it is in the ledger when this is read; whoever asks the ledger afterwards, as
        before each deletion, finds all files that are needed. Replays give names without a micro-batch's number;
        compaction and erasures exclude those who ask here.
        """
        if self.last is None:
            return False
        # A quarantine file that is being merged has the same name after a dot.
        named = _NUMBERED.match([*lake.below_lake(location).split("/"), "", "", ""][2].removeprefix("."))
        return named is not None and named[1] == self.last.query_id[:8] and int(named[2]) <= self.last.batch_id

    def has_left(self, folder: Folder, before: datetime) -> bool:
        """Return whether nobody who is under way needs a folder or file that last changed before then."""
        if self.has_committed(folder.location):
            return folder.newest < before
        return folder.newest < min(before, self.since) and not self.may_hold(folder)

    def may_hold(self, folder: Folder) -> bool:
        """Return whether a folder or file may belong to a job that is under way, and may still be committed."""
        if self.has_committed(folder.location):
            return False
        name = _name_in_landing(folder.location)
        if name.startswith("replay-") and self.is_replaying:
            return True
        if self.token is not None and _BATCH.fullmatch(name):
            return self.driver_may_write(folder.location)
        return folder.newest >= self.since

    def driver_may_write(self, location: str) -> bool:
        """Return whether a folder or file may be the live driver's, by its name."""
        if self.has_committed(location):
            return False
        name = _name_in_landing(location)
        if name == COMPACTED or name.startswith("replay-"):
            return False
        batch = _BATCH.fullmatch(name)
        return self.token is not None and (batch is None or int(batch[1]) >= self.token)


def _name_in_landing(location: str) -> str:
    """Return the name of a folder of the landing; empty for what lies in the quarantine."""
    parts = lake.below_lake(location).split("/")
    return parts[2] if parts[0] == "landing" else ""
