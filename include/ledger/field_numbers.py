"""Numbers of the fields of Iceberg tables: given once, in the order in which fields appear, and never again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from include.ledger.database import lock, session
from include.ledger.models import FieldNumber


def numbers(table: str) -> dict[str, int]:
    """Return the numbers of a table's fields by their paths."""
    with session() as ledger:
        return _numbers(ledger, table)


def give(table: str, paths: Sequence[str], known: Mapping[str, int], last: int = 0) -> dict[str, int]:
    """Give numbers to the paths that have none, and return all numbers of the table.

    `known` are numbers by path that are in use elsewhere: a path takes its number over if that is free. Other numbers
    are larger than all of them, and than `last`.
    """
    with session() as ledger:
        lock(ledger, f"field numbers {table}")
        given = _numbers(ledger, table)
        taken = set(given.values())
        new = {path: number for path, number in known.items() if path not in given and number not in taken}
        highest = max([last, *taken, *known.values()], default=0)
        without = [path for path in paths if path not in given and path not in new]
        new.update({path: highest + n for n, path in enumerate(without, 1)})
        ledger.add_all(FieldNumber(table_name=table, path=path, number=number) for path, number in new.items())
        return {**given, **new}


def _numbers(ledger: Session, table: str) -> dict[str, int]:
    rows = ledger.scalars(select(FieldNumber).where(FieldNumber.table_name == table))
    return {each.path: each.number for each in rows}
