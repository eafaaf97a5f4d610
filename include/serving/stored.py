"""Values as PostgreSQL's tables of a served view hold them, of either layer: the same key is stored as the same row.

Data hold more than PostgreSQL does: null characters, longer texts than an index takes, and times beyond its calendar.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date

from include.ledger.listings import LONGEST_KEY, abbreviated, most_of
from include.serving.shape import Shape

MICROSECONDS = 86_400_000_000
"""Of a day."""

_EPOCH = date(1970, 1, 1).toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""After so many years, and days, the calendar repeats itself."""

_FIRST_DAY, _LAST_YEAR = -2_440_588, 5_874_897
"""Of PostgreSQL's dates; its times end later than Spark's."""


def stored_rows(shape: Shape, rows: Iterable[Sequence[object]]) -> Iterator[list[object]]:
    """Yield rows, values of `shape.columns`, as PostgreSQL holds them.

    Dates are given as days and times as microseconds since 1970. A key of long texts has the beginning and a hash of
    each instead, dates and times beyond PostgreSQL's calendar are `infinity` or `-infinity`, and in texts a symbol
    replaces the null character.
    """
    converted = {number: to for number, each in enumerate(shape.columns) if (to := _MOMENTS.get(each.kind))}
    texts = [number for number, each in enumerate(shape.keys) if each.kind == "text"]
    for row in rows:
        values = [storable(value) for value in row]
        for number, to in converted.items():
            value = values[number]
            values[number] = to(value) if isinstance(value, int) else value
        _abbreviate(values, texts)
        yield values


def storable(value: object) -> object:
    """Return a value that PostgreSQL can hold: in texts, a symbol replaces the null character."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}") if isinstance(value, str) else value


def date_text(days: int) -> str:
    """Return a date, in days since 1970, as PostgreSQL reads it."""
    year, text, era = _calendar(days)
    if days < _FIRST_DAY:
        return "-infinity"
    return "infinity" if year > _LAST_YEAR else text + era


def time_text(microseconds: int) -> str:
    """Return a time, in microseconds since 1970, as PostgreSQL reads it."""
    days, rest = divmod(microseconds, MICROSECONDS)
    if days < _FIRST_DAY:
        return "-infinity"
    _, text, era = _calendar(days)
    seconds, fraction = divmod(rest, 1_000_000)
    return f"{text} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}+00{era}"


_MOMENTS: dict[str, Callable[[int], str]] = {"date": date_text, "timestamptz": time_text}


def _calendar(days: int) -> tuple[int, str, str]:
    """Return the year, the date as text, and the era after it: Python's calendar ends with the year 9999."""
    cycles, rest = divmod(days, _CYCLE_DAYS)
    there = date.fromordinal(_EPOCH + rest)
    year = there.year + cycles * _CYCLE_YEARS
    # Before the year 1 is 1 BC.
    return year, f"{year if year > 0 else 1 - year:04}-{there:%m-%d}", "" if year > 0 else " BC"


def _abbreviate(values: list[object], texts: Sequence[int]) -> None:
    """Abbreviate the long texts of a key which is too long for the tables' indexes."""
    sizes = {number: len(value.encode()) for number in texts if isinstance(value := values[number], str)}
    if sum(sizes.values()) > LONGEST_KEY:
        for number, size in sizes.items():
            if size > most_of(len(texts)):
                values[number] = abbreviated(str(values[number]), len(texts))
