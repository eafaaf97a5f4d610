"""A view's aggregates over archive rows: one function for the stream, the interval, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from include.pipelines.spec import AdditiveView, Pipeline
from include.times import in_words
from spark_jobs.decoding.records import load_references, transform
from spark_jobs.views.windows import window_column


def aggregate_view(
    pipeline: Pipeline, view: AdditiveView, rows: DataFrame, references: Mapping[str, DataFrame]
) -> DataFrame:
    """Return the view's rows, by its own transforms. Columns: key and measures, as the view declares them.

    `rows` has the archive table's columns and `event_time`; `references` is what `load_references` gives.
    """
    counted = transform(pipeline, view.rows)(rows, references)
    windows = [window_column(view)] if view.windows else []
    aggregated: DataFrame = transform(pipeline, view.aggregate)(counted, *windows)
    return aggregated


def aggregate_stream(spark: SparkSession, pipeline: Pipeline, view: AdditiveView, rows: DataFrame) -> DataFrame:
    """Return the view of a stream of archive rows; it drops late rows, unless its mode is complete or it has no window.

    Without a window its state keeps all keys, in either mode.
    """
    drops = view.mode == "update" and not view.is_total
    timed = rows.withWatermark("event_time", in_words(view.speed.watermark)) if drops else rows
    return aggregate_view(pipeline, view, timed, load_references(spark, pipeline))
