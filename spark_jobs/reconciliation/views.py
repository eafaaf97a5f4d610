"""Batch view against speed view, key by key and window by window, at the speed view's own position.

The speed view counts everything up to its position; the batch view counts an interval. Both meet in the
archive, whose rows fall into parts (`view_parts`). For every key, in every measure:

    speed view = elsewhere + inside          batch view = inside + late + beyond + replayed

A key that breaks either is unexplained, also where one side does not have it at all. Where code other than the current
one took part in the window, the difference is of class `code`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from include.errors import ServiceUnreachable
from include.ledger.archive import micro_batches
from include.ledger.archive.other_code import other_code
from include.ledger.intervals import evidence
from include.ledger.intervals.evidence import SpeedPosition
from include.pipelines.spec import AdditiveView
from include.pipelines.spec.views import EXACT
from include.reconciliation import MATCHED, Difference, DifferenceClass, Reconciliation, against_archive
from include.streams.written_topics import hidden_values
from include.times import format_time, utc
from include.versions import decoder_version, view_version
from include.waiting import wait_for
from spark_jobs.archive.replayed import Replayed
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.reconciliation.sides import Explanation, all_sides, every_measure, reconciled, summed, summed_by_side
from spark_jobs.reconciliation.view_parts import BATCH_HOLDS, PARTS, SPEED_HOLDS, Meeting
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.log import log_of
from spark_jobs.views.speed_topic import speed_values, with_window, written_since
from spark_jobs.views.values import key_json
from spark_jobs.views.windows import Window

_SIDES = ("speed", "batch", *PARTS)

_SUMS = {
    "archived": (SPEED_HOLDS, ()),
    "delivered": (BATCH_HOLDS, ()),
    "unreplayed": (("batch",), ("replayed",)),
}
"""What the speed view must hold, what the batch view must, and the batch view without what replays put into it: sides
that are added, and sides that are subtracted."""

BASE_IS_AWAITED = "the stream has not begun again since a topic was adopted"

_CATCH_UP_SECONDS = 10


def reconcile_view(run: IntervalRun, view: AdditiveView, batch_view: DataFrame, replayed: Replayed) -> Reconciliation:
    """Compare the batch view of a pinned interval with the speed view.

    All keys of either side are compared, in the windows that the interval's rows fall into and in the interval's own
    hours. `late` counts rows, each once per window that it is late for; the other classes count keys. Values by whose
    timestamps the view had not counted the windows yet are read only where a key is unexplained without them: a clock
    was wrong then.
    """
    spark, pipeline = run.spark, run.pipeline
    position = evidence.speed_position(pipeline.name, view.name)
    awaits_base = evidence.awaits_base(pipeline.name, view.name)
    archive_is_behind = not awaits_base and await_archive(pipeline.name, position)
    meeting = Meeting(run, view, position, replayed)
    batch = batch_view.select(key_json(view).alias("key"), f"{view.window}.*", *view.measures)
    windows = meeting.windows(batch)
    own = run.pinned.interval
    since = written_since(pipeline, view, [*windows, (own.from_time, own.to_time)])

    def compare(since: datetime | None) -> Reconciliation:
        speed = with_window(view, speed_values(spark, view, position.batch_id, since)).persist()
        compared = sorted({*windows, *meeting.own_windows(speed)})
        reconciliation = Reconciliation()
        if compared:
            parts = meeting.parts(compared)
            sides = all_sides({"speed": speed, "batch": batch}).unionByName(parts.sums)
            framed = _frame_of(spark, _by_other_code(run, view, position, compared))
            context = _Context(archive_is_behind, meeting.dropped_by(parts.late), replayed.first, awaits_base)
            reconciliation = _classify(_side_by_side(view, sides, framed), view, context)
        speed.unpersist()
        return reconciliation

    found = compare(since)
    if found.unexplained and since:
        # Not instead: the topic may have older values of the interval's own hours, which only add keys.
        without, found = found, min(found, compare(None), key=lambda each: each.unexplained)
        if found is not without:
            log_of(pipeline.name).warning(
                "the topic %s has values of %s whose timestamps are more than an hour too early, and they count: the "
                "clock of a broker, or of the stream's host, was wrong",
                *(view.speed.topic, view.name),
            )
    return with_causes(found, view)


def with_causes(found: Reconciliation, view: AdditiveView) -> Reconciliation:
    """Add to unexplained differences from a view's topic why its readers may not see all that the view has written.

    Where Kafka does not answer that, they are returned as they are.
    """

    def is_of_topic(each: Difference) -> bool:
        return each.cls is DifferenceClass.UNEXPLAINED and each.what == against_topic(view)

    hidden: list[str] = []
    if any(map(is_of_topic, found.differences)):
        with suppress(ServiceUnreachable):
            hidden = hidden_values(view)
    if not hidden:
        return found
    told = (
        replace(each, evidence="; ".join((each.evidence, *hidden))) if is_of_topic(each) else each
        for each in found.differences
    )
    return replace(found, differences=tuple(told))


def await_archive(pipeline: str, position: SpeedPosition) -> bool:
    """Wait a moment for the archive to reach what the speed view has counted; return whether it stays behind."""

    def has_reached() -> bool:
        archived = micro_batches.positions(pipeline)
        return all(archived.get(tp, 0) >= offset for tp, offset in position.offsets.items())

    return not wait_for(has_reached, seconds=_CATCH_UP_SECONDS, every=0.5)


@dataclass(frozen=True)
class _Context:
    """What explains differences besides the counts themselves."""

    archive_is_behind: bool
    dropped_by: Mapping[datetime, Window]
    """First and last watermark that dropped late rows, by the end of their window."""
    first_replayed: str
    """Coordinates of the first replayed record."""
    awaits_base: bool = False
    """Whether a topic was adopted, and the stream has not made the view's base with what was archived of the former."""


def _by_other_code(
    run: IntervalRun, view: AdditiveView, position: SpeedPosition, windows: Sequence[Window]
) -> list[tuple[datetime, datetime, bool]]:
    """Return the windows, each with whether code other than the current one took part in it."""
    name, span = run.pipeline.name, (windows[0][0], max(end for _, end in windows))
    other = other_code(
        name,
        view.name,
        run.pinned.ranges,
        span,
        version=position.batch_id,
        landed_by=decoder_version(name),
        counted_by=view_version(name, view.name, run.versioned_references),
    )
    return [(start, end, other.touches(start, end)) for start, end in windows]


def _frame_of(spark: SparkSession, windows: Sequence[tuple[datetime, datetime, bool]]) -> DataFrame:
    return F.broadcast(frame_of(spark, windows, "start TIMESTAMP, end TIMESTAMP, other_code BOOLEAN"))


def _side_by_side(view: AdditiveView, sides: DataFrame, windows: DataFrame) -> DataFrame:
    """Return a row per key of any side, from the rows of all sides.

    Columns: key, start, end, other_code, and `<side>_<measure>` and `<sum>_<measure>` (`_SUMS`), 0 where there is
    nothing.
    """
    framed = sides.join(windows, ["start", "end"])
    return framed.groupBy("key", "start", "end", "other_code").agg(
        *summed_by_side(view, _SIDES), *(each for name, of in _SUMS.items() for each in summed(view, name, *of))
    )


def _classify(compared: DataFrame, view: AdditiveView, context: _Context) -> Reconciliation:
    """Count the keys of each class, and name the first ones with what all sides hold."""
    holds = {
        "speed_holds": every_measure(view, lambda m: F.col(f"speed_{m}") == F.col(f"archived_{m}")),
        "batch_holds": every_measure(view, lambda m: F.col(f"batch_{m}") == F.col(f"delivered_{m}")),
    }
    # The first measure of an additive view counts rows.
    weight = F.when(F.col("class") == DifferenceClass.LATE, F.col(f"late_{view.measures[0]}")).otherwise(1)
    classed = compared.withColumns(holds).withColumn("class", _class(view, context))
    return reconciled(classed, weight, ["start", "key"], _EXPLANATIONS, view, context)


def _class(view: AdditiveView, context: _Context) -> Column:
    """Return the class of a key, or `matched`, or `elsewhere`; the frame has speed_holds and batch_holds."""
    speed_holds, batch_holds = F.col("speed_holds"), F.col("batch_holds")
    # The first measure counts rows: what is not archived yet makes it larger, and others perhaps smaller.
    ahead = F.col(f"speed_{view.measures[0]}") > F.col(f"archived_{view.measures[0]}")
    behind = F.lit(context.awaits_base) | (ahead & F.lit(context.archive_is_behind))
    has_late = ~every_measure(view, lambda m: F.col(f"late_{m}") == 0)
    is_ours = ~every_measure(view, lambda m: (F.col(f"batch_{m}") == 0) & (F.col(f"delivered_{m}") == 0))
    has_replayed = ~every_measure(view, lambda m: F.col(f"replayed_{m}") == 0)
    has_more = ~every_measure(view, lambda m: (F.col(f"elsewhere_{m}") == 0) & (F.col(f"beyond_{m}") == 0))
    without_replayed = every_measure(view, lambda m: F.col(f"speed_{m}") == F.col(f"unreplayed_{m}"))
    return (
        F.when(F.col("other_code") & ~(batch_holds & speed_holds), DifferenceClass.CODE)
        .when(~batch_holds, DifferenceClass.UNEXPLAINED)
        .when(~speed_holds & behind, DifferenceClass.PENDING)
        .when(~speed_holds, DifferenceClass.UNEXPLAINED)
        # A key that only other intervals have, and whose speed value is right, is reported by those.
        .when(~is_ours, "elsewhere")
        .when(has_late, DifferenceClass.LATE)
        .when(has_replayed & without_replayed, DifferenceClass.QUARANTINED)
        # Equal values say nothing: what other intervals have may be as much as what was not reached.
        .when(has_more, DifferenceClass.PENDING)
        .otherwise(MATCHED)
    )


def against_topic(view: AdditiveView) -> str:
    """Return what is compared."""
    return f"{view.name} against {view.speed.topic}"


def _late(row: Row, view: AdditiveView, context: _Context) -> Explanation:
    first, last = context.dropped_by[utc(row["end"])]
    by = format_time(first) if first == last else f"{format_time(first)} to {format_time(last)}"
    held = "; ".join(f"{m}: {row[f'late_{m}']} of {row[f'batch_{m}']} in the batch view" for m in view.measures)
    evidence = f"late rows are in the batch view only, dropped by the watermark {by}: {held}"
    return against_topic(view), row["key"], evidence


def _quarantined(row: Row, view: AdditiveView, context: _Context) -> Explanation:
    held = "; ".join(f"{m}: {row[f'replayed_{m}']} of {row[f'batch_{m}']}" for m in view.measures)
    text = f"rows replayed from quarantine are in the batch view only: {held}; "
    return against_topic(view), row["key"], f"{text}first record: {context.first_replayed}"


def _code(row: Row, view: AdditiveView, context: _Context) -> Explanation:
    held = "; ".join(
        f"{m}: speed view {row[f'speed_{m}']}, rows as landed {row[f'archived_{m}']}, batch view {row[f'batch_{m}']}"
        for m in view.measures
    )
    return against_topic(view), row["key"], f"computed by other code: {held}"


def _pending(row: Row, view: AdditiveView, context: _Context) -> Explanation:
    texts = []
    for m in view.measures:
        side = {name: row[f"{name}_{m}"] for name in _SIDES}
        texts.append(
            f"{m}: speed view {side['speed']}, this interval {side['batch']}, other intervals {side['elsewhere']}, "
            f"not yet reached by the speed view {side['beyond']}"
        )
    if not row["speed_holds"]:
        why = BASE_IS_AWAITED if context.awaits_base else "the archive is behind the speed view"
        texts.append(f"{why}: run it again when the stream runs")
    return against_topic(view), row["key"], "; ".join(texts)


def _unexplained(row: Row, view: AdditiveView, context: _Context) -> Explanation:
    texts = []
    for m in view.measures:
        side = {name: row[f"{name}_{m}"] for name in _SIDES}
        if not row["speed_holds"]:
            texts.append(
                f"{m}: speed view {side['speed']}, the archive up to its position {row[f'archived_{m}']} "
                f"({side['inside']} of this interval, {side['elsewhere']} of others)"
            )
        if not row["batch_holds"]:
            landed = EXACT.add(EXACT.add(side["inside"], side["late"]), side["beyond"])
            texts.append(
                f"{m}: batch view {side['batch']}, the archive's rows of the interval "
                f"{landed} ({side['inside']} counted by the speed view, "
                f"{side['late']} late, {side['beyond']} not yet reached)"
            )
    against = against_archive(view.name) if row["speed_holds"] else against_topic(view)
    return against, row["key"], "; ".join(texts)


_EXPLANATIONS: Mapping[DifferenceClass, Callable[[Row, AdditiveView, _Context], Explanation]] = {
    DifferenceClass.UNEXPLAINED: _unexplained,
    DifferenceClass.LATE: _late,
    DifferenceClass.QUARANTINED: _quarantined,
    DifferenceClass.CODE: _code,
    DifferenceClass.PENDING: _pending,
}
"""By class, in the order in which keys are named."""
