"""Where archived rows lie at one moment: each row in a landing file or in a registered revision, never in both.

Housekeeping moves rows from the one to the other in one commit. A reader that asked for the two in turn would see a row
twice when that commit falls in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.orm import Session

from include.ledger.archive import holdings, landing_files, removal
from include.ledger.archive.holdings import Holding
from include.ledger.database import session
from include.ledger.lineage import BuiltRevision
from include.offsets import Fate, OffsetRange


@dataclass(frozen=True)
class RowsOfRanges:
    """Where the archived rows of offset ranges lie."""

    paths: Sequence[str]
    """Landing files whose micro-batches overlap the ranges, below the lake."""
    removed: Sequence[OffsetRange]
    """The parts of the ranges whose landing files are removed."""
    holdings: Sequence[Holding]
    """The registered intervals that hold the rows of the removed files."""


@dataclass(frozen=True)
class RowsOfTime:
    """Where the archived rows of a span of event time lie."""

    paths: Sequence[str]
    """Landing files that may hold such rows, below the lake."""
    removed: Sequence[OffsetRange]
    """Offsets of the intervals with such revisions whose landing files are removed."""
    revisions: Mapping[int, Sequence[BuiltRevision]]
    """By interval: the registered revisions of the archive table whose partition's date lies in the span."""
    ranges: Mapping[int, Sequence[OffsetRange]]
    """By interval: its pinned ranges, each with the id of its topic."""


def rows_of_ranges(pipeline: str, table: str, ranges: Sequence[OffsetRange]) -> RowsOfRanges:
    """Return where the archived rows of the ranges lie; `table` is the pipeline's archive table.

    Raises TidemarkError when removed rows lie in no registered interval.
    """
    with _snapshot() as ledger:
        paths = landing_files.covering(ledger, pipeline, ranges, Fate.ARCHIVED)
        removed = removal.removed_in(ledger, pipeline, ranges)
        return RowsOfRanges(paths, removed, holdings.holding(ledger, pipeline, table, removed))


def rows_of_time(pipeline: str, table: str, low: datetime, high: datetime, *, undated: bool = False) -> RowsOfTime:
    """Return where the archived rows with an event time in `[low, high)` lie; `table` is the archive table.

    `undated`: also those without an event time.
    """
    with _snapshot() as ledger:
        paths = landing_files.with_event_times(ledger, pipeline, low, high)
        revisions = holdings.with_dates(ledger, table, low.date(), high.date(), undated=undated)
        ranges = holdings.pinned_ranges(ledger, revisions)
        removed = removal.removed_in(ledger, pipeline, [each for parts in ranges.values() for each in parts])
        return RowsOfTime(paths, removed, revisions, ranges)


@contextmanager
def _snapshot() -> Iterator[Session]:
    """Open a transaction whose statements all see the ledger as the first one does."""
    with session() as ledger:
        ledger.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        yield ledger
