"""A view's aggregates over archive rows: one function for the stream, the interval, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DecimalType, StructType

from include.errors import UsageError
from include.pipelines.spec import AdditiveView, Pipeline, TimeWindow
from include.times import in_words
from spark_jobs.decoding.records import load_references, transform
from spark_jobs.spark.schemas import reads_as, scale_of, struct_of
from spark_jobs.spark.thrown import refused_by_spark
from spark_jobs.views.analysed import is_passed_on, made_of, not_additive
from spark_jobs.views.windows import window_column, window_of

PART = "tidemark_part"
"""Column of rows that are aggregated part by part."""


def aggregate_view(
    pipeline: Pipeline, view: AdditiveView, rows: DataFrame, references: Mapping[str, DataFrame]
) -> DataFrame:
    """Return the view's rows, by its own transforms. Columns: key and measures, as the view declares them.

    `rows` has the archive table's columns and `event_time`; `references` is what `load_references` gives. Raises
    UsageError when the aggregate lacks a column of the key or a measure, or returns one of another type, when a measure
    does not add up, when the rows have another event time, and when a transform asks for what is not there.
    """
    with refused_by_spark(pipeline, view.rows):
        counted: DataFrame = transform(pipeline, view.rows)(rows, references)
    if view.windows:
        _check_event_time(pipeline, view, counted, rows)
    windows = [window_column(view)] if view.windows else []
    with refused_by_spark(pipeline, view.aggregate):
        aggregated: DataFrame = transform(pipeline, view.aggregate)(counted, *windows)
    _check_columns(pipeline, view, aggregated.schema)
    _check_sums(pipeline, view, aggregated)
    return aggregated


def _check_event_time(pipeline: Pipeline, view: AdditiveView, counted: DataFrame, rows: DataFrame) -> None:
    """Raise UsageError for a time by which intervals do not find the rows, or of which the stream has no watermark."""
    made = made_of(counted, rows, "event_time")
    if made is not None and not is_passed_on(counted, rows, "event_time"):
        raise UsageError(
            f"the function {view.rows} of the view {view.name} makes another event_time, of "
            f"{', '.join(sorted(made)) or 'a constant'}; the stream has a watermark of the archive's alone, which is "
            f"{pipeline.archive.event_time}",
            remedy="leave event_time as it is; to count by another time, declare a second pipeline on the same topic",
            pipeline=pipeline.name,
        )


def _check_sums(pipeline: Pipeline, view: AdditiveView, aggregated: DataFrame) -> None:
    """Raise UsageError for a measure of which a stream cannot add micro-batches, nor an interval windows or parts."""
    for measure in view.measures:
        if function := not_additive(aggregated, measure):
            raise UsageError(
                f"the aggregate {view.aggregate} of the view {view.name} makes {measure} by {function}, whose values "
                "of parts do not add up to that of the whole",
                remedy="make measures of sum and count alone; find other values in a Listing, or by SQL from the table",
                pipeline=pipeline.name,
            )


def _check_columns(pipeline: Pipeline, view: AdditiveView, returned: StructType) -> None:
    # As in Spark, names that differ in case alone are one.
    kinds = {each.name.lower(): each.dataType for each in returned.fields}
    missing = next((name for name in (*view.key, *view.measures) if name.lower() not in kinds), "")
    if missing:
        part = "key" if missing in view.key else "measures"
        raise UsageError(
            f"the aggregate {view.aggregate} of the view {view.name} returns no column {missing}, "
            f"only {', '.join(returned.names)}",
            remedy=f"let it return {missing}, or take it from the view's {part}",
            pipeline=pipeline.name,
        )
    declared = struct_of(view.columns)
    # Not of the window, which Tidemark makes.
    fitting = {**dict.fromkeys(view.plain_key, _names_alike), **dict.fromkeys(view.measures, _adds_up_as)}
    for name, fits in fitting.items():
        kind, wanted = kinds[name.lower()], declared[name].dataType
        if not fits(kind, wanted):
            raise UsageError(
                f"the aggregate {view.aggregate} of the view {view.name} returns {name} as {kind.simpleString()}, "
                f"declared as {wanted.simpleString()}",
                remedy=f"let it return {name} as {wanted.simpleString()}"
                + (", and cast before it sums" if name in view.measures else ""),
                pipeline=pipeline.name,
            )


def _names_alike(returned: DataType, declared: DataType) -> bool:
    """Return whether a part of a key is the same text as it is returned, in the topic, and as declared, in files."""
    whole = scale_of(returned) == scale_of(declared) == 0 and not isinstance(returned, DecimalType)
    return returned.simpleString() == declared.simpleString() or (whole and reads_as(returned, declared))


def _adds_up_as(returned: DataType, declared: DataType) -> bool:
    """Return whether a measure's sums are exact, and no digit of them is lost; a sum of more digits is an error."""
    scale, most = scale_of(returned), scale_of(declared)
    return scale is not None and most is not None and scale <= most


def aggregate_parts(
    pipeline: Pipeline,
    view: AdditiveView,
    rows: DataFrame,
    references: Mapping[str, DataFrame],
    series: TimeWindow,
    parts: Sequence[str],
) -> DataFrame:
    """Return the view's rows in the windows of a series that do not overlap, for each of the parts by itself.

    `rows` is as in `aggregate_view`, with the column `PART`; a row of none of the parts does not count. Columns: key
    and measures, as the view declares them, and `PART`.
    """
    add_up = transform(pipeline, view.aggregate)
    counted: DataFrame = transform(pipeline, view.rows)(rows.where(F.col(PART).isin(*parts)), references)
    window = window_of(series)
    if PART in counted.columns:
        # As a field of the window it belongs to the key, so one aggregation does for all parts.
        parted = F.struct(window["start"].alias("start"), window["end"].alias("end"), PART).alias(view.window)
        aggregated: DataFrame = add_up(counted, parted)
        if PART in aggregated.select(f"{view.window}.*").columns:
            return aggregated.withColumn(PART, F.col(view.window)[PART])
    # The view's own transforms left the column out.
    each = {part: transform(pipeline, view.rows)(rows.where(F.col(PART) == part), references) for part in parts}
    return reduce(
        DataFrame.unionByName,
        (add_up(of_part, window.alias(view.window)).withColumn(PART, F.lit(part)) for part, of_part in each.items()),
    )


def aggregate_stream(spark: SparkSession, pipeline: Pipeline, view: AdditiveView, rows: DataFrame) -> DataFrame:
    """Return the view of a stream of archive rows; it drops late rows, unless its mode is complete or it has no window.

    Without a window its state keeps all keys, in either mode.
    """
    drops = view.mode == "update" and not view.is_total
    timed = rows.withWatermark("event_time", in_words(view.speed.watermark)) if drops else rows
    return aggregate_view(pipeline, view, timed, load_references(spark, pipeline))
