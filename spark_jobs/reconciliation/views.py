"""Batch view against speed view, key by key and window by window, at the speed view's own position.

The speed view counts everything up to its position; the batch view counts an interval. Both meet in the
archive, whose rows fall into parts (`view_parts`). For every key, in every measure:

    speed view = elsewhere + inside          batch view = inside + late + beyond + replayed

What breaks either is unexplained, also where one side does not have the key at all; unless other code than
the current one had a part in the window: then the difference is of class `code`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import add, and_

from include.ledger.archive import micro_batches
from include.ledger.archive.decoders import other_code
from include.ledger.intervals.evidence import SpeedPosition
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from include.ledger.intervals import evidence
from include.ledger.intervals.pins import PinnedInterval
from include.pipelines.spec import AdditiveView, Pipeline
from include.reconciliation import EXAMPLES, Difference, DifferenceClass, Reconciliation
from include.times import format_time, utc
from include.versions import decoder_version
from spark_jobs.archive.registered import Damaged
from spark_jobs.archive.replayed import Replayed
from spark_jobs.reconciliation.view_parts import BATCH_HOLDS, PARTS, SPEED_HOLDS, Meeting
from spark_jobs.spark.frames import frame_of
from spark_jobs.views.speed_topic import speed_values, with_window, written_since
from spark_jobs.views.values import key_json
from spark_jobs.views.windows import Window

_CATCH_UP_SECONDS = 10


def reconcile_view(
    spark: SparkSession,
    pipeline: Pipeline,
    view: AdditiveView,
    batch_view: DataFrame,
    pinned: PinnedInterval,
    found: Reconciliation,
    replayed: Replayed,
    damaged: Damaged = "refuse",
) -> None:
    """Compare the batch view of a pinned interval with the speed view and add what differs to `found`.

    Compared are all keys, of either side, in the windows that the interval's rows fall into and in the
    interval's own hours. `late` counts rows, the other classes count keys. `damaged` is for the archive's rows.
    """
    position = evidence.speed_position(pipeline.name, view.name)
    archive_is_behind = _await_archive(pipeline.name, position)
    meeting = Meeting(spark, pipeline, view, pinned, position, replayed, damaged)
    batch = batch_view.select(key_json(view).alias("key"), f"{view.window}.*", *view.measures)
    windows = meeting.windows(batch)
    own = pinned.interval
    since = written_since(pipeline, view, [*windows, (own.from_time, own.to_time)])
    speed = with_window(view, speed_values(spark, view, position.batch_id, since)).persist()
    windows = sorted({*windows, *meeting.own_windows(speed)})
    if windows:
        parts = meeting.parts(windows)
        sides = {"speed": speed, "batch": batch, **parts.sums}
        framed = _frame_of(spark, _by_other_code(pipeline, view, pinned, windows))
        compared = _side_by_side(view, sides, framed).persist()
        context = _Context(archive_is_behind, meeting.dropped_by(parts.late), replayed.first)
        _classify(compared, view, context, found)
        compared.unpersist()
    speed.unpersist()


def _await_archive(pipeline: str, position: SpeedPosition) -> bool:
    """Give the archive a moment to reach what the speed view has counted; whether it stays behind."""

    def is_behind() -> bool:
        archived = micro_batches.positions(pipeline)
        return any(archived.get(tp, 0) < offset for tp, offset in position.offsets.items())

    waiting = Retrying(
        retry=retry_if_result(bool),
        stop=stop_after_delay(_CATCH_UP_SECONDS),
        wait=wait_fixed(0.5),
        retry_error_callback=lambda state: state.outcome is not None and bool(state.outcome.result()),
    )
    return bool(waiting(is_behind))


@dataclass(frozen=True)
class _Context:
    """What explains differences beside the counts themselves."""

    archive_is_behind: bool
    dropped_by: Mapping[datetime, Window]
    """First and last watermark that dropped late rows, by the end of their window."""
    first_replayed: str
    """Coordinates of the first replayed record."""


def _by_other_code(
    pipeline: Pipeline, view: AdditiveView, pinned: PinnedInterval, windows: Sequence[Window]
) -> list[tuple[datetime, datetime, bool]]:
    """The windows, each with whether other code than the current one had a part in it."""
    span = (windows[0][0], max(end for _, end in windows))
    other = other_code(pipeline.name, view.name, pinned.ranges, span, decoder_version(pipeline.name))
    return [(start, end, other.touches(start, end)) for start, end in windows]


def _frame_of(spark: SparkSession, windows: Sequence[tuple[datetime, datetime, bool]]) -> DataFrame:
    return F.broadcast(frame_of(spark, windows, "start TIMESTAMP, end TIMESTAMP, other_code BOOLEAN"))


def _side_by_side(view: AdditiveView, sides: Mapping[str, DataFrame], windows: DataFrame) -> DataFrame:
    """A row per key of any side.

    Columns: key, start, end, other_code, and `<side>_<measure>` (0 where there is nothing).
    """
    every = reduce(DataFrame.unionByName, (frame.withColumn("side", F.lit(name)) for name, frame in sides.items()))
    summed = [
        F.coalesce(F.sum(F.when(F.col("side") == side, F.col(measure))), F.lit(0)).alias(f"{side}_{measure}")
        for side in sides
        for measure in view.measures
    ]
    return every.join(windows, ["start", "end"]).groupBy("key", "start", "end", "other_code").agg(*summed)


def _sum(parts: Iterable[str], measure: str) -> Column:
    return reduce(add, (F.col(f"{part}_{measure}") for part in parts))


def _every(view: AdditiveView, condition: Callable[[str], Column]) -> Column:
    return reduce(and_, (condition(measure) for measure in view.measures))


def _classify(compared: DataFrame, view: AdditiveView, context: _Context, found: Reconciliation) -> None:
    """Count the keys of each class, and name the first ones with what all sides hold."""
    speed_holds = _every(view, lambda m: F.col(f"speed_{m}") == _sum(SPEED_HOLDS, m))
    batch_holds = _every(view, lambda m: F.col(f"batch_{m}") == _sum(BATCH_HOLDS, m))
    ahead = _every(view, lambda m: F.col(f"speed_{m}") >= _sum(SPEED_HOLDS, m))
    has_late = ~_every(view, lambda m: F.col(f"late_{m}") == 0)
    is_ours = ~_every(view, lambda m: (F.col(f"batch_{m}") == 0) & (_sum(BATCH_HOLDS, m) == 0))
    has_replayed = ~_every(view, lambda m: F.col(f"replayed_{m}") == 0)
    without_replayed = _every(view, lambda m: F.col(f"speed_{m}") == F.col(f"batch_{m}") - F.col(f"replayed_{m}"))
    cls = (
        F.when(F.col("other_code") & ~(batch_holds & speed_holds), "code")
        .when(~batch_holds, "unexplained")
        .when(~speed_holds & ahead & F.lit(context.archive_is_behind), "pending")
        .when(~speed_holds, "unexplained")
        # A key that only other intervals have, and of which the speed view holds just that, is their matter.
        .when(~is_ours, "elsewhere")
        .when(has_late, "late")
        .when(has_replayed & without_replayed, "quarantined")
        .when(~_every(view, lambda m: F.col(f"speed_{m}") == F.col(f"batch_{m}")), "pending")
        .otherwise("matched")
    )
    # Of an additive view the first measure is what counts rows.
    weight = F.when(F.col("class") == "late", F.col(f"late_{view.measures[0]}")).otherwise(1)
    classed = compared.withColumns({"class": cls, "speed_holds": speed_holds, "batch_holds": batch_holds}).persist()
    totals = {row["class"]: int(row["n"]) for row in classed.groupBy("class").agg(F.sum(weight).alias("n")).collect()}
    classes: tuple[DifferenceClass, ...] = ("unexplained", "late", "quarantined", "code", "pending")
    for name in classes:
        if name not in totals:
            continue
        for row in classed.where(F.col("class") == name).orderBy("start", "key").limit(EXAMPLES).collect():
            found.add(Difference(name, *_explain(name, row, view, context)), 0)
        found.count(name, totals[name])
    found.count("matched", totals.get("matched", 0))
    classed.unpersist()


def _explain(cls: DifferenceClass, row: Row, view: AdditiveView, context: _Context) -> tuple[str, str, str]:
    """What, where and the evidence of a key that is not matched."""
    topic, archive = f"{view.name} against {view.speed.topic}", f"{view.name} against the archive"
    if cls == "late":
        first, last = context.dropped_by[utc(row["end"])]
        by = format_time(first) if first == last else f"{format_time(first)} to {format_time(last)}"
        held = "; ".join(f"{m}: {row[f'late_{m}']} of {row[f'batch_{m}']} in the batch view" for m in view.measures)
        return topic, row["key"], f"late rows are in the batch view only, dropped by the watermark {by}: {held}"
    if cls == "quarantined":
        held = "; ".join(f"{m}: {row[f'replayed_{m}']} of {row[f'batch_{m}']}" for m in view.measures)
        text = f"rows replayed from quarantine are in the batch view only: {held}; "
        return topic, row["key"], f"{text}first record: {context.first_replayed}"
    if cls == "code":
        held = "; ".join(
            f"{m}: speed view {row[f'speed_{m}']}, rows as landed {row[f'elsewhere_{m}'] + row[f'inside_{m}']}, "
            f"batch view {row[f'batch_{m}']}"
            for m in view.measures
        )
        return topic, row["key"], f"computed by other code: {held}"
    texts = []
    for m in view.measures:
        side = {name: row[f"{name}_{m}"] for name in ("speed", "batch", *PARTS)}
        if cls == "pending":
            texts.append(
                f"{m}: speed view {side['speed']}, this interval {side['batch']}, other intervals {side['elsewhere']}, "
                f"not yet reached by the speed view {side['beyond']}"
            )
            continue
        if not row["speed_holds"]:
            texts.append(
                f"{m}: speed view {side['speed']}, the archive up to its position {side['elsewhere'] + side['inside']} "
                f"({side['inside']} of this interval, {side['elsewhere']} of others)"
            )
        if not row["batch_holds"]:
            texts.append(
                f"{m}: batch view {side['batch']}, the archive's rows of the interval "
                f"{side['inside'] + side['late'] + side['beyond']} ({side['inside']} counted by the speed view, "
                f"{side['late']} late, {side['beyond']} not yet reached)"
            )
    if cls == "pending" and not row["speed_holds"] and context.archive_is_behind:
        texts.append("the archive is behind the speed view: run it again when the stream runs")
    return (archive if row["speed_holds"] and cls == "unexplained" else topic), row["key"], "; ".join(texts)
