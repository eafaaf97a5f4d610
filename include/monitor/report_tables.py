"""Tables of an interval's page: rows as they are shown, and how many were left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from include.monitor.report_grid import grid_picture
from include.monitor.report_parts import FATES
from include.monitor.text import cell, clean, is_number, non_negative, number, plain

MAX_ROWS = 200
"""How many rows of a table the page shows; what is left out is counted below it."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table and how it is set."""

    text: str
    numeric: bool = False


@dataclass(frozen=True)
class Table:
    """Rows as the page shows them, and how many were left out."""

    columns: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    left_out: int


def table(
    columns: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    *,
    left_out: int = 0,
    coordinates: Sequence[str] = (),
) -> Table:
    """Return a table of at most MAX_ROWS rows; a column of numbers is aligned to the right.

    Numbers of the `coordinates` columns are written without separators, ready to be copied.
    """
    given = [list(row)[: len(columns)] for row in rows]
    given = [row + [None] * (len(columns) - len(row)) for row in given]
    numeric = [
        any(is_number(row[i]) for row in given) and all(row[i] is None or is_number(row[i]) for row in given)
        for i in range(len(columns))
    ]
    return Table(
        tuple(Cell(clean(str(name), 60).replace("_", " "), numeric[i]) for i, name in enumerate(columns)),
        tuple(
            tuple(
                Cell(plain(value) if columns[i] in coordinates else cell(value), numeric[i])
                for i, value in enumerate(row)
            )
            for row in given[:MAX_ROWS]
        ),
        max(len(given) - MAX_ROWS, 0) + left_out,
    )


def section_table(section: dict[str, Any]) -> dict[str, Any]:
    """Return a section of the report: title, note, its table, how many rows there are, and its grid, if any."""
    truncated = int(non_negative(section.get("truncated")))
    columns, keys = section.get("columns") or [], section.get("keys") or []
    shown = table(columns, section.get("rows") or [], left_out=truncated, coordinates=keys)
    return {
        "title": clean(str(section.get("title") or "Findings"), 120),
        "note": clean(str(section.get("note") or ""), 400),
        "table": shown,
        "total": number(len(section.get("rows") or []) + truncated),
        "grid": grid_picture(section.get("grid")),
    }


def ranges_table(ranges: list[dict[str, Any]]) -> Table:
    """Return the pinned ranges with the fates of their offsets."""
    columns = ("topic", "topic partition", "from offset", "until offset", "offsets", *FATES)
    rows = [
        (
            str(r.get("topic", "")),
            r.get("partition"),
            r.get("from_offset"),
            r.get("until_offset"),
            int(non_negative(r.get("until_offset"))) - int(non_negative(r.get("from_offset"))),
            *(r.get(fate) for fate in FATES),
        )
        for r in ranges
    ]
    return table(columns, rows, coordinates=("topic partition", "from offset", "until offset"))


def revision_differences_tables(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the rows that a rerun changed per table partition, and the first of them by key."""
    counts = ("added", "removed", "changed")
    names = ("table", "partition", "from_revision", "to_revision")
    rows = [(*(entry.get(name) or "–" for name in names), *(entry.get(count) for count in counts)) for entry in entries]
    examples = [
        (str(entry.get("table", "")), str(example.get("change", "")), str(example.get("key", "")))
        for entry in entries
        for example in entry.get("examples") or []
    ]
    return {
        "table": table((*names[:2], "before", "now", *counts), rows),
        "examples": table(("table", "change", "row"), examples),
    }


def registered_rows(entries: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the registered table partitions as they are shown, at most MAX_ROWS."""
    names = ("table", "partition", "revision", "content_hash", "location")
    return [
        {**{name: cell(entry.get(name)) for name in names}, "rows": number(entry.get("rows"))}
        for entry in entries[:MAX_ROWS]
    ]
