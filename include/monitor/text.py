"""Format values from data for a page: without control characters, of bounded length, readable.

Templates escape HTML; this module removes what escaping leaves in.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

CELL = 240
"""Longest text of a table cell, in characters."""

_JOINERS = frozenset("\u200c\u200d")
_SPACES = frozenset("\n\r\t\v\f\u2028\u2029\u0085")
_MOST = 10**38
"""Spark has no number of more digits, and Python refuses to print integers of more than 4,300."""
_MOST_MARKS = 3
"""Most combining marks in a row: more would be drawn over the lines above and below."""


def is_shown(character: str) -> bool:
    """Return whether a character is no control, bidirectional, other invisible or unassigned one; joiners are shown."""
    return unicodedata.category(character)[0] != "C" or character in _JOINERS


def clean(text: str, limit: int = CELL) -> str:
    """Return the text without control, bidirectional and unassigned characters, cut to `limit` with an ellipsis.

    Line ends become spaces, and surplus combining marks are dropped.
    """
    characters: list[str] = []
    marks = 0
    for character in text[: limit * 8]:
        category = unicodedata.category(character)
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if character in _SPACES:
            characters.append(" ")
        elif marks <= _MOST_MARKS and is_shown(character):
            characters.append(character)
    cleaned = "".join(characters).strip()
    return cleaned if len(cleaned) <= limit and len(text) <= limit * 8 else cleaned[: limit - 1].rstrip() + "…"


def number(value: Any) -> str:
    """Return a number with thousands separators, and all digits before its point; `–` for None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else clean(str(value), 40)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < _MOST else _beyond(value)
    if abs(value) < 1e18:
        return f"{value:,.0f}" if abs(value) >= 1e5 else f"{value:,.6g}"
    return clean(str(value), 40)


def percent(share: float) -> str:
    """Return a share of 1 in percent, rounded neither to none nor to all."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < share < 1 else f"{share * 100:.1f} %"


def plain(value: Any) -> str:
    """Return a value for copying, as an identifier is: a whole number without separators."""
    if not isinstance(value, int) or isinstance(value, bool):
        return cell(value)
    return str(value) if abs(value) < _MOST else _beyond(value)


def _beyond(value: int) -> str:
    return "more than 10³⁸" if value > 0 else "less than −10³⁸"


def cell(value: Any) -> str:
    """Return any value of a row as the text of a table cell."""
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
    """Return whether a value is a number, so that its cell is aligned to the right."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def non_negative(value: Any) -> float:
    """Return a number as a float from 0 to 10¹⁸; 0 for anything negative or not a number."""
    if not is_number(value):
        return 0.0
    try:
        length = float(value)
    except OverflowError:
        return 1e18
    return min(length, 1e18) if length > 0 else 0.0


def one_line_json(value: Any) -> str:
    """Return a text as it is, any other JSON value as JSON in one line; both cleaned."""
    return clean(value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False))


def interval_words(begin: str, end: str) -> str:
    """Return `20 November 2026, 05:00 to 06:00 UTC`; the given texts when they are not times."""
    try:
        first, last = datetime.fromisoformat(begin), datetime.fromisoformat(end)
    except (TypeError, ValueError):
        return f"{cell(begin)} to {cell(end)}"
    day = f"{first.day} {first:%B %Y}"
    until = f"{last:%H:%M}" if first.date() == last.date() else f"{last.day} {last:%B %Y}, {last:%H:%M}"
    return f"{day}, {first:%H:%M} to {until} UTC"


def quantity(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: `1 offset`, `2 offsets`."""
    return f"{number(count)} {noun if count == 1 else plural or noun + 's'}"


def duration(length: float | timedelta | None) -> str:
    """Return a duration in its two largest units: `1.2 s`, `4 min 20 s`, `3 h 5 min`, `2 d 4 h`; `–` for None."""
    if length is None:
        return "–"
    whole = length.total_seconds() if isinstance(length, timedelta) else float(length)
    if abs(whole) < 10:
        return f"{max(whole, 0):.1f} s"
    left = max(round(whole), 0)
    for unit, size, below, smaller in (("d", 86400, 3600, "h"), ("h", 3600, 60, "min"), ("min", 60, 1, "s")):
        if left >= size:
            rest = left % size // below
            return f"{left // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{left} s"


def markdown_list(lines: Iterable[str]) -> str:
    """Return lines as a list in Markdown, in which their content is only text.

    Each is code by itself: Airflow's pages write a block of code as one line.
    """
    return "\n".join(f"- `{shown}`" for line in lines if (shown := clean(line, 2000).replace("`", "'").strip()))
