"""How a record's value becomes a message."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Literal

from include.errors import UsageError


@dataclass(frozen=True)
class Json:
    """One JSON object a message, decoded strictly (`spark_jobs/decoding/strict_json.py`)."""

    schema: str
    """DDL of the object; fields that it does not name are ignored."""
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""


@dataclass(frozen=True)
class Text:
    """UTF-8 text: a message is struct<text: STRING>."""

    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""

    @property
    def schema(self) -> str:
        """DDL of a message."""
        return "text STRING"


@dataclass(frozen=True)
class Csv:
    """One line of CSV a message, decoded strictly (`spark_jobs/decoding/strict_csv.py`)."""

    schema: str
    """DDL of the line's columns, all of them, in their order."""
    separator: str = ","
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""


@dataclass(frozen=True)
class UserDefined:
    """A Python function decodes (`spark_jobs/decoding/user_defined.py`)."""

    function: str
    """Where it is, e.g. `spark_jobs.transforms.meters:decode`. It takes a value's bytes and returns a message as a
    dictionary; None or an exception sends the record to quarantine. A vectorised one takes a `pyarrow` array of
    values and returns a struct array, and must be a function of each value alone."""
    schema: str
    """DDL of a message."""
    vectorised: bool = False
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.function):
            raise UsageError(f"{self.function!r} names no function", remedy="write it like package.module:function")


@dataclass(frozen=True)
class Avro:
    """One Avro record a message, in the wire format of a Confluent-compatible schema registry: a zero byte, four
    bytes of schema id, the record; decoded strictly (`spark_jobs/decoding/avro_wire.py`).

    Each record is decoded with its own writer schema, whatever its version, and read as the declared one.
    """

    subject: str
    """Under which the producers register the versions."""
    schema: str
    """The Avro schema that records are read as, JSON: the newest version that the code knows. Fields of newer ones
    are ignored."""
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE"
    """What a value that cannot be decoded does: it goes to quarantine, or it ends the run, which names it."""
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""

    def __post_init__(self) -> None:
        try:
            declared = json.loads(self.schema)
        except ValueError:
            declared = None
        if not isinstance(declared, dict) or declared.get("type") != "record":
            raise UsageError(f"the schema to read {self.subject!r} as is not an Avro record in JSON")


Decoder = Json | Text | Csv | UserDefined | Avro
