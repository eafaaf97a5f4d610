"""Rows that do not meet an expectation, by coordinates or key, with the value, safe to print."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from include.monitor.text import clean

MOST = 20
"""Most rows that are shown of an expectation."""

_LONGEST = 120


def examples_of(details: Mapping[str, Any]) -> tuple[dict[str, str], ...]:
    """Return the first rows of a result that was requested with `unexpected_index_column_names`.

    Values are texts without control characters and of bounded length; pages escape them like any text.
    """
    rows = details.get("unexpected_index_list") or details.get("partial_unexpected_index_list") or []
    return tuple(
        {
            clean(str(name), _LONGEST): clean("null" if value is None else str(value), _LONGEST)
            for name, value in row.items()
        }
        for row in rows[:MOST]
        if isinstance(row, Mapping)
    )
