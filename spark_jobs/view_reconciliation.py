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

from include.code_version import decoder_version
from include.ledger import micro_batches
from include.ledger.decoders import other_code
from include.ledger.speed import late_bounds
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import AdditiveView, Pipeline
from include.reconciliation import Difference, Reconciliation
from spark_jobs.archive_reader import read_archived_by_event_time, within
from spark_jobs.decoding.records import load_references, transform
from spark_jobs.kafka_source import read_topic
from spark_jobs.replayed_rows import Replayed
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
    replayed: int = 0
    """Rows of the batch view that came out of quarantine by a replay; the speed view never saw them."""


def reconcile_view(
    spark: SparkSession,
    pipeline: Pipeline,
    view: AdditiveView,
    batch_view: DataFrame,
    ranges: Sequence[OffsetRange],
    found: Reconciliation,
    replayed: Replayed,
) -> None:
    """Compare the batch view of the ranges with the speed view and add what differs to `found`.

    Where other code had a part in the speed view or in the landed rows, a difference is of class `code`.
    """
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
    if replayed.records:
        rows = rows.join(_aggregate(spark, pipeline, view, replayed.rows), "key", "full")
    else:
        rows = rows.withColumn("replayed", F.lit(0))
    events = (bounds[0].replace(tzinfo=UTC), bounds[1].replace(tzinfo=UTC))
    other = other_code(pipeline.name, view.name, ranges, events, decoder_version(pipeline.name))
    sides = (
        batch.select("key", "batch", "start", "end")
        .join(speed.select("key", F.col(measure).alias("speed")), "key", "left")
        .join(rows, "key", "left")
        .na.fill(0)
    )
    for row in sides.collect():
        names = ("key", "speed", "elsewhere", "inside", "late", "batch", "replayed")
        sides_of_key = ViewSides(*(row[name] for name in names))
        if sides_of_key.replayed:
            evidence = f"{sides_of_key.replayed} rows replayed from quarantine are in the batch view only; "
            what = f"{view.name} against {view.speed.topic}"
            found.add(Difference("quarantined", what, sides_of_key.key, f"{evidence}first record: {replayed.first}"))
        otherwise = other.touches(row["start"].replace(tzinfo=UTC), row["end"].replace(tzinfo=UTC))
        _classify(sides_of_key, view, found, otherwise=otherwise)
    batch.unpersist()


def _classify(sides: ViewSides, view: AdditiveView, found: Reconciliation, *, otherwise: bool) -> None:
    what = f"{view.name} against {view.speed.topic}"
    expected = sides.elsewhere + sides.inside
    if otherwise and (sides.speed != expected or sides.batch != sides.inside + sides.late + sides.replayed):
        evidence = f"speed view {sides.speed}, rows as landed {expected}, batch {sides.batch}: computed by other code"
        found.add(Difference("code", what, sides.key, evidence))
    elif sides.speed != expected:
        evidence = (
            f"speed view {sides.speed}, rows up to its position {expected} (and {sides.late} late), batch {sides.batch}"
        )
        found.add(Difference("unexplained", what, sides.key, evidence))
    elif sides.late:
        found.add(Difference("late", what, sides.key, f"{sides.late} late rows are in the batch view only"), sides.late)
    elif sides.speed != sides.batch - sides.replayed:
        evidence = f"speed view {sides.speed}, this interval {sides.batch}, other intervals {sides.elsewhere}"
        found.add(Difference("pending", what, sides.key, evidence))
    elif not sides.replayed:
        found.matched += 1


def _aggregate(spark: SparkSession, pipeline: Pipeline, view: AdditiveView, rows: DataFrame) -> DataFrame:
    """The view's measure over replayed rows. Columns: key, replayed."""
    counted = transform(pipeline, view.rows)(rows, load_references(spark, pipeline))
    aggregated: DataFrame = transform(pipeline, view.aggregate)(counted)
    return aggregated.select(key_json(view).alias("key"), F.col(view.measures[0]).alias("replayed"))


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
    committed = values.where(F.col("value.version") <= last_batch)
    return (
        committed.groupBy("key")
        .agg(F.max_by("value", "offset").alias("value"))
        .select("key", *(f"value.{name}" for name in view.measures))
    )


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
    archive = read_archived_by_event_time(spark, pipeline, low, high)
    reached = archive.where(within(OffsetRange(tp, 0, offset) for tp, offset in position.items()))
    late = F.lit(False)
    window_end = F.window("event_time", view.window_length)["end"]
    for bound in late_bounds(pipeline.name, view.name, low):
        late = late | (within([bound.range]) & (F.col("window_end") <= F.lit(bound.watermark)))
    marked = reached.withColumn("window_end", window_end).withColumn("is_late", late)
    marked = marked.withColumn("is_inside", within(ranges))
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
