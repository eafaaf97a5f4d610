"""Flags as messages: one function for those that the stream raises and those that the interval recomputes.

Key: JSON object of the record's coordinates. Value: these, the declared columns, the rules that the row breaks with
their limits, and the version of the limits. A value that would be too large for Kafka is without its longest columns,
which it names in `left_out`. A replayed record gets the same flag again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.pipelines.spec import Flags, Limit, Pipeline
from include.pipelines.spec.outputs import long_columns
from spark_jobs.decoding.records import transform

_ROW = ("kafka_offset", "kafka_partition", "kafka_topic")

VALUE = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, limits_version BIGINT"
"""The fields of a flag's value that identify its record and its limits, as DDL."""

LARGEST = 1024 * 1024 - 1024
"""Bytes of a flag's value: with its key, what topics take by default. Whatever a topic takes, the value is the same."""

_LEFT_OUT = "left_out"


def declared(pipeline: Pipeline) -> Flags:
    """Return the flags of a pipeline that declares some."""
    assert pipeline.flags is not None
    return pipeline.flags


def rules(pipeline: Pipeline, limits: Sequence[Limit]) -> Column:
    """Return the rules that an archive row breaks: array<struct<rule, above>>."""
    broken: Column = transform(pipeline, declared(pipeline).rules)(limits)
    return broken


def learn_limits(pipeline: Pipeline, views: Mapping[str, DataFrame]) -> list[Limit]:
    """Return the limits that the pipeline's transform learns from rows of views by their names, in a fixed order."""
    learned_rows = transform(pipeline, declared(pipeline).limits)(views).collect()
    learned = (Limit(r.rule, r.subject, None if r.above is None else str(r.above)) for r in learned_rows)
    # A transform may return a null, e.g. for rows without a category.
    return sorted(learned, key=lambda limit: (limit.rule or "", limit.subject or ""))


def bounded_flags(pipeline: Pipeline, rows: DataFrame, limits: Sequence[Limit], version: int) -> DataFrame:
    """Return `flags`, those whose value has more than `LARGEST` bytes without their longest columns.

    Columns: key, value string.
    """
    long = long_columns(declared(pipeline), pipeline.archive_columns, pipeline.archive.all_rules)
    if not long:
        return flags(pipeline, rows, limits, version)
    broken = rows.withColumn("rules", rules(pipeline, limits)).where(F.size("rules") > 0)
    fields = {name: F.col(name) for name in (*_ROW, *declared(pipeline).columns, "rules")}
    fields["limits_version"] = F.lit(version).cast("BIGINT")
    # Half of the value is for all other fields.
    share = LARGEST // 2 // len(long)
    is_longer = {name: F.octet_length(_json({name: fields[name]})) > share for name in long}
    names = F.array(*(F.when(longer, F.lit(name)) for name, longer in is_longer.items()))
    short = {name: F.when(~longer, fields[name]) for name, longer in is_longer.items()}
    whole, cut = _json(fields), _json({_LEFT_OUT: F.array_compact(names), **fields, **short})
    value = F.when(F.octet_length(whole) <= LARGEST, whole).otherwise(cut)
    return broken.select(F.to_json(F.struct(*_ROW)).alias("key"), value.alias("value"))


def _json(fields: Mapping[str, Column]) -> Column:
    return F.to_json(F.struct(*(fields[name].alias(name) for name in sorted(fields))))


def flags(pipeline: Pipeline, rows: DataFrame, limits: Sequence[Limit], version: int) -> DataFrame:
    """Return the flags of archive rows under the limits of a version. Columns: key, value string."""
    broken = rows.withColumn("rules", rules(pipeline, limits)).where(F.size("rules") > 0)
    named = [*_ROW, *declared(pipeline).columns, "rules"]
    fields = sorted([(name, F.col(name)) for name in named] + [("limits_version", F.lit(version).cast("BIGINT"))])
    return broken.select(
        F.to_json(F.struct(*_ROW)).alias("key"),
        F.to_json(F.struct(*(column.alias(name) for name, column in fields))).alias("value"),
    )
