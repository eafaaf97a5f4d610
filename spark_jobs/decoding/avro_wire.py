"""Strict Avro in the registry's wire format, in one parse.

A value is a zero byte, four bytes of schema id, and the record in the binary encoding of its writer schema, which
says neither where it ends nor whether it is complete; `from_avro` alone accepts trailing bytes. Here both schemas get
one more field at the end, and its value follows the record's bytes: a seal that no producer knows. A record that is
shorter or longer than its bytes moves the seal. Each record is read with its own writer schema and resolved to the
declared one by Avro's rules: absent fields get their defaults, types are promoted.
Logical types are compared besides (`include/schemas/logical_types.py`).

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

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import StructType

from include.errors import ServiceUnreachable
from include.pipelines.spec import Avro
from include.schemas.bounds import Unbounded, check_bounded
from include.schemas.logical_types import Incompatible, in_units_of
from include.schemas.writer_schemas import MOST_UNKNOWN, UNKNOWN_SCHEMA, Unusable, WriterSchema, writer_schemas
from spark_jobs.decoding.fitting import found_within, is_not_utf8
from spark_jobs.decoding.reasons import because
from spark_jobs.spark.failures import UNRESOLVED

HEADER_BYTES = 5

_AT_ONCE = 1_000
"""How many schema ids are resolved between two looks at the records."""

_SEAL = 1 + secrets.randbelow(2**52) / 2**52
"""A secret of this driver; a double, since in a row it costs Spark less than bytes or a record would."""

_PADDING = 65_536
"""Zero bytes that are appended to complete a truncated record."""


def prepare(decoder: Avro, records: DataFrame) -> None:
    """Resolve the writer schemas of a batch of records, so that `parse` knows them.

    The ids in a stream are not known before it runs. So all versions of the subject are resolved, if the registry
    answers, and a record with another id makes the query throw an error that `unresolved_id` recognises. Values of
    something else have any number of ids: after many unknown ones, the registry is asked for no other. Raises
    ServiceUnreachable when an unknown id must be looked up and the registry does not answer.
    """
    schemas = writer_schemas()
    if not records.isStreaming:
        while not schemas.asks_no_more():
            ids = _unresolved_ids(decoder, records)
            schemas.resolve(ids, decoder.subject)
            if len(ids) < _AT_ONCE:
                break
        return
    try:
        schemas.resolve_subject(decoder.subject)
    except ServiceUnreachable:
        # The schemas on disk may be all that the stream needs.
        if not schemas.resolved():
            raise


def _unresolved_ids(decoder: Avro, records: DataFrame) -> list[int]:
    """Return schema ids of the records that are not resolved, at most `_AT_ONCE`.

    Those of most records come first, then the smallest: bytes at random come last, for a registry counts from 1.
    """
    value = F.col("value")
    ids = records.where(_is_framed(decoder, value)).select(_schema_id(value).alias("id"))
    unresolved = ids.where(~F.col("id").isin(list(writer_schemas().resolved())))
    counted = unresolved.groupBy("id").count().orderBy(F.desc("count"), "id")
    return [row["id"] for row in counted.limit(_AT_ONCE).collect()]


def parsable(decoder: Avro, value: Column) -> Column:
    """Return the value itself."""
    return value


def parse(decoder: Avro, value: Column) -> Column:
    """Return the value parsed once, to be kept in a column that `message` and `failure` read."""
    seal = F.lit(struct.pack("<d", _SEAL))
    sealed = F.concat(F.substring(value, HEADER_BYTES + 1, decoder.max_bytes), seal)
    return _read_sealed(decoder, value, sealed)


def message(parsed: Column) -> Column:
    """Return the message as a struct; its fields are null when the value is not a message."""
    return parsed


def failure(decoder: Avro, value: Column, parsed: Column) -> Column:
    """Return why the value is not a message, as struct<reason, detail>; null when it is one.

    Reasons: null_value, too_large, too_short, wrong_magic_byte, unknown_schema, unusable_schema, truncated,
    malformed_avro, trailing_bytes, not_utf8.
    """
    size = F.octet_length(value).cast("string")
    unusable = _unusable(decoder, _schema_id(value))
    # Made from a column: a literal would be repeated in every text of the plan.
    zeros = F.repeat(F.lit("\0"), F.greatest(F.octet_length(value), F.lit(_PADDING))).cast("binary")
    padded = F.concat(F.substring(value, HEADER_BYTES + 1, decoder.max_bytes), zeros)
    when_longer = _read_sealed(decoder, value, padded)
    reason = (
        F.when(value.isNull(), because("null_value", "a record without a value"))
        .when(
            F.octet_length(value) > decoder.max_bytes,
            because("too_large", F.concat(size, F.lit(f" bytes, the limit is {decoder.max_bytes}"))),
        )
        .when(
            F.octet_length(value) < HEADER_BYTES,
            because("too_short", F.concat(size, F.lit(f" bytes, magic byte and schema id take {HEADER_BYTES}"))),
        )
        .when(
            _magic_byte(value) != b"\0",
            because("wrong_magic_byte", F.concat(F.lit("the first byte is 0x"), F.hex(_magic_byte(value)))),
        )
        .when(unusable.isNotNull(), unusable)
        .when(parsed["tidemark_seal"].isNotNull(), because("trailing_bytes", "bytes follow the record"))
        .when(when_longer["tidemark_seal"].isNotNull(), because("truncated", "the record ends before its schema does"))
        .otherwise(because("malformed_avro", "not a record of its schema"))
    )
    # Only bad values are parsed a second time to find the reason; good ones cost nothing more.
    failed = F.when(~F.coalesce(parsed["tidemark_seal"] == _SEAL, F.lit(False)), reason)
    # Avro's decoder takes a text's bytes as they are.
    for each in _declared_type(decoder.schema).fields:
        if (condition := found_within(parsed[each.name], each.dataType, is_not_utf8)) is not None:
            failed = failed.when(condition, because("not_utf8", f"{each.name} has a text that is not UTF-8"))
    return failed


@cache
def _declared_type(schema: str) -> StructType:
    read = from_avro(F.lit(b""), schema)
    declared = SparkSession.active().range(0).select(read.alias("read")).schema["read"].dataType
    assert isinstance(declared, StructType)
    return declared


def _magic_byte(value: Column) -> Column:
    return F.substring(value, 1, 1)


def _schema_id(value: Column) -> Column:
    return F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")


def _is_framed(decoder: Avro, value: Column) -> Column:
    length = F.octet_length(value)
    framed = (length >= HEADER_BYTES) & (length <= decoder.max_bytes) & (_magic_byte(value) == b"\0")
    return F.coalesce(framed, F.lit(False))


def _by_schema(decoder: Avro, value: Column, read: Callable[[str], Column]) -> Column:
    """Return the value read with its own writer schema, null where it has none.

    It throws for an unresolved id while the registry is still asked for such ids.
    """
    # First: once it is asked for no more, nothing more is resolved.
    asks_no_more = writer_schemas().asks_no_more()
    known = _readable(decoder)
    schema_id = _schema_id(value)
    header, fits = F.substring(value, 1, HEADER_BYTES), F.octet_length(value) <= decoder.max_bytes
    # Known schemas come first and compare raw bytes: a good value needs no other check.
    branches = [
        (fits & (header == b"\0" + each.to_bytes(4, "big")), read(schema))
        for each, schema in known.items()
        if isinstance(schema, str)
    ]
    branches.append((~_is_framed(decoder, value), F.lit(None)))
    unusable = [each for each, schema in known.items() if isinstance(schema, Unusable)]
    if unusable and not asks_no_more:
        branches.append((schema_id.isin(unusable), F.lit(None)))
    first, *others = branches
    read_by_schema = reduce(lambda earlier, branch: earlier.when(*branch), others, F.when(*first))
    unresolved = F.raise_error(F.concat(F.lit(f"{UNRESOLVED}: "), schema_id.cast("string")))
    # Without a known schema the plan still needs a type.
    typed = F.when(F.lit(False), read(decoder.schema)).otherwise(F.lit(None))
    return F.coalesce(read_by_schema.otherwise(F.lit(None) if asks_no_more else unresolved), typed)


def _read_sealed(decoder: Avro, value: Column, data: Column) -> Column:
    """Return a value's record read from `data`, with what stands in place of the seal; null if it has no end."""

    def read(writer: str) -> Column:
        reader = _sealed(_reader_of(writer, decoder.schema))
        return from_avro(data, _sealed(writer), {"avroSchema": reader, "mode": "PERMISSIVE"})

    return _by_schema(decoder, value, read)


@cache
def _reader_of(writer: str, declared: str) -> str:
    return in_units_of(writer, declared)


def _sealed(schema: str) -> str:
    """Return the schema of a record, or of a union of records, with the seal as the last field."""

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
    """Return the resolved schemas by id; those that are not decoded as the declared one are unusable."""
    return {
        each: schema if isinstance(schema, Unusable) else _resolvable(schema, decoder.schema)
        for each, schema in writer_schemas().resolved().items()
    }


@cache
def _resolvable(writer: str, reader: str) -> WriterSchema:
    """Return the writer schema as Avro renders it, or Unusable where it cannot be read as the reader schema."""
    avro = SparkSession.active()._jvm.org.apache.avro  # type: ignore[union-attr]

    def parsed(schema: str) -> Any:
        # A writer's defaults are not used. To validate those of types inside of types may take any time.
        return avro.Schema.Parser().setValidateDefaults(False).parse(schema)

    try:
        # Avro knows a type also where its name comes before it, and whatever its namespace looks like.
        writer = str(parsed(writer).toString())
        check_bounded(writer)
        schemas = [avro.Schema.Parser().parse(_sealed(reader)), parsed(_sealed(writer))]
    except Unbounded as error:
        return Unusable("unusable_schema", f"its schema is refused: {_one_line(error)}")
    except Exception as error:
        # Py4J wraps what Java throws; whatever it is, this library does not accept the schema.
        return Unusable("unusable_schema", f"its schema is not valid: {_one_line(error)}")
    try:
        compatibility = avro.SchemaCompatibility.checkReaderWriterCompatibility(*schemas)
        causes = [_one_line(each.getMessage()) for each in compatibility.getResult().getIncompatibilities()]
        if str(compatibility.getType()) == "COMPATIBLE":
            _reader_of(writer, reader)
            return writer
    except (Incompatible, Py4JJavaError) as error:
        # Java throws where a declared field and its aliases name several fields of the writer.
        causes = [_one_line(error)]
    return Unusable("unusable_schema", f"its schema cannot be read as the declared one: {'; '.join(causes)[:200]}")


def _one_line(error: object) -> str:
    return re.sub(r"[^ -~]+", " ", str(getattr(error, "java_exception", error)))[:200]


def _unusable(decoder: Avro, schema_id: Column) -> Column:
    """Return why a framed value's schema cannot be used, as struct<reason, detail>; null when it can.

    An id is unknown by default: a branch for each would be more than Spark plans in reasonable time.
    """
    readable = _readable(decoder)
    usable = [each for each, schema in readable.items() if isinstance(schema, str)]
    reason = F.when(schema_id.isin(usable), F.lit(None))
    for each, schema in readable.items():
        if isinstance(schema, Unusable) and schema.reason != UNKNOWN_SCHEMA:
            reason = reason.when(schema_id == each, because(schema.reason, schema.detail))
    unasked = f", or was not asked after {MOST_UNKNOWN} unknown ids" if writer_schemas().asks_no_more() else ""
    unknown = F.concat(
        F.lit("the registry had no schema with id "),
        schema_id.cast("string"),
        F.lit(f"{unasked}: once it has, start the stream again and replay the record"),
    )
    return reason.otherwise(because(UNKNOWN_SCHEMA, unknown))
