"""Values that came from data, made safe to put on a page: no control characters, bounded, readable.

Escaping is the template's business; this is what escaping does not do.
"""

from __future__ import annotations

import json
import unicodedata
from datetime import datetime
from typing import Any

CELL = 240
"""Longest text of a cell, in characters."""

_JOINERS = frozenset("\u200c\u200d")
_SPACES = frozenset("\n\r\t\v\f\u2028\u2029\u0085")
_MARKS_IN_A_ROW = 3


def clean(text: str, limit: int = CELL) -> str:
    """The text without control, bidirectional and unassigned characters, cut to `limit` with an ellipsis.

    Line ends become spaces; more than three combining marks in a row are dropped, as they would paint
    over the neighbouring lines.
    """
    kept: list[str] = []
    marks = 0
    for character in text[: limit * 8]:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if character in _SPACES:
            kept.append(" ")
        elif marks <= _MARKS_IN_A_ROW and (category[0] != "C" or character in _JOINERS):
            kept.append(character)
    shown = "".join(kept).strip()
    return shown if len(shown) <= limit and len(text) <= limit * 8 else shown[: limit - 1].rstrip() + "…"


def number(value: Any) -> str:
    """A count with thousands separators; `–` for one that is missing."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else clean(str(value), 40)
    if isinstance(value, int):
        # Longer ones are no counts, and Python refuses to print the very long.
        return f"{value:,}" if abs(value) < 10**18 else "more than 10¹⁸"
    return f"{value:,.6g}" if abs(value) < 1e18 else clean(str(value), 40)


def cell(value: Any) -> str:
    """Any value of a row as text for a cell."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict):
        pairs = (f"{clean(str(key), 60)}: {cell(item)}" for key, item in list(value.items())[:12])
        return clean(", ".join(pairs))
    if isinstance(value, list | tuple):
        return clean(", ".join(cell(item) for item in value[:20]))
    return clean(str(value)) or "–"


def is_number(value: Any) -> bool:
    """Whether a cell is set in the numbers' way, to the right."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def amount(value: Any) -> float:
    """A value as the length of a bar: finite and not negative, else 0."""
    if not is_number(value):
        return 0.0
    try:
        length = float(value)
    except OverflowError:
        return 1e18
    return min(length, 1e18) if length > 0 else 0.0


def compact(value: Any) -> str:
    """A JSON value in one line, for evidence that is no mapping."""
    return clean(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def interval_words(begin: str, end: str) -> str:
    """`20 November 2026, 05:00 to 06:00 UTC`; the given texts where they are no times."""
    try:
        first, last = datetime.fromisoformat(begin), datetime.fromisoformat(end)
    except (TypeError, ValueError):
        return f"{cell(begin)} to {cell(end)}"
    day = f"{first.day} {first:%B %Y}"
    until = f"{last:%H:%M}" if first.date() == last.date() else f"{last.day} {last:%B %Y}, {last:%H:%M}"
    return f"{day}, {first:%H:%M} to {until} UTC"


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 offset`, `2 offsets`."""
    return f"{number(count)} {noun if count == 1 else plural or noun + 's'}"
