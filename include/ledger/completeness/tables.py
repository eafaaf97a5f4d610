"""Which intervals have which tables: noted when an interval is registered, so that nobody asks all intervals for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from include.ledger.database import session
from include.ledger.models import Build, DeclaredTables, IntervalRow, TableBegin


def note_published(ledger: Session, build: Build, tables: Iterable[str], *, without: Collection[str] = ()) -> None:
    """Note that all changes of a build were made, and that it has registered revisions of these tables.

    `without`: tables that were no longer declared when that was done. The interval does not have them.
    """
    build.published_at = func.now()
    interval = ledger.get_one(IntervalRow, build.interval_id)
    later = (Build.interval_id == interval.id, Build.published_at.is_not(None), Build.id > build.id)
    if ledger.scalar(select(Build.id).where(*later).limit(1)) is None:
        interval.declared = (
            None
            if build.columns is None
            else _declared(ledger, interval.pipeline, sorted(build.columns.keys() - set(without)))
        )
    for table in sorted(set(tables)):
        begin = insert(TableBegin).values(pipeline=interval.pipeline, table_name=table, first_begin=interval.from_time)
        earlier = begin.on_conflict_do_update(
            index_elements=["pipeline", "table_name"],
            set_={"first_begin": interval.from_time},
            where=TableBegin.first_begin > interval.from_time,
        )
        ledger.execute(earlier)


def _declared(ledger: Session, pipeline: str, tables: list[str]) -> int:
    """Return the number of a set of tables; a pipeline has few. Two of the same tables would do no harm."""
    known = select(DeclaredTables.id).where(DeclaredTables.pipeline == pipeline, DeclaredTables.tables == tables)
    number = ledger.scalar(known.order_by(DeclaredTables.id).limit(1))
    if number is None:
        row = DeclaredTables(pipeline=pipeline, tables=tables)
        ledger.add(row)
        ledger.flush()
        number = row.id
    return number


def tables_with_rows() -> dict[str, list[str]]:
    """Return the tables that ever had registered rows, by pipeline, whether these are still declared or not."""
    tables: dict[str, list[str]] = {}
    with session() as ledger:
        known = select(TableBegin.pipeline, TableBegin.table_name)
        for pipeline, table in ledger.execute(known.order_by(TableBegin.pipeline, TableBegin.table_name)):
            tables.setdefault(pipeline, []).append(table)
    return tables
