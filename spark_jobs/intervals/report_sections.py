"""What an interval's report shows of its data: views above thresholds, listings, and a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from types import UnionType
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from include.errors import UsageError
from include.intervals.reporting import notifications
from include.ledger import listings
from include.ledger.lineage import BuiltRevision
from include.ledger.listings import ListedReport
from include.pipelines.spec import AdditiveView, Grid, Listing, Pipeline, Report, Threshold, TimeWindow, Top
from include.times import utc
from spark_jobs.archive.replayed import Replayed
from spark_jobs.archive.schema import archive_schema
from spark_jobs.decoding.records import transform
from spark_jobs.intervals.report_grid import grid_section
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.json_rows import row_json
from spark_jobs.spark.log import log_of
from spark_jobs.spark.schemas import struct_of
from spark_jobs.spark.thrown import refused_by_spark
from spark_jobs.views.speed_topic import speed_values, written_since
from spark_jobs.views.values import key_json

ROWS = 50
"""Most rows that a section shows; the report gives their total number."""

SERIES = 6
"""Most keys that the chart shows."""

_INTERVAL = "the interval"

_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)

_SECONDS = "yyyy-MM-dd'T'HH:mm:ss"


def check_listings(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise UsageError for a listing that Spark cannot make of archive rows, e.g. without one of its columns."""
    listings_declared = [report for report in pipeline.reports if isinstance(report, Listing)]
    if listings_declared:
        empty = empty_frame(spark, archive_schema(pipeline))
        rows = empty.withColumn("event_time", F.col(pipeline.archive.event_time))
        for report in listings_declared:
            _listed(pipeline, report, rows)


def collect_report(
    run: IntervalRun, rows: DataFrame, replayed: Replayed, built: list[BuiltRevision]
) -> tuple[dict[str, Any], list[ListedReport]]:
    """Return sections and chart of the report, small enough for the ledger, and the rows to notify of.

    A rebuild, which is only compared, has no rows to notify of. `rows` are those of the interval's own records.
    Listings have only these: what replays deliver to it is older, and would be listed as the state of a thing at its
    last record.
    """
    spark, pipeline = run.spark, run.pipeline
    views = {view.name: _read_view(spark, pipeline, view, built) for view in pipeline.views}
    sections, noted = [], []
    for report in pipeline.reports:
        if isinstance(report, Listing) and report.notify and not report.up and not run.attempt.is_rebuild:
            section, listed = _noted_listing(pipeline, report, rows)
            sections.append(section)
            noted.append(listed)
        else:
            shown = rows if isinstance(report, Listing) else replayed.added_to(rows)
            sections.append(section_of(spark, pipeline, report, views, shown, _INTERVAL))
    charted = next((view for view in pipeline.views if not view.is_total), None)
    chart = _chart(charted, views[charted.name]) if charted else {}
    return {"sections": sections, "chart": chart}, noted


def section_of(
    spark: SparkSession,
    pipeline: Pipeline,
    report: Report,
    views: Mapping[str, DataFrame],
    rows: DataFrame,
    scope: str,
) -> dict[str, Any]:
    """Return one section: `{"title", "note", "columns", "rows", "truncated"}`, of a grid also `"grid"`.

    Of a `Top` and a `Listing` also `"keys"`, the columns that identify a row.

    `views` are the batch views by name; `rows` has the archive table's columns and `event_time`; `scope` names in the
    notes what was read.
    """
    if isinstance(report, Threshold):
        return _threshold(spark, pipeline, report, views[report.view], scope)
    if isinstance(report, Top):
        return _section(report.title, f"over all windows of {scope}", _top(report, views[report.view]), report.by)
    if isinstance(report, Grid):
        return grid_section(report, rows, scope)
    return _listing(report, _listed(pipeline, report, rows), scope)


def _listing(report: Listing, listed: DataFrame, scope: str) -> dict[str, Any]:
    return _section(report.title, f"as of the last record of {scope}", listed, report.key)


def _noted_listing(pipeline: Pipeline, report: Listing, rows: DataFrame) -> tuple[dict[str, Any], ListedReport]:
    """Return the section, and its rows to notify of."""
    listed = _listed(pipeline, report, rows).persist()
    section = _listing(report, listed, _INTERVAL)
    # By their keys: what else changes in a row changes nothing in which ones are noted. As the ledger orders these: of
    # the next interval it tells which rows may have come after them.
    noted = listed.orderBy(*_as_keys(listed, report.key), *_in_order(listed)).limit(notifications.MOST).collect()
    of_report = notifications.listed_of(report, (row.asDict() for row in noted))
    listed.unpersist()
    return section, of_report


def _read_view(spark: SparkSession, pipeline: Pipeline, view: AdditiveView, built: list[BuiltRevision]) -> DataFrame:
    locations = [revision.location for revision in built if revision.table == pipeline.view_table(view)]
    reader = spark.read.schema(view.columns)
    return (reader.parquet(*locations) if locations else empty_frame(spark, struct_of(view.columns))).persist()


def _section(title: str, note: str, shown: DataFrame, keys: Sequence[str] = ()) -> dict[str, Any]:
    rows = _held_by_python(shown).limit(ROWS + 1).collect()
    # Counting runs another query over the same input.
    truncated = shown.count() - ROWS if len(rows) > ROWS else 0
    texts = [[listings.plain(value) for value in row] for row in rows[:ROWS]]
    section = {"title": title, "note": note, "columns": shown.columns, "rows": texts, "truncated": truncated}
    return {**section, "keys": list(keys)} if keys else section


def _threshold(
    spark: SparkSession, pipeline: Pipeline, report: Threshold, rows: DataFrame, scope: str
) -> dict[str, Any]:
    """Return the keys above the limit in the batch view or in the speed view, with both values."""
    view, measure = next(view for view in pipeline.views if view.name == report.view), report.measure
    batch = rows.select(key_json(view).alias("key"), F.col(measure).alias("batch_view"))
    since = _written_since(pipeline, view, rows)
    try:
        speed = speed_values(spark, view, 2**62, since).select("key", F.col(measure).alias("speed_view"))
    except UsageError as missing:
        # What is built again, or only reported, need not wait until the topic is written again.
        log_of(pipeline.name).warning("%s", missing)
        speed = batch.limit(0).toDF("key", "speed_view")
    key = F.from_json("key", StructType([StructField(name, StringType()) for name in view.key]))
    both = batch.join(speed, "key", "left").where(
        (F.col("batch_view") > report.above) | (F.col("speed_view") > report.above)
    )
    plain = view.plain_key
    ends = {} if view.is_total else {"from": "$.start", "to": "$.end"}
    shown = both.select(
        *(key[name].alias(name) for name in plain),
        *(F.get_json_object(key[view.window], path).alias(name) for name, path in ends.items()),
        "batch_view",
        "speed_view",
    ).orderBy(F.desc("batch_view"), *plain, *ends)
    topic = view.speed.topic
    note = f"{view.description}, above {report.above}: the batch view of {scope} beside the last value of {topic}"
    return _section(report.title, note, shown)


def _written_since(pipeline: Pipeline, view: AdditiveView, rows: DataFrame) -> datetime | None:
    """Return since when the speed view may have written about the rows' windows; None when that is unknown."""
    if view.is_total:
        return None
    window = F.col(view.window)
    first, last = rows.agg(*map(_in_python, (F.min(window["start"]), F.max(window["end"])))).collect()[0]
    return written_since(pipeline, view, [(utc(first), utc(last))]) if first else None


def _in_python(moment: Column) -> Column:
    """Return a time, or the first or last one that Python holds in every time zone."""
    # Both ignore nulls.
    is_known = moment.isNotNull()
    return F.when(is_known, F.greatest(F.lit(_FIRST), F.least(F.lit(_LAST), moment)))


def _top(report: Top, rows: DataFrame) -> DataFrame:
    """Return the largest keys; equal ones in the order of their names, so that a rerun shows the same."""
    totals = rows.groupBy(*report.by).agg(F.sum(report.measure).alias(report.measure))
    return totals.orderBy(F.desc(report.measure), *report.by).limit(report.rows)


def _listed(pipeline: Pipeline, report: Listing, rows: DataFrame) -> DataFrame:
    with refused_by_spark(pipeline, report.rows):
        listed = transform(pipeline, report.rows)(rows).select(*report.columns)
    return _held_by_python(listed.orderBy(*_in_order(listed)))


def _in_order(rows: DataFrame) -> list[Column]:
    """Return by what to order rows so that a rerun gives the same order: all their columns."""
    # Spark does not order these.
    return [
        row_json([each.name]) if _has(MapType | VariantType, each.dataType) else F.col(f"`{each.name}`")
        for each in rows.schema
    ]


def _as_keys(rows: DataFrame, key: Sequence[str]) -> list[Column]:
    """Return by what keys are ordered in the ledger, which has texts for all values but whole numbers and Booleans."""
    columns = dict(zip(rows.columns, _in_order(rows), strict=True))
    kinds = {each.name: each.dataType for each in rows.schema}
    return [
        columns[name] if isinstance(kinds[name], IntegralType | BooleanType) else columns[name].cast("string")
        for name in sorted(key)
    ]


def _held_by_python(rows: DataFrame) -> DataFrame:
    """Return the rows with texts for dates and times, which may be out of Python's range, and for what holds some."""
    return rows.select(*(_held(each.name, each.dataType).alias(each.name) for each in rows.schema))


def _held(name: str, kind: DataType) -> Column:
    column = F.col(f"`{name}`")
    if isinstance(kind, TimestampType | TimestampNTZType):
        fraction = F.date_format(column, ".SSSSSS")
        shown = F.when(fraction == ".000000", "").otherwise(fraction)
        return F.concat(F.date_format(column, _SECONDS), shown, F.lit("Z"))
    return column.cast("string") if _has(DateType | TimestampType | TimestampNTZType, kind) else column


def _has(wanted: type | UnionType, kind: DataType) -> bool:
    """Return whether values of this type are, or hold, some of a wanted type."""
    inner: list[DataType] = []
    match kind:
        case StructType():
            inner = [each.dataType for each in kind]
        case ArrayType():
            inner = [kind.elementType]
        case MapType():
            inner = [kind.keyType, kind.valueType]
    return isinstance(kind, wanted) or any(_has(wanted, each) for each in inner)


def _chart(view: AdditiveView, rows: DataFrame) -> dict[str, Any]:
    """Return the largest keys per window: x are windows, with a series per key; `others` adds up the remaining keys."""
    plain = view.plain_key
    measure = view.measures[0]
    # A boolean is shown by its name where it is true, e.g. `ArchiverBot bot`.
    texts = [
        F.when(F.col(n), n) if kind == "boolean" else F.col(n).cast("string") for n, kind in rows.select(*plain).dtypes
    ]
    start = F.date_format(F.col(view.window)["start"], _start_format(view.time_windows))
    # Keys with the same text are one series: ("a", null) and (null, "a").
    named = rows.groupBy(F.concat_ws(" ", *texts).alias("name"), start.alias("x")).agg(F.sum(measure).alias("value"))
    totals = named.groupBy("name").agg(F.sum("value").alias("total"))
    largest = [row["name"] for row in totals.orderBy(F.desc("total"), "name").limit(SERIES + 1).collect()]
    names, others = largest[:SERIES], totals.count() - SERIES if len(largest) > SERIES else 0
    # A name of null is that of all others.
    shown = F.when(F.col("name").isin(names), F.col("name")).alias("name")
    counted = named.groupBy(shown, "x").agg(F.sum("value").alias("value")).collect()
    values = {(row["name"], row["x"]): _drawn(row["value"]) for row in counted}
    windows = sorted({x for _, x in values})

    def over_time(name: str | None) -> list[Any]:
        return [values.get((name, x), 0) for x in windows]

    series = [{"name": listings.plain(name), "values": over_time(name)} for name in names]
    chart = {"title": view.description, "unit": measure, "x": windows, "series": series}
    return chart | ({"others": {"keys": others, "values": over_time(None)}} if others else {})


def _drawn(value: Any) -> Any:
    """Return a value of the chart as the ledger's JSON holds it, which has no decimals."""
    if not isinstance(value, Decimal):
        return value
    return int(value) if value == int(value) else float(value)


def _start_format(windows: TimeWindow) -> str:
    """Return the format in which no two windows' beginnings are the same text."""
    seconds = (windows.length_seconds, windows.slide_seconds, windows.start_seconds)
    return "yyyy-MM-dd HH:mm:ss" if any(each % 60 for each in seconds) else "yyyy-MM-dd HH:mm"
