"""Numbers of the fields of Iceberg tables: given once, in the order in which fields appear, and never again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import delete, select
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


def take_over(table: str, name: str, before: Sequence[str]) -> None:
    """Let a renamed column have the first numbers that any of its names was given, the others the later ones.

    The same for the fields inside of it. Doing it twice is once.
    """
    with session() as ledger:
        lock(ledger, f"field numbers {table}")
        wanted = select(FieldNumber).where(FieldNumber.table_name == table).order_by(FieldNumber.number)
        by_path = {each.path: each.number for each in ledger.scalars(wanted)}
        after = dict(by_path)
        for former in before:
            for path in (each for each in by_path if each == former or each.startswith(f"{former}.")):
                new = name + path.removeprefix(former)
                if new not in after:
                    after[new] = after.pop(path)
                elif after[path] < after[new]:
                    after[new], after[path] = after[path], after[new]
        if after != by_path:
            # Numbers are unique, so both rows of a swap are written anew.
            changed = {path for path in {*after, *by_path} if after.get(path) != by_path.get(path)}
            ledger.execute(
                delete(FieldNumber).where(FieldNumber.table_name == table, FieldNumber.path.in_(sorted(changed)))
            )
            ledger.add_all(
                FieldNumber(table_name=table, path=path, number=after[path]) for path in changed if path in after
            )


def _numbers(ledger: Session, table: str) -> dict[str, int]:
    rows = ledger.scalars(select(FieldNumber).where(FieldNumber.table_name == table))
    return {each.path: each.number for each in rows}
