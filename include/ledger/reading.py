"""Queries that people ask of the ledger themselves, in read-only transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DataError, InternalError, NotSupportedError, ProgrammingError

from include.errors import UsageError, one_line
from include.ledger.database import session


@dataclass(frozen=True)
class Answer:
    """What a query found."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def query(statement: str) -> Answer:
    """Return what a SELECT finds, in a transaction that PostgreSQL keeps from writing.

    Raises UsageError when the statement is not valid, would change something or returns nothing.
    """
    with session() as ledger:
        ledger.execute(text("SET TRANSACTION READ ONLY"))
        try:
            # Not as text(), which would take each `:name` for a parameter; the driver would take `%` for one.
            result = ledger.connection().exec_driver_sql(statement.replace("%", "%%"))
        except (ProgrammingError, DataError, InternalError, NotSupportedError) as error:
            said = one_line(str(error.orig))
            raise UsageError(said, remedy="correct the query; the ledger is only read here") from error
        if not result.returns_rows:
            raise UsageError("not a query: it returns no rows", remedy="write a SELECT")
        return Answer(tuple(result.keys()), [tuple(row) for row in result])
