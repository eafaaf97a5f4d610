"""What archive rows add up to in a view: the one way for stream, interval, and all that compares the two."""

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
    """The view's rows, by its own transforms. Columns: key and measures, as the view declares them.

    `rows` has the archive table's columns and `event_time`; `references` is what `load_references` gives.
    """
    counted = transform(pipeline, view.rows)(rows, references)
    aggregated: DataFrame = transform(pipeline, view.aggregate)(counted, window_column(view))
    return aggregated


def aggregate_stream(spark: SparkSession, pipeline: Pipeline, view: AdditiveView, rows: DataFrame) -> DataFrame:
    """The view of a stream of archive rows, which drops what comes after its watermark unless it is always whole."""
    timed = rows.withWatermark("event_time", in_words(view.speed.watermark)) if view.mode == "update" else rows
    return aggregate_view(pipeline, view, timed, load_references(spark, pipeline))
