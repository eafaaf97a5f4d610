"""Names of table partitions in the ledger that hold an erased key, and how they are removed."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from include.errors import TidemarkError
from include.ledger.database import session
from include.ledger.erasures.coordinates import lock_erasing
from include.ledger.erasures.to_forget import NamesToForget
from include.ledger.erasures.unfinished import Begun
from include.ledger.intervals.revisions import ERASED
from include.ledger.intervals.states import RETIRED, RevisionState
from include.ledger.models import AlertRow, Attempt, Build, IntervalRow, Revision

_GONE = {str(each) for each in (*RETIRED, RevisionState.REMOVED)}
"""States of revisions that nobody reads."""


def parts_before(table: str, columns: Sequence[str], last_build: int) -> set[str]:
    """Return the parts, e.g. `zip=10001`, that partitions of revisions up to a build have for some columns."""
    wanted = select(Revision.table_partition).where(Revision.table_name == table, _before(last_build)).distinct()
    with session() as ledger:
        parts = {part for partition in ledger.scalars(wanted) for part in partition.split("/")}
    return {each for each in parts if each.partition("=")[0] in columns}


def forget_names(erasure: Begun, table: str, names: NamesToForget) -> int:
    """Remove the names from the ledger in one transaction, and return how many revisions had one.

    A partition that got rows of the same key since the erasure began keeps its name. Raises TidemarkError for a
    revision with such a name that readers may still find.
    """
    with session() as ledger:
        # A key may name many years of partitions.
        ledger.execute(text("SET LOCAL statement_timeout = 0"))
        # Before the rows, which builds and registrations lock in another order.
        lock_erasing(ledger, erasure.pipeline)
        in_order = (Revision.table_partition, Revision.id)
        wanted = select(Revision).where(Revision.table_name == table).order_by(*in_order).with_for_update()
        named = [row for row in ledger.scalars(wanted) if names.named_in(row.table_partition)]
        old = [row for row in named if row.build_id is None or row.build_id <= erasure.last_build]
        for row in old:
            _check_gone(row)
        instead = _numbered({part for row in old for part in row.table_partition.split("/") if names.named_in(part)})
        for row in old:
            _rename(row, {part: f"{part.partition('=')[0]}{ERASED}{erasure.id}.{n})" for part, n in instead.items()})
        fresh = {row.interval_id for row in named} - {row.interval_id for row in old}
        fresh |= {row.interval_id for row in named if row not in old}
        _clean_intervals(ledger, erasure, {*erasure.intervals, *(row.interval_id for row in old)}, fresh, names)
        alerts = select(AlertRow).where(AlertRow.pipeline == erasure.pipeline).with_for_update()
        for alert in ledger.scalars(alerts):
            _clean(alert, names, AlertRow.alert)
        return len(old)


def renamed_by(erasure: int, table: str) -> int:
    """Return how many revisions an erasure gave another partition name."""
    wanted = select(func.count()).where(
        Revision.table_name == table, Revision.table_partition.contains(f"{ERASED}{erasure}.", autoescape=True)
    )
    with session() as ledger:
        return ledger.scalar(wanted) or 0


def is_any_renamed(table: str) -> bool:
    """Return whether an erasure gave a revision of a table another partition name."""
    wanted = select(Revision.id).where(Revision.table_name == table, Revision.table_partition.contains(ERASED))
    with session() as ledger:
        return ledger.scalar(wanted.limit(1)) is not None


def values_renamed_by(erasure: int, table: str) -> int:
    """Return how many values of a partition column an erasure replaced; of several such columns, the most of one."""
    wanted = select(Revision.table_partition).where(
        Revision.table_name == table, Revision.table_partition.contains(f"{ERASED}{erasure}.", autoescape=True)
    )
    with session() as ledger:
        parts = {part for partition in ledger.scalars(wanted.distinct()) for part in partition.split("/")}
    by_column = Counter(part.partition("=")[0] for part in parts if f"{ERASED}{erasure}." in part)
    return max(by_column.values(), default=0)


def _before(last_build: int) -> ColumnElement[bool]:
    return Revision.build_id.is_(None) | (Revision.build_id <= last_build)


def _check_gone(row: Revision) -> None:
    if row.state not in _GONE:
        raise TidemarkError(
            f"revision {row.id} of {row.table_name} names an erased key and is {row.state}; the erasure is unfinished",
            remedy="./tidemark doctor --repair, then ./tidemark erase PIPELINE --resume",
        )


def _numbered(parts: Collection[str]) -> dict[str, int]:
    """Return a number for each part, in random order: a sorted one would reveal something of the keys."""
    listed = sorted(parts)
    secrets.SystemRandom().shuffle(listed)
    return {part: number for number, part in enumerate(listed, 1)}


def _rename(row: Revision, instead: Mapping[str, str]) -> None:
    """Give a revision's partition and location other names: its directory is gone, and its facts stay."""
    before = row.table_partition
    row.table_partition = "/".join(instead.get(part, part) for part in before.split("/"))
    row.location = row.location.replace(before, row.table_partition)


def _clean_intervals(
    ledger: Session, erasure: Begun, intervals: Collection[int], fresh: Collection[int], names: NamesToForget
) -> None:
    """Clean builds and verdicts of intervals; for intervals with fresh rows of a key, only the earlier builds."""
    settled = [each for each in intervals if each not in fresh]
    # Locked before they are read, because an attempt that ends writes them, too.
    attempts = select(Attempt).where(Attempt.interval_id.in_(settled)).options(undefer(Attempt.verdict))
    for attempt in ledger.scalars(attempts.order_by(Attempt.id).with_for_update()):
        _clean(attempt, names, Attempt.verdict)
    builds = select(Build).where(Build.interval_id.in_(list(intervals)))
    for build in ledger.scalars(builds.order_by(Build.id).with_for_update()):
        if build.id <= erasure.last_build or build.interval_id not in fresh:
            _clean(build, names, Build.findings, Build.changes)
    of_ids = select(IntervalRow).where(IntervalRow.id.in_(settled)).options(undefer(IntervalRow.verdict))
    for interval in ledger.scalars(of_ids.order_by(IntervalRow.id).with_for_update(key_share=True)):
        _clean(interval, names, IntervalRow.verdict)


def _clean(row: object, names: NamesToForget, *columns: InstrumentedAttribute[Any]) -> None:
    for column in columns:
        value = getattr(row, column.key)
        if value is not None and names.named_in(json.dumps(value, ensure_ascii=False)):
            setattr(row, column.key, names.without(value))
