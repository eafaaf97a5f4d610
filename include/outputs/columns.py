"""The columns that an output's table has, and whether they hold the declared values without loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from include.catalog.columns import kind_of
from include.outputs.dialects import Dialect
from include.pipelines.spec.ddl import Field
from include.serving.shape import DECIMALS, PLAIN_TYPES

_COLUMNS = """
    SELECT column_name, data_type, numeric_precision, numeric_scale FROM information_schema.columns
    WHERE table_schema = {here} AND table_name = %s
"""

_WHOLE = {"tinyint": 3, "smallint": 5, "mediumint": 7, "int": 10, "integer": 10, "bigint": 19}
"""Types of whole numbers with the digits of their largest one: they hold all numbers of one digit less."""

_APPROXIMATE = {"real": 6, "float": 6, "double": 15, "double precision": 15}
"""Types that keep so many digits."""

_DIGITS = {name: _WHOLE[kind] for name, kind in PLAIN_TYPES.items() if kind in _WHOLE} | {"TINYINT": 3, "BYTE": 3}
"""Spark's whole numbers with the digits of the largest."""

_FLOATING = {"FLOAT": 6, "DOUBLE": 15}
"""Spark's approximate numbers with the digits that they keep."""

_TIMES = ("TIMESTAMP", "TIMESTAMP_NTZ")


@dataclass(frozen=True)
class Stored:
    """A column's type as the database tells it."""

    kind: str
    precision: int | None = None
    scale: int | None = None

    @property
    def is_decimal(self) -> bool:
        """Whether it keeps decimal digits."""
        return self.kind in ("decimal", "numeric")

    def __str__(self) -> str:
        return f"{self.kind}({self.precision},{self.scale})" if self.is_decimal and self.precision else self.kind


def columns_of(asked: Any, dialect: Dialect, table: str) -> dict[str, Stored]:
    """Return the table's columns; none when it is missing."""
    asked.execute(_COLUMNS.format(here=dialect.here), [table])
    return {name: Stored(kind.lower(), precision, scale) for name, kind, precision, scale in asked.fetchall()}


def loses(field: Field, stored: Stored) -> bool:
    """Return whether the column rounds, cuts or refuses values that the declared type has.

    Only kinds are compared that databases coerce silently, or that widen: whole numbers, decimals, times against dates,
    and approximate numbers. Other columns are the user's choice, such as a varchar for a text.
    """
    kind = kind_of(field)
    if kind in _TIMES:
        return stored.kind == "date"
    if kind in _FLOATING:
        is_rounding = stored.kind in _WHOLE or (stored.is_decimal and stored.precision is not None)
        return is_rounding or _APPROXIMATE.get(stored.kind, 15) < _FLOATING[kind]
    if field.kind in DECIMALS:
        whole, scale = _parts(field)
        if stored.kind in _WHOLE:
            return scale > 0 or whole >= _WHOLE[stored.kind]
    elif field.kind in _DIGITS:
        whole, scale = _DIGITS[field.kind], 0
        if stored.kind in _WHOLE:
            return whole > _WHOLE[stored.kind]
    else:
        return False
    if stored.is_decimal and stored.precision is not None:
        kept = stored.scale or 0
        return scale > kept or whole > stored.precision - kept
    return whole + scale > _APPROXIMATE.get(stored.kind, whole + scale)


def _holding(field: Field, stored: Stored, dialect: Dialect) -> str:
    """Return the type that holds the declared values and those that the column has."""
    if field.kind in DECIMALS and stored.is_decimal:
        whole, scale = _parts(field)
        kept = stored.scale or 0
        whole, scale = max(whole, (stored.precision or 0) - kept), max(scale, kept)
        return f"decimal({whole + scale},{scale})"
    return dialect.type_of(field)


def _parts(field: Field) -> tuple[int, int]:
    """Return a decimal's digits before and after the point."""
    precision, scale = (*(field.arguments or (10,)), 0)[:2]
    return precision - scale, scale


def changes(dialect: Dialect, fields: Iterable[Field], stored: Mapping[str, Stored]) -> dict[str, str]:
    """Return what is wrong with the columns, with the action of `ALTER TABLE` that mends it."""
    found = {}
    for each in fields:
        if each.name not in stored:
            found[f"has no column {each.name}"] = f"ADD COLUMN {dialect.quoted(each.name)} {dialect.type_of(each)}"
        elif loses(each, has := stored[each.name]):
            wrong = f"would lose values: the column {each.name} is {has}, declared is {dialect.type_of(each)}"
            found[wrong] = dialect.retyped(each.name, _holding(each, has, dialect))
    return found
