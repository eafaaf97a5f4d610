"""Tables of which no file was ever registered, and builds that wait to be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, or_, select

from include.ledger.database import session
from include.ledger.intervals.states import PUBLISHABLE, RevisionState
from include.ledger.models import Build, IntervalRow, Revision
from include.times import Interval


@dataclass(frozen=True)
class BuiltFiles:
    """The files of a build in one table partition, as they were written."""

    interval: Interval
    table: str
    partition: str
    columns: Mapping[str, str] | None
    """With their types; None where earlier code noted none."""
    names: tuple[str, ...]


def had_files(table: str) -> bool:
    """Return whether a file of a table was ever registered, by whichever pipeline, or is being registered."""
    is_read = or_(Revision.registered_at.is_not(None), Revision.state == RevisionState.REGISTERING)
    with session() as ledger:
        return ledger.scalar(select(Revision.id).where(Revision.table_name == table, is_read).limit(1)) is not None


def files_of_build(build: int) -> list[BuiltFiles]:
    """Return the files of a build."""
    return _files(Build.id == build)


def waiting_files(tables: Collection[str]) -> list[BuiltFiles]:
    """Return the files of all builds of tables that may be published."""
    return _files(Revision.table_name.in_(tables), Revision.state.in_(PUBLISHABLE))


def _files(*conditions: ColumnElement[bool]) -> list[BuiltFiles]:
    wanted = (
        select(IntervalRow.from_time, IntervalRow.to_time, Revision, Build.columns)
        .select_from(Revision)
        .join(IntervalRow, IntervalRow.id == Revision.interval_id)
        .join(Build, Build.id == Revision.build_id)
        .where(*conditions)
        .order_by(Revision.table_name, Revision.table_partition)
    )
    with session() as ledger:
        return [
            BuiltFiles(
                Interval(begin, end),
                row.table_name,
                row.table_partition,
                (columns or {}).get(row.table_name),
                tuple(row.files),
            )
            for begin, end, row, columns in ledger.execute(wanted).tuples()
        ]
