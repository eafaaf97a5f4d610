"""Kafka records to archive rows and quarantine, in one pass: every record gets exactly one fate."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import reduce
from itertools import groupby
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructType

from include.lake import SAFE_VALUE
from include.offsets import Coordinates
from include.pipelines.spec import (
    Avro,
    Between,
    EventTimeWithin,
    Fits,
    MaxBytes,
    Pipeline,
    Reference,
    Required,
    SafeValue,
)
from spark_jobs.decoding.decoders import decoding_of, prepare
from spark_jobs.decoding.fitting import changed_column
from spark_jobs.spark.failures import FAILED_FAST
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.schemas import struct_of

ARCHIVED, EMPTY, QUARANTINED = "archived", "empty", "quarantined"

Row = Column | Mapping[str, Column]
"""A row: a struct, or its fields by name."""

POISON = "poison"
"""Reason of a record that made its micro-batch throw."""


_DAY = 86_400_000_000
"""Microseconds."""

_GENERATED = 4
"""So many rows of a message are judged by generated code. Of an array of any length Spark interprets what it is asked,
which takes a tenth of the archive query's time where most messages have few rows."""

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp")

_CARRIED = ("failure", *COORDINATES, "key", "value", "headers")
"""What goes along with a record's rows."""


def transform(pipeline: Pipeline, name: str) -> Callable[..., Any]:
    """The pipeline's transform of that name (`spark_jobs/transforms/<pipeline>.py`)."""
    function: Callable[..., Any] = getattr(importlib.import_module(f"spark_jobs.transforms.{pipeline.code}"), name)
    return function


def archive_columns(pipeline: Pipeline) -> list[str]:
    """Names of the archive table's own columns."""
    return struct_of(pipeline.archive.columns).names


def decode(pipeline: Pipeline, records: DataFrame, withheld: Column | None = None) -> DataFrame:
    """Decode each record once, apply the row rules, and explode to rows.

    Columns: fate (archived, empty, quarantined), reason, detail, kafka_topic, kafka_partition,
    kafka_offset, kafka_timestamp, kafka_element, the archive's own columns (null unless archived),
    key, value, headers (null unless quarantined), date (of the event, else of the record).
    A record with one bad row is quarantined whole; one that cannot be decoded throws where the decoder is to fail
    fast. `withheld` (struct<reason, detail> of a record, or null)
    quarantines a record for that reason without decoding it: one that throws cannot be looked at.
    """
    if withheld is not None:
        records = records.withColumn("withheld", withheld).withColumn(
            "decodable", F.when(F.col("withheld").isNull(), F.col("value"))
        )
    # Nothing is asked for a record that is left alone.
    prepare(pipeline.decoder, records if withheld is None else records.where(F.col("withheld").isNull()))
    value = F.col("value" if withheld is None else "decodable")
    decoding = decoding_of(pipeline.decoder)
    carried = ("key", "value", "headers", *(() if withheld is None else ("decodable", "withheld")))
    parsable = records.select(
        *carried,
        *(F.col(name.removeprefix("kafka_")).alias(name) for name in COORDINATES),
        decoding.parsable(pipeline.decoder, value).alias("parsable"),
    )
    parsed = parsable.select(
        *carried, *COORDINATES, decoding.parse(pipeline.decoder, F.col("parsable")).alias("parsed")
    )
    given = [decoding.message(F.col("parsed")), *([_record()] if pipeline.archive.takes_record else [])]
    rows = transform(pipeline, pipeline.archive.rows)(*given)
    undecodable = decoding.failure(pipeline.decoder, value, F.col("parsed"))
    if isinstance(pipeline.decoder, Avro) and pipeline.decoder.mode == "FAILFAST":
        undecodable = _failing_fast(undecodable, F.lit(False) if withheld is None else F.col("withheld").isNotNull())
    found = parsed.withColumn("undecodable", undecodable)
    known = [F.col(name) for name in ("withheld", "undecodable") if name in found.columns]
    made = found.select(rows.alias("rows")).schema["rows"].dataType
    judge = _judge_fields if isinstance(made, StructType) else _judge_rows
    judged, row = judge(pipeline, found, rows, known)
    kept = F.col("failure").isNotNull()
    return judged.select(
        "fate",
        F.col("failure.reason").alias("reason"),
        F.col("failure.detail").alias("detail"),
        *COORDINATES,
        "kafka_element",
        *(row[name].alias(name) for name in archive_columns(pipeline)),
        *(F.when(kept, F.col(name)).alias(name) for name in ("key", "value", "headers")),
        utc_date(F.coalesce(_path(row, pipeline.archive.event_time), F.col("kafka_timestamp"))).alias("date"),
    )


def _judge_fields(pipeline: Pipeline, found: DataFrame, made: Column, known: Sequence[Column]) -> tuple[DataFrame, Row]:
    """Judge messages of one row or none, a struct or null, without ever making that struct.

    What is asked of a field is asked of the expression it is made by; a struct would be an object for each record,
    and each of its numbers one more. Returns the judged records, and their rows' fields, null unless archived.
    """
    is_decoded = F.col("undecodable").isNull()
    # Named so: the record's own columns, named like some of the archive's, stand beside them.
    named = {name: f"field_{number}" for number, name in enumerate(archive_columns(pipeline))}
    fields = found.select(
        "*",
        (is_decoded & made.isNotNull()).alias("is_row"),
        # Of the struct itself: of a column that it is kept in, Spark would make it first.
        *(F.when(is_decoded, made[name]).alias(field) for name, field in named.items()),
    )
    violation = _violation(pipeline, {name: F.col(field) for name, field in named.items()})
    judged = fields.withColumn("failure", _asked_once(F.coalesce(*known, F.when(F.col("is_row"), violation))))
    passed = F.col("failure").isNull()
    fate = F.when(~passed, QUARANTINED).when(F.col("is_row"), ARCHIVED).otherwise(EMPTY)
    fates = judged.select("*", fate.alias("fate"), F.lit(0).alias("kafka_element"))
    return fates, {name: F.when(passed, F.col(field)) for name, field in named.items()}


def _judge_rows(pipeline: Pipeline, found: DataFrame, rows: Column, known: Sequence[Column]) -> tuple[DataFrame, Row]:
    """Judge messages of any number of rows, an array.

    Returns the judged records, once for each row, and that row, null unless archived.
    """
    with_rows = found.withColumn("rows", F.when(F.col("undecodable").isNull(), rows))
    violations = _violations(pipeline, F.col("rows"))
    judged = with_rows.withColumn("failure", _asked_once(F.coalesce(*known, *violations)))
    fate = (
        F.when(F.col("failure").isNotNull(), QUARANTINED)
        .when(F.coalesce(F.size("rows"), F.lit(0)) <= 0, EMPTY)
        .otherwise(ARCHIVED)
    )
    archived = F.when(F.col("fate") == ARCHIVED, F.col("rows"))
    exploded = judged.withColumn("fate", fate).select(
        "fate",
        *_CARRIED,
        # One for each row of a record, or null for none.
        F.posexplode_outer(archived).alias("kafka_element", "row"),
    )
    return exploded.withColumn("kafka_element", F.coalesce("kafka_element", F.lit(0))), F.col("row")


def _violations(pipeline: Pipeline, rows: Column) -> Iterator[Column]:
    """The first rule that each of the first rows breaks, and that any of the further ones does."""
    size = F.size(rows)
    for at in range(_GENERATED):
        yield F.when(size > at, _violation(pipeline, F.get(rows, F.lit(at))))
    further = F.transform(F.slice(rows, _GENERATED + 1, size), lambda row: _violation(pipeline, row))
    yield F.when(size > _GENERATED, F.get(F.filter(further, lambda each: each.isNotNull()), F.lit(0)))


def _asked_once(value: Column) -> Column:
    """The same value, by an expression that Spark holds for nondeterministic and hence never repeats.

    Whoever keeps only the archived rows filters by what the failure says. Spark moves such a filter below the
    projections, with their expressions in place of their columns: each record was judged once more by the filter,
    and an Avro value parsed again for each rule that asks for a field, in more code than a method may have.
    """
    return F.when(F.spark_partition_id() >= 0, value)


def utc_date(moment: Column) -> Column:
    """The date of a timestamp in UTC, by arithmetic: `to_date` asks the calendar of the session's time zone."""
    micros = F.unix_micros(moment)
    # Division truncates: before 1970 to the day after, but for midnight.
    days = F.call_function("div", micros, F.lit(_DAY)) - F.when((micros < 0) & (micros % _DAY != 0), 1).otherwise(0)
    return F.date_from_unix_date(days.cast("int"))


def _failing_fast(undecodable: Column, left_alone: Column) -> Column:
    """What cannot be decoded throws, naming the record; not where a record is left alone."""
    at = F.concat_ws(" ", F.concat_ws("-", "kafka_topic", "kafka_partition"), F.lit("offset"), "kafka_offset")
    said = F.concat(
        F.lit(f"{FAILED_FAST}: "), at, F.lit(": "), undecodable["reason"], F.lit(", "), undecodable["detail"]
    )
    return F.when(~left_alone & undecodable.isNotNull(), F.raise_error(said)).when(~left_alone, undecodable)


def _record() -> Column:
    """What a record is besides its value, as struct<key, headers, topic, partition, offset, timestamp>."""
    names = ("topic", "partition", "offset", "timestamp")
    return F.struct("key", "headers", *(F.col(f"kafka_{name}").alias(name) for name in names))


def archive_rows(pipeline: Pipeline, decoded: DataFrame) -> DataFrame:
    """The archived rows among the decoded: the archive's columns, the Kafka columns and `event_time`."""
    archived = decoded.where(F.col("fate") == ARCHIVED) if "fate" in decoded.columns else decoded
    return archived.select(
        *archive_columns(pipeline),
        *COORDINATES,
        "kafka_element",
        F.col(pipeline.archive.event_time).alias("event_time"),
    )


def load_references(spark: SparkSession, pipeline: Pipeline) -> dict[str, DataFrame]:
    """The pipeline's reference tables by name."""
    return {name: _load(spark, reference) for name, reference in pipeline.references.items()}


def _load(spark: SparkSession, reference: Reference) -> DataFrame:
    # Read by the driver and sent along: a reference ships with the code, executors need not see the file.
    lines = reference.path.read_text().splitlines()
    text = frame_of(spark, ((line,) for line in lines[1:] if line), "line STRING")
    return text.select(F.from_csv("line", reference.columns).alias("row")).select("row.*")


def _path(row: Row, path: str) -> Column:
    first, *others = path.split(".")
    return reduce(lambda value, part: value[part], others, row[first])


def _is_missing(pipeline: Pipeline, row: Row, path: str) -> Column:
    kind: DataType = struct_of(pipeline.archive.columns)
    for part in path.split("."):
        assert isinstance(kind, StructType)
        kind = kind[part].dataType
    value = _path(row, path)
    return F.coalesce(value, F.lit("")) == "" if isinstance(kind, StringType) else value.isNull()


def _violation(pipeline: Pipeline, row: Row) -> Column:
    """The first rule that this row breaks."""
    if not pipeline.archive.all_rules:
        return F.lit(None).cast("STRUCT<reason: STRING, detail: STRING>")
    first, *others = _rules(pipeline, row)
    return reduce(lambda found, rule: found.when(*rule), others, F.when(*first))


def _rules(pipeline: Pipeline, row: Row) -> Iterator[tuple[Column, Column]]:
    """Of each rule whether the row breaks it (null is no), and the failure that this is."""
    columns = struct_of(pipeline.archive.columns)
    event_time = _path(row, pipeline.archive.event_time)
    for rule in pipeline.archive.all_rules:
        match rule:
            case Required(column):
                is_broken = _is_missing(pipeline, row, column)
                found = failure("required_missing", F.lit(f"{column} is missing"))
            case SafeValue(column):
                value = _path(row, column).cast("string")
                is_broken = ~F.coalesce(value.rlike(rf"\A(?:{SAFE_VALUE})\z"), F.lit(False))
                shown = F.regexp_replace(F.substring(F.coalesce(value, F.lit("null")), 1, 100), "[^ -~]", "?")
                words = F.lit(f"{column} is not safe as the name of a folder: ")
                found = failure("unsafe_partition_value", F.concat(words, shown))
            case MaxBytes(column, limit):
                size = F.octet_length(_path(row, column))
                is_broken = size > limit
                words = F.concat(F.lit(f"{column} has "), size.cast("string"), F.lit(f" bytes, the limit is {limit}"))
                found = failure("value_too_long", words)
            case Fits(file_format):
                column_changed = changed_column(row, columns, file_format)
                is_broken = column_changed.isNotNull()
                words = F.lit(f" has a value that a file of the format {file_format} does not hold")
                found = failure("value_does_not_fit", F.concat(column_changed, words))
            case Between(column, low, high):
                value = _path(row, column)
                # NaN is greater than every number.
                is_broken = (value < F.lit(low)) | (value > F.lit(high))
                words = F.concat(F.lit(f"{column} is not within {low:g} and {high:g}: "), value.cast("string"))
                found = failure("out_of_range", words)
            case EventTimeWithin():
                # In microseconds: Spark takes an interval from a timestamp by way of the calendar.
                behind, ahead = (F.lit(bound // timedelta(microseconds=1)) for bound in rule.bounds)
                arrival = F.col("kafka_timestamp")
                first, last = F.unix_micros(arrival) - behind, F.unix_micros(arrival) + ahead
                is_broken = (F.unix_micros(event_time) < first) | (F.unix_micros(event_time) > last)
                bounds = f" is not within {rule.behind} before and {rule.ahead} after the record's timestamp "
                detail = F.concat(event_time.cast("string"), F.lit(bounds), arrival.cast("string"))
                found = failure("event_time_out_of_bounds", detail)
        yield is_broken, found


def failure(reason: str, detail: Column) -> Column:
    """Why a record is quarantined, as struct<reason, detail>."""
    return F.struct(F.lit(reason).alias("reason"), detail.alias("detail"))


def withhold(failures: Mapping[Coordinates, str], reason: str = POISON) -> Column | None:
    """The `withheld` of a few records by their coordinates, each with its detail; None for none.

    For literals in a stream's plan; many records are joined instead.
    """
    if not failures:
        return None
    at = F.concat_ws(" ", "topic", "partition", "offset")
    found = F.lit(None)
    for detail, group in groupby(sorted(failures, key=lambda c: (failures[c], c)), key=lambda c: failures[c]):
        known = [f"{topic} {partition} {offset}" for topic, partition, offset in group]
        found = F.when(at.isin(known), failure(reason, F.lit(detail))).otherwise(found)
    return found
