"""Batch view against speed view, key by key, at the speed view's own position.

The speed view counts everything up to its position; the batch view counts an interval. Both meet in the
archive: for the keys of this interval, the archive's rows up to the speed view's position, less the rows it
dropped as late, must add up to its last value. What lies outside the interval is `pending` for the batch side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.ledger import micro_batches
from include.ledger.incarnations import closed
from include.ledger.speed import late_bounds
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import AdditiveView, Pipeline
from include.reconciliation import Difference, Reconciliation
from spark_jobs.archive_reader import read_archived_by_event_time, within, within_incarnation
from spark_jobs.decoding.records import load_references, transform
from spark_jobs.kafka_source import read_topic
from spark_jobs.sinks.compacted_topic import key_json


@dataclass(frozen=True)
class ViewSides:
    """What a key's measures add up to on each side (0 where there is nothing)."""

    key: str
    speed: int
    elsewhere: int
    """Rows that the speed view counted outside the interval."""
    inside: int
    """Rows of the interval that the speed view has reached."""
    late: int
    """Rows up to its position that the speed view dropped as late."""
    batch: int
    """The batch view's own value."""


def reconcile_view(
    spark: SparkSession,
    pipeline: Pipeline,
    view: AdditiveView,
    batch_view: DataFrame,
    ranges: Sequence[OffsetRange],
    found: Reconciliation,
) -> None:
    """Compare the batch view of the ranges with the speed view and add what differs to `found`."""
    measure = view.measures[0]
    position = micro_batches.positions(pipeline.name, view.name)
    last = micro_batches.last_batch(pipeline.name, view.name)
    batch = batch_view.select(key_json(view).alias("key"), F.col(measure).alias("batch"), f"{view.window}.*").persist()
    bounds = batch.agg(F.min("start"), F.max("end"), F.count(F.lit(1))).first()
    if bounds is None or not bounds[2]:
        batch.unpersist()
        return
    speed = speed_values(spark, view, last.batch_id if last else -1)
    rows = _contributions(spark, pipeline, view, (bounds[0], bounds[1]), position, ranges)
    sides = (
        batch.select("key", "batch")
        .join(speed.select("key", F.col(measure).alias("speed")), "key", "left")
        .join(rows, "key", "left")
        .na.fill(0)
    )
    for row in sides.collect():
        _classify(ViewSides(*(row[n] for n in ("key", "speed", "elsewhere", "inside", "late", "batch"))), view, found)
    batch.unpersist()


def _classify(sides: ViewSides, view: AdditiveView, found: Reconciliation) -> None:
    what = f"{view.name} against {view.speed.topic}"
    expected = sides.elsewhere + sides.inside
    if sides.speed != expected:
        evidence = (
            f"speed view {sides.speed}, rows up to its position {expected} (and {sides.late} late), batch {sides.batch}"
        )
        found.add(Difference("unexplained", what, sides.key, evidence))
    elif sides.late:
        found.add(Difference("late", what, sides.key, f"{sides.late} late rows are in the batch view only"), sides.late)
    elif sides.speed != sides.batch:
        evidence = f"speed view {sides.speed}, this interval {sides.batch}, other intervals {sides.elsewhere}"
        found.add(Difference("pending", what, sides.key, evidence))
    else:
        found.matched += 1


def speed_values(spark: SparkSession, view: AdditiveView, last_batch: int) -> DataFrame:
    """The last value of each key that the speed view committed. Columns: key, the measures.

    Values of a micro-batch that the ledger does not know yet are left out.
    """
    schema = ", ".join(f"{name} BIGINT" for name in (*view.measures, "version"))
    values = read_topic(spark, view.speed.topic).select(
        F.col("key").cast("string").alias("key"),
        "partition",
        "offset",
        F.from_json(F.col("value").cast("string"), schema).alias("value"),
    )
    committed = values.where(F.coalesce(F.col("value.version"), F.lit(-1)) <= last_batch)
    # Wrapped, because max_by passes over a null and would bring back the value before a deletion.
    last = committed.groupBy("key").agg(F.max_by(F.struct("value"), "offset")["value"].alias("value"))
    return last.where(F.col("value").isNotNull()).select("key", *(f"value.{name}" for name in view.measures))


def _contributions(
    spark: SparkSession,
    pipeline: Pipeline,
    view: AdditiveView,
    windows: tuple[datetime, datetime],
    position: dict[TopicPartition, int],
    ranges: Sequence[OffsetRange],
) -> DataFrame:
    """What the archive's rows up to the position add to each key. Columns: key, elsewhere, inside, late."""
    low, high = (moment.replace(tzinfo=UTC) for moment in windows)
    paths = micro_batches.files_with_event_times(pipeline.name, low, high)
    archive = read_archived_by_event_time(spark, pipeline, paths).where(
        (F.col("event_time") >= F.lit(low)) & (F.col("event_time") < F.lit(high))
    )
    # Of an incarnation that is no more, everything archived is in the speed view: its base began with it.
    is_closed = F.col("kafka_topic_id").isin(*closed(pipeline.name))
    reached = archive.where(is_closed | within(OffsetRange(tp, 0, offset) for tp, offset in position.items()))
    late = F.lit(False)
    window_end = F.window("event_time", view.window_length)["end"]
    for bound in late_bounds(pipeline.name, view.name, low):
        late = late | (within_incarnation([bound.range]) & (F.col("window_end") <= F.lit(bound.watermark)))
    marked = reached.withColumn("window_end", window_end).withColumn("is_late", late)
    marked = marked.withColumn("is_inside", within_incarnation(ranges))
    counted = transform(pipeline, view.rows)(marked, load_references(spark, pipeline))
    aggregate = transform(pipeline, view.aggregate)
    measure = view.measures[0]
    parts = {
        "elsewhere": counted.where(~F.col("is_inside") & ~F.col("is_late")),
        "inside": counted.where(F.col("is_inside") & ~F.col("is_late")),
        "late": counted.where(F.col("is_late")),
    }
    named = [
        aggregate(rows).select(key_json(view).alias("key"), F.lit(name).alias("part"), F.col(measure).alias("value"))
        for name, rows in parts.items()
    ]
    every = named[0].unionByName(named[1]).unionByName(named[2])
    return every.groupBy("key").pivot("part", list(parts)).agg(F.sum("value"))
