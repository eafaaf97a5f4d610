"""The archive's rows where batch view and speed view meet, split into parts by which view counts them.

elsewhere   reached by the speed view, of other intervals
inside      reached by the speed view, of this interval
late        of this interval, reached, but dropped: their window was closed by then
beyond      of this interval, not yet reached
replayed    delivered by this interval, out of the quarantine of an earlier one; the speed view never saw them
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.ledger.archive import micro_batches
from include.ledger.intervals import evidence
from include.ledger.intervals.evidence import LateBound, SpeedPosition
from include.ledger.streams.incarnations import closed
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import EVENT_TIMES, AdditiveView, TimeWindow
from include.times import utc
from spark_jobs.archive.files import within
from spark_jobs.archive.reader import CLOSED_TOPIC_ID, read_archived, read_archived_by_event_time, within_incarnation
from spark_jobs.archive.replayed import Replayed
from spark_jobs.decoding.records import load_references
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.frames import frame_of
from spark_jobs.views.aggregate import PART, aggregate_parts, aggregate_view
from spark_jobs.views.values import key_json
from spark_jobs.views.windows import Window, window_of

SPEED_HOLDS = ("elsewhere", "inside")
"""Parts that the speed view's values are made of."""

BATCH_HOLDS = ("inside", "late", "beyond", "replayed")
"""Parts that the batch view's values are made of."""

PARTS = tuple(dict.fromkeys((*SPEED_HOLDS, *BATCH_HOLDS)))

_REPLAYED = "replayed"

_OF_ARCHIVE = tuple(part for part in PARTS if part != _REPLAYED)
"""Parts of the archive's rows; replayed ones are read by themselves."""


@dataclass(frozen=True)
class Parts:
    """The sums of the archive's rows, by part."""

    sums: DataFrame
    """Columns: side (the name of the part), key, start, end, the measures."""
    late: DataFrame
    """The late rows themselves, with tidemark_window_end and the watermarks that dropped them."""


@dataclass(frozen=True)
class Meeting:
    """The archive's rows where both views meet."""

    run: IntervalRun
    view: AdditiveView
    position: SpeedPosition
    replayed: Replayed

    @cached_property
    def _references(self) -> dict[str, DataFrame]:
        return load_references(self.run.spark, self.run.pipeline)

    def _keyed(self, aggregated: DataFrame, side: Column) -> DataFrame:
        """Return a view's rows. Columns: side, key, start, end, the measures."""
        window = F.col(self.view.window)
        ends = (window["start"].alias("start"), window["end"].alias("end"))
        return aggregated.select(side.alias("side"), key_json(self.view).alias("key"), *ends, *self.view.measures)

    def windows(self, batch: DataFrame) -> list[Window]:
        """Return the windows of the batch view, and of the interval's archive rows, also of those it does not count."""
        run = self.run
        landed = read_archived(run.spark, run.pipeline, run.pinned.ranges, run.damaged)
        return _windows_of(batch, landed.select(window_of(self.view.time_windows).alias("window")).select("window.*"))

    def own_windows(self, speed: DataFrame) -> list[Window]:
        """Return the windows of the speed view in the interval's own hours."""
        own = self.run.pinned.interval
        in_own_hours = (F.col("start") >= F.lit(own.from_time)) & (F.col("end") <= F.lit(own.to_time))
        return _windows_of(speed.where(in_own_hours))

    def parts(self, windows: Sequence[Window]) -> Parts:
        """Return the archive's rows in the windows, by part (module docstring).

        Where windows overlap, a row may be late for one and not for another: each series of windows that do not overlap
        is split on its own.
        """
        rows, pipeline, view = self._reached_rows(windows), self.run.pipeline, self.view
        # Of all series: a Spark job reads the rows for it.
        bounds = self._late_bounds(rows, sorted({end for _, end in windows}))
        parted = [(each, self._parted(rows, each, bounds)) for each in view.time_windows.tumbling()]
        sums = [
            self._keyed(aggregate_parts(pipeline, view, rows, self._references, each, _OF_ARCHIVE), F.col(PART))
            for each, rows in parted
        ]
        if self.replayed.records:
            replayed = aggregate_view(pipeline, view, self.replayed.rows, self._references)
            sums.append(self._keyed(replayed, F.lit(_REPLAYED)))
        late = (rows.where(F.col(PART) == "late") for _, rows in parted)
        return Parts(reduce(DataFrame.unionByName, sums), reduce(DataFrame.unionByName, late))

    def _reached_rows(self, windows: Sequence[Window]) -> DataFrame:
        spans, run = _merged(windows), self.run
        rows = reduce(
            DataFrame.unionByName,
            (read_archived_by_event_time(run.spark, run.pipeline, *span, run.damaged) for span in spans),
        )
        # Everything that was archived of a deleted topic is in the speed view: its base began with it.
        is_closed = F.col(CLOSED_TOPIC_ID) != ""
        reached = is_closed | within(OffsetRange(tp, 0, offset) for tp, offset in self.position.offsets.items())
        inside = within_incarnation(run.pinned.ranges, closed(run.pipeline.name))
        return rows.withColumns({"tidemark_reached": reached, "tidemark_inside": inside})

    def _parted(self, rows: DataFrame, series: TimeWindow, bounds: Sequence[LateBound]) -> DataFrame:
        """Add `PART`, null for a row that neither view counts in these windows."""
        late = F.col("tidemark_first_watermark").isNotNull()
        part = (
            F.when(F.col("tidemark_inside") & ~F.col("tidemark_reached"), "beyond")
            .when(F.col("tidemark_inside") & late, "late")
            .when(F.col("tidemark_inside"), "inside")
            .when(F.col("tidemark_reached") & ~late, "elsewhere")
        )
        return self._mark_late(rows, series, bounds).withColumn(PART, part)

    def _mark_late(self, rows: DataFrame, series: TimeWindow, bounds: Sequence[LateBound]) -> DataFrame:
        """Add tidemark_window_end, and the first and the last watermark that dropped a row as late, else null.

        The watermarks' columns are tidemark_first_watermark and tidemark_last_watermark.
        """
        rows = rows.withColumn("tidemark_window_end", window_of(series)["end"])
        schema = (
            "tidemark_topic STRING, tidemark_partition INT, tidemark_from BIGINT, tidemark_until BIGINT, "
            "tidemark_end TIMESTAMP, tidemark_first_watermark TIMESTAMP, tidemark_last_watermark TIMESTAMP"
        )
        if not bounds:
            return rows.withColumns(
                {
                    name: F.lit(None).cast("TIMESTAMP")
                    for name in ("tidemark_first_watermark", "tidemark_last_watermark")
                }
            )
        dropped = frame_of(self.run.spark, map(_row_of, bounds), schema)
        return rows.join(
            F.broadcast(dropped),
            (F.col("kafka_topic") == F.col("tidemark_topic"))
            & (F.col("kafka_partition") == F.col("tidemark_partition"))
            & (F.col("kafka_offset") >= F.col("tidemark_from"))
            & (F.col("kafka_offset") < F.col("tidemark_until"))
            & (F.col("tidemark_window_end") <= F.col("tidemark_end"))
            & (F.col(CLOSED_TOPIC_ID) == ""),
            "left",
        )

    def _late_bounds(self, rows: DataFrame, ends: Sequence[datetime]) -> list[LateBound]:
        if self.view.mode != "update":
            # It has no watermark, and drops nothing.
            return []
        last = micro_batches.last_batch(self.run.pipeline.name, self.view.name)
        # A base that was committed since has no watermark, and the position is one of before.
        is_of_position = last is not None and last.query_id == self.position.query_id
        if last is None or (is_of_position and (last.watermark or evidence.NO_WATERMARK) < ends[0]):
            return []
        extremes = rows.groupBy("kafka_topic", "kafka_partition").agg(F.min("kafka_offset"), F.max("kafka_offset"))
        offsets = {TopicPartition(row[0], row[1]): (row[2], row[3]) for row in extremes.collect()}
        return evidence.late_bounds_within(self.position.query_id, offsets, ends)

    def dropped_by(self, late: DataFrame) -> dict[datetime, Window]:
        """Return the first and the last watermark that dropped late rows, by the end of their window."""
        dropped = late.groupBy("tidemark_window_end").agg(
            F.min("tidemark_first_watermark"), F.max("tidemark_last_watermark")
        )
        return {utc(row[0]): (utc(row[1]), utc(row[2])) for row in dropped.collect()}


def _windows_of(*sides: DataFrame) -> list[Window]:
    every = reduce(DataFrame.unionByName, (side.select("start", "end") for side in sides))
    # Rows that landed before event times had bounds may have windows that Python cannot hold; null is neither.
    in_bounds = (F.col("start") >= F.lit(EVENT_TIMES[0])) & (F.col("start") < F.lit(EVENT_TIMES[1]))
    distinct = every.where(in_bounds).distinct().collect()
    return sorted((utc(row["start"]), utc(row["end"])) for row in distinct)


def _row_of(bound: LateBound) -> tuple[object, ...]:
    tp = bound.range.topic_partition
    offsets = (bound.range.from_offset, bound.range.until_offset)
    return (tp.topic, tp.partition, *offsets, bound.closed, bound.first_watermark, bound.last_watermark)


def _merged(windows: Iterable[Window]) -> list[Window]:
    merged: list[Window] = []
    for start, end in sorted(windows):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
