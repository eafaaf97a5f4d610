"""Renamed columns: under which name a table shows a column, until all of its registered files have the new one.

Readers of the Hive catalog, and of plain files, find columns by their names. So a table shows a column by its former
name as long as a registered file lacks the new one, and what is built meanwhile has both. Then the table is changed in
one step, and no reader ever finds nulls (`include/decisions/029-a-rename-waits-for-its-files.md`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from include.catalog import storage
from include.catalog.columns import Columns, columns_of_json, declared_columns, named
from include.errors import UsageError
from include.ledger.columns.renames import lacking, retired_names
from include.pipelines.spec import Pipeline


def by_any_name(pipeline: Pipeline, path: str) -> set[str]:
    """Return a path inside an archive row by each name that its column has or had."""
    column, *inner = path.split(".", 1)
    return {".".join((name, *inner)) for name in (column, *pipeline.archive.formerly.get(column, ()))}


def shown_names(pipeline: Pipeline, table: str, stored: Columns | None = None) -> dict[str, str]:
    """Return the renamed columns that a table still shows by a former name, with that name.

    `stored`: its columns in the catalog, which are looked up else.
    """
    if not (formerly := pipeline.formerly(table)):
        return {}
    known = stored or stored_columns(table)
    names = {each.name for each in known.fields} if known else set()
    there = {
        name: next((each for each in before if each in names or not known), "")
        for name, before in formerly.items()
        if name not in names
    }
    wanted = {name: before for name, before in there.items() if before}
    waiting = lacking(table, wanted) if wanted else set()
    return {name: before for name, before in wanted.items() if name in waiting}


def stored_columns(table: str) -> Columns | None:
    """Return a table's columns in the catalog; None without the table. Raise ServiceUnreachable."""
    stored = storage(table)
    return columns_of_json(stored.columns, stored.partition_columns) if stored is not None else None


def shown_columns(pipeline: Pipeline, table: str) -> Columns:
    """Return the declared columns of a table by the names that it shows."""
    return named(declared_columns(pipeline, table), shown_names(pipeline, table))


def written_columns(pipeline: Pipeline, table: str) -> Columns:
    """Return the columns of files that are written now: those declared, and those of a rename that waits twice."""
    declared, shown = declared_columns(pipeline, table), shown_names(pipeline, table)
    again = [replace(each, name=shown[each.name]) for each in declared.fields if each.name in shown]
    return Columns((*declared.fields, *again), declared.partition_by)


def check_renames(pipeline: Pipeline, table: str, stored: Columns) -> None:
    """Raise UsageError for a rename that would give one column's values for another's.

    That is one to a name that the table has, from one that it does not have, and a column by a name that another one
    had before: older files have it. Also for a rename that is no longer declared: the column's rows that landed by the
    other name would be read as null.
    """
    formerly, names = pipeline.formerly(table), {each.name for each in stored.fields}
    declared = [each.name for each in declared_columns(pipeline, table).fields]
    for name, before in formerly.items():
        both = [each for each in before if each in names]
        if name in names and both:
            raise _refused(pipeline, f"lake.{table} has {name} beside {both[0]}, which is to become {name}")
        if name not in names and not both:
            raise _refused(pipeline, f"lake.{table} has no column {' or '.join(before)} that could become {name}")
    new, has_landed = [each for each in declared if each not in names], table == pipeline.table
    if not (new or has_landed):
        return
    retired = retired_names(pipeline.name, table)
    for name in new:
        of_others = retired.get(name, set()) - set(formerly.get(name, ()))
        if of_others:
            raise _refused(
                pipeline, f"files of lake.{table} have values of {sorted(of_others)[0]} by its former name {name}"
            )
    # Registered files have every name that the table shows; landing files have one.
    for name in declared if has_landed else ():
        if lost := _names_of(name, retired) - {name, *formerly.get(name, ())}:
            raise _undeclared(pipeline, name, sorted(lost), set(declared))


def _names_of(name: str, retired: Mapping[str, Collection[str]]) -> set[str]:
    """Return all names that a column has or had: `retired` has those of before, each with later ones."""
    known, left = {name}, [name]
    while left:
        one = left.pop()
        others = {*retired.get(one, ()), *(before for before, later in retired.items() if one in later)} - known
        known |= others
        left += others
    return known


def _undeclared(pipeline: Pipeline, name: str, lost: Sequence[str], declared: Collection[str]) -> UsageError:
    """Return the error of a column whose other names, which files have, are not declared as its former ones."""
    why = f"files of lake.{pipeline.table} have {name} by the name {' or '.join(lost)}"
    if others := [each for each in lost if each in declared]:
        return _refused(pipeline, f"{why}, and {others[0]} is declared as another column")
    before = [f'"{each}"' for each in (*pipeline.archive.formerly.get(name, ()), *lost)]
    listed = before[0] if len(before) == 1 else f"({', '.join(before)})"
    instead = " and take `delta` out: an archive whose columns were renamed is no Delta table"
    return UsageError(
        f"{why}, which `renamed` does not list: their values would be read as null; nothing was built",
        remedy=f'declare renamed={{"{name}": {listed}}}{instead if pipeline.archive.delta else ""}',
        pipeline=pipeline.name,
    )


def _refused(pipeline: Pipeline, why: str) -> UsageError:
    return UsageError(
        f"{why}; nothing was built", remedy="declare a name that no column of it has or had", pipeline=pipeline.name
    )
