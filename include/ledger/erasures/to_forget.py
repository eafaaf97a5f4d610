"""What an erasure is to forget, for the layers below `include/erasure`: keys, and names of table partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class KeysToForget(Protocol):
    """The keys to forget."""

    @property
    def forms(self) -> Sequence[str]:
        """Texts of which each text that names a key holds one, if none of JSON's escapes is in it."""

    @property
    def words(self) -> KeysToForget:
        """Those that are no short numbers, which also count something."""

    def named_in(self, value: str) -> bool:
        """Return whether a text holds one of the keys."""

    def is_one(self, value: Any) -> bool:
        """Return whether a JSON value is one of the keys."""

    def without(self, value: Any) -> Any:
        """Return a JSON value whose texts hold none of the keys; numbers and names of values stay."""


class NamesToForget(Protocol):
    """Parts of table partitions to forget, e.g. `zip=10001`."""

    def named_in(self, value: str) -> bool:
        """Return whether a text names one of them."""

    def text(self, value: str) -> str:
        """Return a text that names none of them."""

    def without(self, value: Any) -> Any:
        """Return a JSON value whose texts name none of them."""

    def without_keys(self, value: Any) -> Any:
        """Return such a value in which no text holds a key either."""
