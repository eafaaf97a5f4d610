"""Queries that people run on the ledger themselves, in read-only transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from psycopg2 import DataError, InternalError, NotSupportedError, ProgrammingError

from include.errors import UsageError, one_line
from include.ledger.connection import reading


@dataclass(frozen=True)
class Answer:
    """What a query found."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def query(statement: str) -> Answer:
    """Return what a SELECT finds, in a transaction that PostgreSQL keeps from writing.

    Raises UsageError when the statement is not valid, would change something or returns nothing.
    """
    with reading() as ledger:
        try:
            ledger.execute(statement)
        except (ProgrammingError, DataError, InternalError, NotSupportedError) as error:
            raise UsageError(one_line(str(error)), remedy="correct the query; the ledger is only read here") from error
        if ledger.description is None:
            raise UsageError("not a query: it returns no rows", remedy="write a SELECT")
        return Answer(tuple(column.name for column in ledger.description), ledger.fetchall())
