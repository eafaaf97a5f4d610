"""Rows as JSON values that lose nothing: `to_json` cuts times to milliseconds, and Python reads decimals as floats."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from include.monitor import exact_json

_MARK = secrets.token_hex(8)
"""Ends each time, so that no text of the data is taken for one."""

_OPTIONS = {
    "ignoreNullFields": "false",
    "timestampFormat": f"yyyy-MM-dd'T'HH:mm:ss[.SSSSSS][XXX]'{_MARK}'",
    "timestampNTZFormat": f"yyyy-MM-dd'T'HH:mm:ss[.SSSSSS]'{_MARK}'",
}

_NO_FRACTION = re.compile(rf"(?:\.000000|(?<=\.\d{{3}})000)(?=(?:Z|[+-][\d:]+)?{_MARK})")
"""Parts of a second are shown only where a time has some, as in all other JSON of the project."""


def row_json(columns: Sequence[str]) -> Column:
    """Return the columns as a text that `row_of` reads."""
    return F.to_json(F.struct(*(F.col(f"`{name}`") for name in columns)), _OPTIONS)


def row_of(text: str, *, has_decimals: bool) -> dict[str, Any]:
    """Return a row by its columns; decimals as `exact_json.loads` gives them, times as texts."""
    plain = _NO_FRACTION.sub("", text).replace(_MARK, "")
    # Java may write a float with more digits than Python, which would then take it for a decimal.
    row: dict[str, Any] = exact_json.loads(plain) if has_decimals else json.loads(plain)
    return row
