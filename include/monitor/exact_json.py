"""JSON that keeps every digit of a decimal: as a number, which a reader takes for a float only if it wants to."""

from __future__ import annotations

import json
import re
import secrets
from decimal import Decimal
from typing import Any


def loads(text: str) -> Any:
    """Return a JSON value; numbers that no float has exactly are decimals, all others as Python reads them."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> float | Decimal:
    number, exact = float(text), Decimal(text)
    return number if Decimal(repr(number)) == exact else exact


def dumps(value: Any, **options: Any) -> str:
    """Return JSON in which decimals are numbers with all their digits; what JSON does not have is a text."""
    # Python's encoder writes decimals only as texts: they are marked by a text that no data can have.
    mark = secrets.token_hex(8)

    def default(other: object) -> str:
        return f"{mark}{other}{mark}" if isinstance(other, Decimal) and other.is_finite() else str(other)

    return re.sub(f'"{mark}([^"]*){mark}"', r"\1", json.dumps(value, default=default, **options))
