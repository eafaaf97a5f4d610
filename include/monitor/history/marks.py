"""What changed between the intervals of a table: its code, and its columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from include.monitor.history.plot import Mark

_LONGEST = 40
"""Longest type that a mark names, in characters; longer ones are structs, which changed somewhere inside."""


def code_changes(built: Sequence[tuple[str, str]]) -> Iterator[Mark]:
    """Yield a mark where the code of an interval differs from the previous one's; `built`: label and version."""
    before = ""
    for place, (label, version) in enumerate(built):
        if version and before not in ("", version):
            yield Mark(place, f"{label}: code {before} became {version}")
        before = version or before


def column_changes(built: Sequence[tuple[str, Mapping[str, str] | None]]) -> Iterator[Mark]:
    """Yield a mark where an interval's columns differ from the previous one's; `built`: label, types by name."""
    before: Mapping[str, str] | None = None
    for place, (label, columns) in enumerate(built):
        if before and columns and (changed := list(_changed(before, columns))):
            yield Mark(place, f"{label}: {'; '.join(changed)}")
        before = columns or before


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        was, becomes = before.get(name), now.get(name)
        if was is None:
            yield f"column {name} is new"
        elif becomes is None:
            yield f"column {name} is gone"
        elif was != becomes:
            short = max(len(was), len(becomes)) <= _LONGEST
            yield f"column {name}: {was} became {becomes}" if short else f"column {name} has another type"
