"""How a record's value becomes a message."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from include.errors import UsageError
from include.pipelines.spec.ddl import Field, check_apart, check_types, fields_of
from include.pipelines.spec.names import check_count, check_kind, check_known

_NOT_IN_CSV = frozenset({"ARRAY", "MAP", "STRUCT", "GEOMETRY", "GEOGRAPHY", "VOID"})
"""Types that `from_csv` does not read."""

UNKNOWN_FIELDS = "unknown_fields"
"""Column of the archive with the fields that a message's schema does not name, if the decoder keeps them."""

_MESSAGE = "the schema of a message"

_ONE_OF_THEM = "declare one of them: it takes both"

Unknown = Literal["ignore", "keep"]

Mode = Literal["PERMISSIVE", "FAILFAST"]


def _refuse_to_keep(unknown: str, why: str) -> None:
    """Raise UsageError for anything but the default: only `Json` keeps unknown fields."""
    if unknown != "ignore":
        raise UsageError(f"unknown={unknown!r}: {why}", remedy='leave it out; unknown="keep" is for Json alone')


@dataclass(frozen=True)
class Json:
    """One JSON object per message, decoded strictly (`spark_jobs/decoding/strict_json.py`)."""

    schema: str
    """DDL of the object."""
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""
    unknown: Unknown = field(default="ignore", kw_only=True)
    """What becomes of fields that the schema does not name, at any depth: they are ignored, or kept as they were sent
    in the archive's column `unknown_fields` (`spark_jobs/decoding/unknown_fields.py`)."""

    def __post_init__(self) -> None:
        check_apart(fields_of(self.schema), _MESSAGE, _ONE_OF_THEM)
        check_known("unknown", self.unknown, get_args(Unknown))
        if self.unknown == "keep" and UNKNOWN_FIELDS in {each.name.lower() for each in fields_of(self.schema)}:
            raise UsageError(
                f"the schema names {UNKNOWN_FIELDS!r}, which is the column of what it does not name",
                remedy='leave out unknown="keep", or that field',
            )


@dataclass(frozen=True)
class Text:
    """UTF-8 text: a message is struct<text: STRING>."""

    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""
    unknown: InitVar[Unknown] = field(default="ignore", kw_only=True)

    def __post_init__(self, unknown: Unknown) -> None:
        _refuse_to_keep(unknown, "text has no names of fields")

    @property
    def schema(self) -> str:
        """DDL of a message."""
        return "text STRING"


@dataclass(frozen=True)
class Csv:
    """One line of CSV per message, decoded strictly (`spark_jobs/decoding/strict_csv.py`)."""

    schema: str
    """DDL of the line's columns, all of them, in their order."""
    separator: str = ","
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""
    unknown: InitVar[Unknown] = field(default="ignore", kw_only=True)

    def __post_init__(self, unknown: Unknown) -> None:
        _refuse_to_keep(unknown, "a line of CSV has no names of fields")
        check_apart(fields_of(self.schema), _MESSAGE, _ONE_OF_THEM)


@dataclass(frozen=True)
class UserDefined:
    """A Python function decodes (`spark_jobs/decoding/user_defined/python_function.py`)."""

    function: str
    """The function, e.g. `spark_jobs.transforms.meters:decode`. It takes a value's bytes and returns a message as a
    dictionary; None or an exception sends the record to quarantine. A vectorised one takes a `pyarrow` array of
    values and returns a struct array, and must be a function of each value alone. Times without a zone are UTC."""
    schema: str
    """DDL of a message."""
    vectorised: bool = False
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""
    unknown: InitVar[Unknown] = field(default="ignore", kw_only=True)

    def __post_init__(self, unknown: Unknown) -> None:
        _refuse_to_keep(unknown, "a function returns only what is declared")
        check_apart(fields_of(self.schema), _MESSAGE, _ONE_OF_THEM)
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.function):
            raise UsageError(f"{self.function!r} names no function", remedy="write it like package.module:function")


@dataclass(frozen=True)
class KafkaDeserializer:
    """A Kafka `Deserializer` of a jar decodes (`spark_jobs/decoding/user_defined/kafka_deserializer.py`).

    What it returns is read as JSON: a map, or an object with getters, is the message; any other value is the
    message's only column. None or an exception sends the record to quarantine.
    """

    jar: Path
    """The jar with all that the class needs except Kafka's client, e.g. `Path(__file__).with_name("meters.jar")`."""
    class_name: str
    """The class, e.g. `com.example.MeterDeserializer`: public, with a constructor without arguments."""
    schema: str
    """DDL of a message."""
    config: Mapping[str, str] = field(default_factory=dict)
    """Options that its `configure` gets."""
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""
    unknown: InitVar[Unknown] = field(default="ignore", kw_only=True)

    def __post_init__(self, unknown: Unknown) -> None:
        _refuse_to_keep(unknown, "a deserializer returns only what is declared")
        check_apart(fields_of(self.schema), _MESSAGE, _ONE_OF_THEM)
        if not re.fullmatch(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", self.class_name):
            raise UsageError(
                f"{self.class_name!r} names no class", remedy="write it like com.example.MeterDeserializer"
            )


@dataclass(frozen=True)
class Avro:
    """One Avro record per message, in the wire format of a Confluent-compatible schema registry: a zero byte, four
    bytes of schema id, the record; decoded strictly (`spark_jobs/decoding/avro_wire.py`).

    Each record is decoded with its own writer schema, whatever its version, and read as the declared one.
    """

    subject: str
    """Subject under which the producers register the versions."""
    schema: str
    """The Avro schema that records are read as, JSON: the newest version that the code knows. Fields of newer ones
    are ignored."""
    mode: Mode = "PERMISSIVE"
    """What happens on a value that cannot be decoded: it goes to quarantine, or the run ends and names it."""
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""
    unknown: InitVar[Unknown] = field(default="ignore", kw_only=True)

    def __post_init__(self, unknown: Unknown) -> None:
        _refuse_to_keep(unknown, "Avro's fields are those of its writer's schema, which the registry has")
        check_known("mode", self.mode, get_args(Mode))
        try:
            declared = json.loads(self.schema)
        except ValueError:
            declared = None
        if not isinstance(declared, dict) or declared.get("type") != "record":
            raise UsageError(f"the schema to read {self.subject!r} as is not an Avro record in JSON")
        check_apart((Field(str(each["name"]), "") for each in declared.get("fields", ())), _MESSAGE)


Decoder = Json | Text | Csv | UserDefined | KafkaDeserializer | Avro


def check_decoder(decoder: Decoder) -> None:
    """Raise UsageError for a limit, a type, a separator or a subject that cannot be decoded by.

    Not by the decoders themselves, whose code is part of what versions are made of.
    """
    name = type(decoder).__name__
    check_count(decoder.max_bytes, f"max_bytes of {name}")
    if not isinstance(decoder, Avro):
        check_types(decoder.schema, _MESSAGE)
    elif decoder.subject.startswith(":"):
        raise UsageError(
            f"the subject {decoder.subject!r} names a context of the registry, which gives schema ids of its own",
            remedy="write /contexts/ and that name at the end of TIDEMARK_REGISTRY_URL, and the subject without it",
        )
    if isinstance(decoder, Json | KafkaDeserializer):
        _check_json(fields_of(decoder.schema))
    if isinstance(decoder, KafkaDeserializer):
        check_kind(decoder.jar, f"the jar of {name}", Path, 'Path(__file__).with_name("meters.jar")')
    if isinstance(decoder, Csv):
        if decoder.separator in ("", "\\"):
            raise UsageError(
                f"{decoder.separator!r} separates no columns of CSV", remedy='write separator=";", or "\\t"'
            )
        check_line(decoder.schema, "Csv", "let the rows function read it, e.g. with from_json or split")


def _check_json(fields: tuple[Field, ...], above: str = "") -> None:
    """Raise UsageError for a type that `from_json` does not read, or not as it was sent, at any depth."""
    for each in fields:
        path = ".".join(part for part in (above, each.name) if part)
        if each.kind in ("GEOMETRY", "GEOGRAPHY"):
            raise UsageError(
                f"{_MESSAGE} has the column {path} of the type {each.kind}, which Spark does not read from JSON",
                remedy="declare it as STRING, and let the rows function read it",
            )
        if each.kind == "INTERVAL":
            raise UsageError(
                f"{_MESSAGE} has the column {path} of the type {each.kind}: Spark takes a text that is none for null",
                remedy="declare it as STRING or with its units, e.g. INTERVAL DAY TO SECOND",
            )
        if each.kind in ("BYTE", "TINYINT"):
            raise UsageError(
                f"{_MESSAGE} has the column {path} of the type {each.kind}: Spark takes the numbers 128 to 255 of JSON "
                "for those from -128 to -1",
                remedy="declare it as SMALLINT, in the archive's columns, too",
            )
        if each.kind == "MAP" and each.inner[0].kind.split(" ")[0] != "STRING":
            raise UsageError(
                f"{_MESSAGE} has the map {path} with keys of the type {each.inner[0].kind}, and keys of JSON are text",
                remedy="declare the key as STRING; transform_keys in the rows function makes another type of it",
            )
        _check_json(each.inner, path)


def check_line(columns: str, what: str, and_then: str) -> None:
    """Raise UsageError, which says what to do besides declaring STRING, for a column that no line of CSV can hold."""
    for each in fields_of(columns):
        if each.kind == "INTERVAL":
            raise UsageError(
                f"the column {each.name} of {what} is {each.kind}: Spark takes a text that is none for null",
                remedy="declare it as STRING or with its units, e.g. INTERVAL DAY TO SECOND",
            )
        if each.kind.split(" ")[0] in _NOT_IN_CSV:
            raise UsageError(
                f"the column {each.name} of {what} is {each.kind}, which a line cannot hold",
                remedy=f"declare it as STRING, and {and_then}",
            )
