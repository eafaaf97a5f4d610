"""Avro in the registry's wire format, strictly and in one parse.

A value is a zero byte, four bytes of schema id, and the record in the binary encoding of its writer schema, which
says neither where it ends nor that it is whole; `from_avro` alone accepts trailing bytes. Here both schemas have one
field more, the last, and its value stands behind the record's bytes: a seal that no producer knows. Whatever the record
leaves of its bytes, or takes too much, moves the seal. Each record is read with its own writer schema and resolved to
the declared one by Avro's rules: absent fields get their defaults, types are promoted.

Source: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import json
import re
import secrets
import struct
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from include.errors import ServiceUnreachable, TidemarkError
from include.pipelines.spec import Avro
from include.schemas.writer_schemas import Unusable, WriterSchema, writer_schemas
from spark_jobs.spark.failures import UNRESOLVED

HEADER_BYTES = 5

MOST_IDS = 1_000
"""With more schema ids in one micro-batch than this it is not Avro of a registry."""


_SEAL = 1 + secrets.randbelow(2**52) / 2**52
"""Of this driver's; a double, whose place in a row costs Spark less than that of bytes or of a record of its own."""

_PADDING = 65_536
"""So many zero bytes behind a truncated record make it whole."""


def prepare(decoder: Avro, records: DataFrame) -> None:
    """Resolve the writer schemas of a batch of records, so that `parse` knows them.

    Of a stream nothing can be asked before it runs: the versions of the subject are resolved, if the registry
    answers, and a record with another id makes the query throw what `is_unresolved` tells from other errors.
    Raises ServiceUnreachable when an unknown id must be asked for and the registry does not answer.
    """
    schemas = writer_schemas()
    if not records.isStreaming:
        schemas.resolve(_schema_ids(decoder, records))
        return
    try:
        schemas.resolve_subject(decoder.subject)
    except ServiceUnreachable:
        # What is kept on disk may be all that the stream meets.
        if not schemas.resolved():
            raise


def _schema_ids(decoder: Avro, records: DataFrame) -> list[int]:
    value = F.col("value")
    wanted = records.where(_is_framed(decoder, value)).select(_schema_id(value).alias("id")).distinct()
    found = [row["id"] for row in wanted.limit(MOST_IDS + 1).collect()]
    if len(found) > MOST_IDS:
        raise TidemarkError(
            f"more than {MOST_IDS} schema ids among the records of {decoder.subject}, e.g. {found[0]}",
            remedy="this is not Avro of a schema registry: see what its producers write",
        )
    return found


def parsable(decoder: Avro, value: Column) -> Column:
    """The value itself."""
    return value


def parse(decoder: Avro, value: Column) -> Column:
    """The value parsed once, to be kept in a column that `message` and `failure` read."""
    seal = F.lit(struct.pack("<d", _SEAL))
    sealed = F.concat(F.substring(value, HEADER_BYTES + 1, decoder.max_bytes), seal)
    return _read_sealed(decoder, value, sealed)


def message(parsed: Column) -> Column:
    """The message as a struct; null fields when the value is no message."""
    return parsed


def failure(decoder: Avro, value: Column, parsed: Column) -> Column:
    """Why the value is no message, as struct<reason, detail>; null when it is one.

    Reasons: null_value, too_large, too_short, wrong_magic_byte, unknown_schema, unusable_schema, truncated,
    malformed_avro, trailing_bytes.
    """
    size = F.octet_length(value).cast("string")
    unusable = _unusable(decoder, _schema_id(value))
    # Made from a column: as a literal it would stand in every text of the plan.
    zeros = F.repeat(F.lit("\0"), F.greatest(F.octet_length(value), F.lit(_PADDING))).cast("binary")
    padded = F.concat(F.substring(value, HEADER_BYTES + 1, decoder.max_bytes), zeros)
    when_longer = _read_sealed(decoder, value, padded)
    found = (
        F.when(value.isNull(), _because("null_value", "a record without a value"))
        .when(
            F.octet_length(value) > decoder.max_bytes,
            _because("too_large", F.concat(size, F.lit(f" bytes, the limit is {decoder.max_bytes}"))),
        )
        .when(
            F.octet_length(value) < HEADER_BYTES,
            _because("too_short", F.concat(size, F.lit(f" bytes, magic byte and schema id take {HEADER_BYTES}"))),
        )
        .when(
            _magic_byte(value) != b"\0",
            _because("wrong_magic_byte", F.concat(F.lit("the first byte is 0x"), F.hex(_magic_byte(value)))),
        )
        .when(unusable.isNotNull(), unusable)
        .when(parsed["tidemark_seal"].isNotNull(), _because("trailing_bytes", "bytes follow the record"))
        .when(when_longer["tidemark_seal"].isNotNull(), _because("truncated", "the record ends before its schema does"))
        .otherwise(_because("malformed_avro", "not a record of its schema"))
    )
    # Only bad values come to what is found, so a second parse that tells them apart costs the good ones nothing.
    return F.when(~F.coalesce(parsed["tidemark_seal"] == _SEAL, F.lit(False)), found)


def _because(reason: str, detail: Column | str) -> Column:
    shown = F.lit(detail) if isinstance(detail, str) else detail
    return F.struct(F.lit(reason).alias("reason"), shown.alias("detail"))


def _magic_byte(value: Column) -> Column:
    return F.substring(value, 1, 1)


def _schema_id(value: Column) -> Column:
    return F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")


def _is_framed(decoder: Avro, value: Column) -> Column:
    length = F.octet_length(value)
    framed = (length >= HEADER_BYTES) & (length <= decoder.max_bytes) & (_magic_byte(value) == b"\0")
    return F.coalesce(framed, F.lit(False))


def _by_schema(decoder: Avro, value: Column, read: Callable[[str], Column]) -> Column:
    """The value read with its own writer schema; null where there is none. Throws for an id that is not resolved."""
    known = _readable(decoder)
    schema_id = _schema_id(value)
    header, fits = F.substring(value, 1, HEADER_BYTES), F.octet_length(value) <= decoder.max_bytes
    # First, and by the bytes as they are: nothing else is asked of a good value.
    branches = [
        (fits & (header == b"\0" + each.to_bytes(4, "big")), read(schema))
        for each, schema in known.items()
        if isinstance(schema, str)
    ]
    branches.append((~_is_framed(decoder, value), F.lit(None)))
    unusable = [each for each, schema in known.items() if isinstance(schema, Unusable)]
    if unusable:
        branches.append((schema_id.isin(unusable), F.lit(None)))
    first, *others = branches
    found = reduce(lambda found, branch: found.when(branch[0], branch[1]), others, F.when(first[0], first[1]))
    unresolved = F.raise_error(F.concat(F.lit(f"{UNRESOLVED}: "), schema_id.cast("string")))
    # A plan in which nothing is known still needs a type.
    typed = F.when(F.lit(False), read(decoder.schema)).otherwise(F.lit(None))
    return F.coalesce(found.otherwise(unresolved), typed)


def _read_sealed(decoder: Avro, value: Column, data: Column) -> Column:
    """A value's record read from other bytes, with whatever stands in the seal's place; null where it does not end."""
    reader = _sealed(decoder.schema)
    return _by_schema(decoder, value, lambda writer: _read(data, _sealed(writer), reader))


def _read(data: Column, writer: str, reader: str) -> Column:
    return from_avro(data, writer, {"avroSchema": reader, "mode": "PERMISSIVE"})


def _sealed(schema: str) -> str:
    """The schema of a record, or of a union of records, with the seal as the last field."""

    def sealed(declared: Any) -> Any:
        match declared:
            case {"type": "record", "fields": fields}:
                return {**declared, "fields": [*fields, {"name": "tidemark_seal", "type": "double"}]}
            case {"type": dict() | list() as inner}:
                return {**declared, "type": sealed(inner)}
            case list():
                return [sealed(each) for each in declared]
        return declared

    return json.dumps(sealed(json.loads(schema)))


def _readable(decoder: Avro) -> dict[int, WriterSchema]:
    """The resolved schemas by id; those that Avro cannot resolve to the declared one are unusable."""
    return {
        each: schema if isinstance(schema, Unusable) else _resolvable(schema, decoder.schema)
        for each, schema in writer_schemas().resolved().items()
    }


@cache
def _resolvable(writer: str, reader: str) -> WriterSchema:
    """The writer schema, unless the very library that decodes finds that it cannot be read as the reader schema."""
    avro = SparkSession.active()._jvm.org.apache.avro  # type: ignore[union-attr]
    try:
        schemas = [avro.Schema.Parser().parse(_sealed(schema)) for schema in (reader, writer)]
    except Exception as error:
        # Py4J wraps what Java throws; whatever it is, the schema is not one for this library.
        return Unusable("unusable_schema", f"its schema is not valid: {_one_line(error)}")
    found = avro.SchemaCompatibility.checkReaderWriterCompatibility(*schemas)
    if str(found.getType()) == "COMPATIBLE":
        return writer
    causes = [_one_line(each.getMessage()) for each in found.getResult().getIncompatibilities()]
    return Unusable("unusable_schema", f"its schema cannot be read as the declared one: {'; '.join(causes)[:200]}")


def _one_line(error: object) -> str:
    return re.sub(r"[^ -~]+", " ", str(getattr(error, "java_exception", error)))[:200]


def _unusable(decoder: Avro, schema_id: Column) -> Column:
    found = F.lit(None).cast("STRUCT<reason: STRING, detail: STRING>")
    for each, schema in _readable(decoder).items():
        if isinstance(schema, Unusable):
            found = F.when(schema_id == each, _because(schema.reason, schema.detail)).otherwise(found)
    return found
