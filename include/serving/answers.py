"""Queries of a served view for the pages: a bounded number of rows in one snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from psycopg2 import DataError
from psycopg2.extensions import PYDATE, PYDATETIMETZ, cursor, new_type, register_type

from include.errors import TidemarkError, UsageError, one_line
from include.serving import transaction
from include.serving.live_table import new_generation
from include.serving.shape import Shape, quoted

_Read = Callable[[str | bytes | None, cursor], Any]


def _or_text(of_psycopg: _Read) -> _Read:
    def read(value: str | bytes | None, asked: cursor) -> Any:
        if value in ("infinity", "-infinity"):
            return value
        try:
            return of_psycopg(value, asked)
        except (ValueError, OverflowError, DataError):
            return value

    return read


_MOMENTS = (
    new_type((1082,), "DATE_OR_TEXT", _or_text(PYDATE)),
    new_type((1184,), "TIME_OR_TEXT", _or_text(PYDATETIMETZ)),
)
"""How dates and times with a zone, the numbers of PostgreSQL's types, are read: as text outside Python's calendar."""


@dataclass(frozen=True)
class Question:
    """Which rows are asked for."""

    column: str
    key: str | None
    """The value of the column; None for the windows that began within the span before the newest, or all of a total."""
    span: timedelta
    rows: int


@dataclass(frozen=True)
class Answer:
    """The rows that were found, and until when the view is proved."""

    rows: tuple[dict[str, Any], ...]
    is_cut: bool
    proved_until: datetime | None
    proved_below: tuple[tuple[str, int, int], ...]
    """Topic, topic partition, offset."""


def serves(shape: Shape) -> bool:
    """Return whether PostgreSQL serves the view yet. Raises ServiceUnreachable."""
    with transaction("./tidemark doctor --repair") as asked:
        asked.execute("SELECT to_regclass(%s)", [f"live.{shape.table}"])
        return asked.fetchone() != (None,)


def ask(shape: Shape, question: Question) -> Answer:
    """Return the rows of the newest windows first, and in a window the largest by the first measure first.

    Raises UsageError for a wrong value, TidemarkError while the view is of a declaration without one of the columns.
    """
    where, values = "TRUE", list[object]()
    if question.key is not None:
        where, values = f"{quoted(question.column)} = %s", [question.key]
    elif not shape.is_total:
        where = f"{quoted(shape.start)} >= %s"
    largest = f"{quoted(shape.measures[0].name)} DESC NULLS LAST"
    order = largest if shape.is_total else f"{quoted(shape.start)} DESC, {largest}"
    with transaction("./tidemark doctor --repair") as asked:
        for each in _MOMENTS:
            register_type(each, asked)
        asked.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL statement_timeout = '20s'")
        if question.key is None and not shape.is_total:
            newest = "SELECT max(window_start) - %s FROM proved.tidemark_windows WHERE table_name = %s"
            asked.execute(newest, [question.span, shape.table])
            values = [*(asked.fetchone() or (None,))]
        try:
            asked.execute(
                f"SELECT * FROM live.{quoted(shape.table)} WHERE {where} ORDER BY {order} LIMIT {question.rows + 1}",
                values,
            )
        except DataError as error:
            raise UsageError(one_line(str(error)), remedy=f"a value of {question.column}") from None
        names = [each.name for each in asked.description or ()]
        if unknown := sorted({each.name for each in shape.columns} - {*names}):
            raise TidemarkError(
                f"live.{shape.table} is of another declaration, without {', '.join(unknown)}",
                remedy=new_generation(shape),
                pipeline=shape.pipeline,
            )
        rows = [dict(zip(names, row, strict=True)) for row in asked.fetchall()]
        at = "SELECT complete_until, offsets FROM proved.tidemark_positions WHERE table_name = %s"
        asked.execute(at, [shape.table])
        until, offsets = asked.fetchone() or (None, {})
    below = sorted((topic, int(n), at) for topic, each in offsets.items() for n, at in each.items())
    return Answer(tuple(rows[: question.rows]), len(rows) > question.rows, until, tuple(below))
