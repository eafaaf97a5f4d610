"""Attempts: runs of a pinned interval, what each found, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, text

from include.errors import TidemarkError
from include.ledger.archive.micro_batches import Fates
from include.ledger.database import session
from include.ledger.intervals.pins import PinnedInterval, pinned_of
from include.ledger.models import (
    Attempt,
    IntervalRange,
    IntervalRow,
)
from include.offsets import TopicPartition


@dataclass(frozen=True)
class AttemptSpec:
    """What an attempt's jobs need to know."""

    id: int
    pinned: PinnedInterval
    source: str
    code_version: str
    verdict: dict[str, Any]


@contextmanager
def publishing_delta(pipeline: str) -> Iterator[None]:
    """Wait for another that pins the pipeline's Delta view, and keep others waiting meanwhile."""
    with session() as ledger:
        ledger.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"delta:{pipeline}"})
        yield


def begin_attempt(pinned: PinnedInterval, *, run_by: str, code_version: str, source: str) -> int:
    """Note a run of the interval; its id."""
    with session() as ledger:
        row = Attempt(interval_id=pinned.id, run_by=run_by, code_version=code_version, source=source, verdict={})
        ledger.add(row)
        ledger.flush()
        return row.id


def load_attempt(attempt: int) -> AttemptSpec:
    """An attempt with its pinned interval. Raises TidemarkError when there is none of that id."""
    with session() as ledger:
        row = ledger.get(Attempt, attempt)
        if row is None:
            raise TidemarkError(f"the ledger has no attempt {attempt}", remedy="run the interval again")
        pinned = pinned_of(ledger, ledger.get_one(IntervalRow, row.interval_id))
        return AttemptSpec(row.id, pinned, row.source, row.code_version, dict(row.verdict or {}))


def note_findings(attempt: int, **findings: Any) -> None:
    """Add to what an attempt has found so far."""
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt, with_for_update=True)
        row.verdict = {**(row.verdict or {}), **findings}


def note_fates(
    pinned: PinnedInterval, fates: Mapping[TopicPartition, Fates], gaps: Mapping[TopicPartition, int]
) -> None:
    """Write the fate of every offset of an interval beside its ranges."""
    with session() as ledger:
        for each in pinned.ranges:
            tp = each.topic_partition
            row = ledger.get_one(IntervalRange, (pinned.id, tp.topic, tp.partition))
            found = fates.get(tp, Fates())
            row.archived, row.empty, row.quarantined = found.archived, found.empty, found.quarantined
            row.gaps = gaps[tp]


def end_attempt(attempt: int, exit_code: int, state: str, verdict: dict[str, Any]) -> None:
    """Note how an attempt ended, and the interval's state and verdict."""
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt)
        row.ended_at, row.exit_code = func.now(), exit_code
        interval = ledger.get_one(IntervalRow, row.interval_id)
        interval.verdict = verdict
        if state:
            interval.state = state


def close_attempt(attempt: int, exit_code: int) -> None:
    """Note that an attempt ended which has nothing to say about its interval: a rebuild."""
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt)
        row.ended_at, row.exit_code = func.now(), exit_code
