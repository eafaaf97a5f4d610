"""Which fields of a quarantined JSON message are not of their declared types.

Spark only says that a message is none of the declared types. What is named here is told by the rules of its JSON
parser, in Python, when somebody looks at the record; nothing is named of which that cannot be sure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import Any

from include.pipelines.spec import Decoder, Json
from include.pipelines.spec.ddl import Field, fields_of

_MOST = 10
"""Fields that are named of one message."""

_BITS = {"SHORT": 16, "SMALLINT": 16, "INT": 32, "INTEGER": 32, "LONG": 64, "BIGINT": 64}

_DATE = re.compile(r"\s*[+-]?\d{4,7}(-(0?[1-9]|1[0-2])(-(0?[1-9]|[12]\d|3[01])([ T].*)?)?)?\s*", re.DOTALL)
"""How dates and times begin for Spark; not every text of this form is one."""

_TIME_OF_DAY = re.compile(r"\s*T?\d{1,2}:.*", re.DOTALL)

_WORDS = {dict: "an object", list: "an array", str: "text", bool: "a boolean", int: "a number", Decimal: "a number"}


def misfits(decoder: Decoder, record: Mapping[str, Any]) -> list[str]:
    """Return the fields of a record that was found to be of the wrong type, with what they hold and what is declared.

    A record of `quarantine.find`. Declared is what the pipeline declares now, which may be more than it did then.
    """
    if not isinstance(decoder, Json) or record["reason"] != "wrong_type":
        return []
    try:
        value = json.loads(record["value"], parse_float=Decimal, parse_constant=_refuse)
        root = Field("", "STRUCT", fields_of(decoder.schema))
        return list(islice(_misfits(root, value, ""), _MOST))
    except (ValueError, RecursionError, InvalidOperation):
        return []


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _misfits(field: Field, value: Any, path: str) -> Iterator[str]:
    if value is None:
        return
    match field.kind.split()[0], value:
        case "STRUCT", dict():
            for each in field.inner:
                yield from _misfits(each, value.get(each.name), f"{path}.{each.name}".lstrip("."))
        case "ARRAY", list():
            for number, element in enumerate(value):
                yield from _misfits(field.inner[0], element, f"{path}[{number}]")
        case "MAP", dict():
            for key, element in value.items():
                yield from _misfits(field.inner[1], element, f"{path}[{_short(key)}]")
        case kind, _ if not _may_be(kind, field.arguments, value):
            declared = field.kind + (f"({', '.join(map(str, field.arguments))})" if field.arguments else "")
            yield f"{path or 'the message'} is {_WORDS[type(value)]}, {_short(value)}, and {declared} is declared"


def _may_be(kind: str, arguments: tuple[int, ...], value: Any) -> bool:
    """Return whether Spark may read a JSON value as the type; False only where it certainly does not."""
    is_text, is_whole = isinstance(value, str), type(value) is int
    match kind:
        case "STRUCT" | "ARRAY" | "MAP":
            return False
        case "BOOLEAN":
            return isinstance(value, bool)
        case "FLOAT" | "REAL" | "DOUBLE":
            return is_whole or isinstance(value, Decimal)
        case "DATE" | "TIMESTAMP_NTZ" | "TIMESTAMP" | "TIMESTAMP_LTZ":
            as_number = is_whole and kind in ("TIMESTAMP", "TIMESTAMP_LTZ")
            return as_number or (is_text and bool(_DATE.fullmatch(value) or _TIME_OF_DAY.fullmatch(value)))
        case "BINARY":
            return is_text
        case "DEC" | "DECIMAL" | "NUMERIC":
            return _may_be_decimal(arguments, value)
    if kind in _BITS:
        most = 1 << (_BITS[kind] - 1)
        return is_whole and -most <= value < most
    return True


def _may_be_decimal(arguments: tuple[int, ...], value: Any) -> bool:
    precision, scale = (*arguments, *(10, 0)[len(arguments) :])
    try:
        number = Decimal(value) if type(value) in (int, Decimal, str) else None
    except InvalidOperation:
        return False
    if number is None or not number.is_finite():
        return False
    return not number or number.adjusted() < precision - scale


def _short(value: Any) -> str:
    text = json.dumps(value, default=float)
    return text if len(text) <= 60 else f"{text[:60]}…"
