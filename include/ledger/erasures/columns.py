"""Columns whose values may be keys: a number in any other one counts something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from include.ledger.erasures.to_forget import KeysToForget


@dataclass(frozen=True)
class KeyColumns:
    """The keys to forget, and the columns that may hold one."""

    keys: KeysToForget
    names: frozenset[str]

    def sought_in(self, column: str) -> KeysToForget:
        """Return the keys that a column's values may name; a result of an expectation may be about several columns."""
        return self.keys if self.names.intersection(column.split(", ")) else self.keys.words

    def without(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row, by column, in which each value that names a key is replaced."""
        return {name: self._replaced(name, value) for name, value in row.items()}

    def alone(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row, by column, as `without`; if a value is a key, the others are left out."""
        return dict(zip(row, self.without_others([*row], [*row.values()]), strict=True))

    def without_others(self, columns: Sequence[str], row: Sequence[Any]) -> list[Any]:
        """Return a row's values as `alone`: what is beside a key is about the same person or thing."""
        found = [self._is_key(*each) for each in zip(columns, row, strict=False)]
        if not any(found):
            return [self._replaced(*each) for each in zip(columns, row, strict=False)]
        return [self.keys.without(str(value)) if is_key else None for value, is_key in zip(row, found, strict=False)]

    def _is_key(self, column: str, value: Any) -> bool:
        # Whoever is named `true` is in no column of booleans.
        return (column in self.names or not isinstance(value, bool)) and self.sought_in(column).is_one(value)

    def _replaced(self, column: str, value: Any) -> Any:
        if self._is_key(column, value):
            return self.keys.without(str(value))
        return self.sought_in(column).without(value)
