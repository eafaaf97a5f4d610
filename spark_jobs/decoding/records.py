"""Kafka records decoded to archive rows or quarantine in one pass: every record gets exactly one fate."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StructType

from include.errors import UsageError, one_line
from include.offsets import Fate
from include.pipelines.spec import Avro, Json, Pipeline, Reference
from include.pipelines.spec.decoders import UNKNOWN_FIELDS
from include.pipelines.spec.references import numbered_lines
from spark_jobs.decoding.decoders import decoding_of, prepare
from spark_jobs.decoding.reference_values import check_values
from spark_jobs.decoding.rules import Row, field_at, violation
from spark_jobs.decoding.unknown_fields import unknown_fields
from spark_jobs.spark.failures import FAILED_FAST
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.schemas import reads_as, struct_of
from spark_jobs.spark.thrown import refused_by_spark

_DAY = 86_400_000_000
"""Microseconds."""

_GENERATED = 4
"""Rows of a message that are judged by generated code. Spark does not compile expressions over arrays of unknown
length, which takes a tenth of the archive query's time where most messages have few rows."""

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")

_CARRIED = ("failure", *COORDINATES, "key", "value", "headers")
"""Columns that accompany a record's rows."""


def transform(pipeline: Pipeline, name: str) -> Callable[..., Any]:
    """Return the pipeline's transform of that name (`spark_jobs/transforms/<pipeline>.py`).

    Raises UsageError when there is none.
    """
    module = f"spark_jobs.transforms.{pipeline.code}"
    function: Callable[..., Any] | None = None
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        # What the module itself imports may be missing, too.
        if error.name != module:
            raise
    if function is None:
        raise UsageError(
            f"spark_jobs/transforms/{pipeline.code}.py has no function {name}",
            remedy=f"write it there, or correct its name in include/pipelines/{pipeline.code}.py",
            pipeline=pipeline.name,
        )
    return function


def check_transforms(pipeline: Pipeline) -> None:
    """Raise UsageError when the pipeline names a transform that is not there, or whose module cannot be loaded."""
    for name in pipeline.transforms:
        try:
            transform(pipeline, name)
        except UsageError:
            raise
        # It is code of its author, which may raise anything.
        except Exception as error:
            what = f"spark_jobs/transforms/{pipeline.code}.py cannot be loaded: {type(error).__name__}"
            raise UsageError(f"{what}: {one_line(str(error))}", remedy="correct it", pipeline=pipeline.name) from error


def archive_columns(pipeline: Pipeline) -> list[str]:
    """Return the names of the archive table's own columns."""
    return struct_of(pipeline.archive_columns).names


def _made_columns(pipeline: Pipeline) -> list[str]:
    """Return the names of the columns that the pipeline's transform makes."""
    return struct_of(pipeline.archive.columns).names


def decode(pipeline: Pipeline, records: DataFrame, withheld: Column | None = None) -> DataFrame:
    """Decode each record once, apply the row rules, and explode to rows.

    Columns: fate (archived, empty, quarantined), reason, detail, kafka_topic, kafka_partition, kafka_offset,
    kafka_timestamp, kafka_element, the archive's own columns (null unless archived), key, value, headers (null unless
    quarantined), date (of the event, else of the record). A record with one bad row is quarantined whole. One that
    cannot be decoded throws where the decoder is declared to fail fast. `withheld` (struct<reason, detail> of a record,
    or null) quarantines a record for that reason without decoding it, because it would throw. Fields beyond the
    message's schema, where these are kept, are in the column `unknown_fields` of its first row. Raises UsageError when
    the transform asks for what a message does not have, or returns other columns than the archive declares: its files
    could not be read as declared.
    """
    decoding = decoding_of(pipeline.decoder)
    parsed, value = _parsed(pipeline, records, withheld)
    given = [decoding.message(F.col("parsed")), *([_record()] if pipeline.archive.takes_record else [])]
    with refused_by_spark(pipeline, pipeline.archive.rows):
        rows = transform(pipeline, pipeline.archive.rows)(*given)
    undecodable = decoding.failure(pipeline.decoder, F.col(value), F.col("parsed"))
    if isinstance(pipeline.decoder, Avro) and pipeline.decoder.mode == "FAILFAST":
        undecodable = _failing_fast(undecodable, F.lit(False) if withheld is None else F.col("withheld").isNotNull())
    looked_at = parsed.withColumn("undecodable", undecodable)
    if isinstance(pipeline.decoder, Json) and pipeline.keeps_unknown_fields:
        message = F.when(F.col("undecodable").isNull(), F.col(value))
        looked_at = looked_at.withColumn(UNKNOWN_FIELDS, unknown_fields(pipeline.decoder, message))
    known = [F.col(name) for name in ("withheld", "undecodable") if name in looked_at.columns]
    with refused_by_spark(pipeline, pipeline.archive.rows):
        made = looked_at.select(rows.alias("rows")).schema["rows"].dataType
    _check_types(pipeline, made)
    judge = _judge_fields if isinstance(made, StructType) else _judge_rows
    judged, row = judge(pipeline, looked_at, rows, known)
    kept = F.col("failure").isNotNull()
    return judged.select(
        "fate",
        F.col("failure.reason").alias("reason"),
        F.col("failure.detail").alias("detail"),
        *COORDINATES,
        "kafka_element",
        *(row[name].alias(name) for name in _made_columns(pipeline)),
        *([_of_first_row(F.col(UNKNOWN_FIELDS))] if pipeline.keeps_unknown_fields else []),
        *(F.when(kept, F.col(name)).alias(name) for name in ("key", "value", "headers")),
        date_of(field_at(row, pipeline.archive.event_time)).alias("date"),
    )


def _check_types(pipeline: Pipeline, made: DataType) -> None:
    row = made.elementType if isinstance(made, ArrayType) else made
    # As in Spark, names that differ in case alone are one.
    kinds = {each.name.lower(): each.dataType for each in row.fields} if isinstance(row, StructType) else {}
    for declared in struct_of(pipeline.archive.columns):
        kind = kinds.get(declared.name.lower())
        if kind is not None and reads_as(kind, declared.dataType):
            continue
        returned = f"no column {declared.name}" if kind is None else f"{declared.name} as {kind.simpleString()}"
        raise UsageError(
            f"the transform {pipeline.archive.rows} of the archive returns {returned}, "
            f"declared as {declared.dataType.simpleString()}",
            remedy=f"let it return {declared.name} as {declared.dataType.simpleString()}, or declare what it returns",
            pipeline=pipeline.name,
        )


def _parsed(pipeline: Pipeline, records: DataFrame, withheld: Column | None) -> tuple[DataFrame, str]:
    """Parse each record's value once. Returns the records, and the name of the column that was parsed.

    Columns: key, value, headers, the coordinates, parsed; with `withheld` also withheld and decodable (null where
    withheld).
    """
    left_alone: tuple[str, ...] = ()
    if withheld is not None:
        left_alone = ("decodable", "withheld")
        records = records.withColumn("withheld", withheld).withColumn(
            "decodable", F.when(F.col("withheld").isNull(), F.col("value"))
        )
    # No schema is resolved for a record that is not decoded.
    prepare(pipeline.decoder, records.where(F.col("withheld").isNull()) if left_alone else records)
    value = "decodable" if left_alone else "value"
    decoding = decoding_of(pipeline.decoder)
    carried = ("key", "value", "headers", *left_alone)
    parsable = records.select(
        *carried,
        *(F.col(name.removeprefix("kafka_")).alias(name) for name in COORDINATES),
        decoding.parsable(pipeline.decoder, F.col(value)).alias("parsable"),
    )
    parse = decoding.parse(pipeline.decoder, F.col("parsable"))
    return parsable.select(*carried, *COORDINATES, parse.alias("parsed")), value


def _judge_fields(
    pipeline: Pipeline, parsed: DataFrame, made: Column, known: Sequence[Column]
) -> tuple[DataFrame, Row]:
    """Judge messages of at most one row (a struct or null), without ever making that struct.

    Rules are applied to the expression of each field; a struct would cost an object per record, and another for each of
    its numbers. Returns the judged records, and the fields of their rows, null unless archived.
    """
    is_decoded = F.col("undecodable").isNull()
    # Numbered, because an archive column may have the name of one of the record's columns.
    named = {name: f"field_{number}" for number, name in enumerate(_made_columns(pipeline))}
    fields = parsed.select(
        "*",
        (is_decoded & made.isNotNull()).alias("is_row"),
        # Taken from the struct's expression: Spark would first make a struct that a column holds.
        *(F.when(is_decoded, made[name]).alias(field) for name, field in named.items()),
    )
    broken = violation(pipeline, {name: F.col(field) for name, field in named.items()})
    judged = fields.withColumn("failure", _asked_once(F.coalesce(*known, F.when(F.col("is_row"), broken))))
    passed = F.col("failure").isNull()
    fate = F.when(~passed, Fate.QUARANTINED).when(F.col("is_row"), Fate.ARCHIVED).otherwise(Fate.EMPTY)
    fates = judged.select("*", fate.alias("fate"), F.lit(0).alias("kafka_element"))
    return fates, {name: F.when(passed, F.col(field)) for name, field in named.items()}


def _judge_rows(pipeline: Pipeline, parsed: DataFrame, rows: Column, known: Sequence[Column]) -> tuple[DataFrame, Row]:
    """Judge messages of any number of rows (an array).

    Returns the judged records, once for each row, and that row, null unless archived.
    """
    with_rows = parsed.withColumn("rows", F.when(F.col("undecodable").isNull(), rows))
    violations = _violations(pipeline, F.col("rows"))
    judged = with_rows.withColumn("failure", _asked_once(F.coalesce(*known, *violations)))
    fate = (
        F.when(F.col("failure").isNotNull(), Fate.QUARANTINED)
        .when(F.coalesce(F.size("rows"), F.lit(0)) <= 0, Fate.EMPTY)
        .otherwise(Fate.ARCHIVED)
    )
    archived = F.when(F.col("fate") == Fate.ARCHIVED, F.col("rows"))
    exploded = judged.withColumn("fate", fate).select(
        "fate",
        *_CARRIED,
        *([UNKNOWN_FIELDS] if pipeline.keeps_unknown_fields else []),
        # One for each row of a record, or null for none.
        F.posexplode_outer(archived).alias("kafka_element", "row"),
    )
    return exploded.withColumn("kafka_element", F.coalesce("kafka_element", F.lit(0))), F.col("row")


def _of_first_row(unknown: Column) -> Column:
    """Return a message's unknown fields at its first row only, so that they are not repeated with each row."""
    is_first = (F.col("fate") == Fate.ARCHIVED) & (F.col("kafka_element") == 0)
    return F.when(is_first, unknown).alias(UNKNOWN_FIELDS)


def _violations(pipeline: Pipeline, rows: Column) -> Iterator[Column]:
    """Return the first rule that each of the first rows breaks, and then the first that any further row breaks."""
    size = F.size(rows)
    for at in range(_GENERATED):
        yield F.when(size > at, violation(pipeline, F.get(rows, F.lit(at))))
    further = F.transform(F.slice(rows, _GENERATED + 1, size), lambda row: violation(pipeline, row))
    yield F.when(size > _GENERATED, F.get(F.filter(further, lambda each: each.isNotNull()), F.lit(0)))


def _asked_once(value: Column) -> Column:
    """Return the value by an expression that Spark considers nondeterministic and therefore never evaluates twice.

    A reader of archived rows filters by the failure. Spark would move such a filter below the projections and put
    their expressions in place of their columns: the filter would judge each record again, and parse an Avro value
    for each rule that reads a field, in more code than a method may have.
    """
    return F.when(F.spark_partition_id() >= 0, value)


def date_of(event_time: Column) -> Column:
    """Return the date of an event in UTC, or its record's where the event time is missing or a text that is no time."""
    return utc_date(F.coalesce(event_time.try_cast("timestamp"), F.col("kafka_timestamp")))


def utc_date(moment: Column) -> Column:
    """Return the date of a timestamp in UTC, by arithmetic: `to_date` uses the calendar of the session's time zone."""
    micros = F.unix_micros(moment)
    # Division truncates towards 0, which would give times before 1970, except at midnight, the day after.
    days = F.call_function("div", micros, F.lit(_DAY)) - F.when((micros < 0) & (micros % _DAY != 0), 1).otherwise(0)
    return F.date_from_unix_date(days.cast("int"))


def _failing_fast(undecodable: Column, left_alone: Column) -> Column:
    """Throw an error that names the record if it cannot be decoded; do nothing for a withheld record."""
    at = F.concat_ws(" ", F.concat_ws("-", "kafka_topic", "kafka_partition"), F.lit("offset"), "kafka_offset")
    said = F.concat(
        F.lit(f"{FAILED_FAST}: "), at, F.lit(": "), undecodable["reason"], F.lit(", "), undecodable["detail"]
    )
    return F.when(~left_alone & undecodable.isNotNull(), F.raise_error(said)).when(~left_alone, undecodable)


def _record() -> Column:
    """Return a record without its value, as struct<key, headers, topic, partition, offset, timestamp>."""
    names = ("topic", "partition", "offset", "timestamp")
    return F.struct("key", "headers", *(F.col(f"kafka_{name}").alias(name) for name in names))


def archive_rows(pipeline: Pipeline, decoded: DataFrame) -> DataFrame:
    """Return the archived rows of decoded records: the archive's columns, the Kafka columns and `event_time`."""
    archived = decoded.where(F.col("fate") == Fate.ARCHIVED) if "fate" in decoded.columns else decoded
    return archived.select(
        *archive_columns(pipeline),
        *COORDINATES,
        "kafka_element",
        F.col(pipeline.archive.event_time).alias("event_time"),
    )


def load_references(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """Return the pipeline's reference tables by name.

    Raises UsageError when a file's columns are not the declared ones, or a value does not fit its column.
    """
    return {name: _load(spark, pipeline, name, reference) for name, reference in pipeline.references.items()}


def _load(spark: SparkSession, pipeline: Pipeline, name: str, reference: Reference) -> DataFrame:
    # The driver reads the file and sends its rows: a reference ships with the code, which executors may not have.
    lines = numbered_lines(name, reference, pipeline.name)
    check_values(spark, pipeline.name, name, reference, lines)
    text = frame_of(spark, ((line,) for _, line in lines), "line STRING")
    return text.select(F.from_csv("line", reference.columns).alias("row")).select("row.*")
