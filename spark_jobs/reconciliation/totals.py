"""Batch view against speed view where there is no window: a running total against the sum of the intervals' parts.

The speed view holds, per key, all that lies below its position. Registered intervals that lie wholly below it hold
their parts of that; what else lies below is read from the archive. For every key, in every measure:

    speed view = proved + older - delivered + rest + inside          batch view = inside + beyond + replayed

proved      what other registered intervals hold that the speed view has read whole, built by the current code
older       the same, built by other code
delivered   of these two, rows that replays put there; the speed view never saw them
rest        rows that the speed view has read and no such interval holds: the newest ones, those of intervals that were
            never built or are pinned again, those that were built before the view was declared or rows were erased,
            those whose part is damaged, and of `older` ones where a key would else be unexplained
inside      rows of this interval that the speed view has read
beyond      rows of this interval that it has not
replayed    rows that replays put into this interval

A key that breaks either is unexplained, whichever interval has it (include/decisions/020-totals-are-sums-of-parts.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from include.ledger.archive import micro_batches
from include.ledger.archive.decoders import counted_otherwise, decoded_otherwise
from include.ledger.completeness.partials import Partial, Partials, closed_extents, of_other_code, read_otherwise
from include.ledger.intervals import evidence
from include.ledger.intervals.evidence import SpeedPosition
from include.ledger.quarantine import replays_into
from include.ledger.streams.incarnations import closed
from include.offsets import OffsetRange, without
from include.pipelines.spec import AdditiveView
from include.pipelines.spec.views import EXACT
from include.reconciliation import MATCHED, DifferenceClass, Reconciliation, against_archive
from include.versions import code_version, decoder_version, view_version
from spark_jobs.archive.files import read_files, within
from spark_jobs.archive.reader import read_archived, read_replayed
from spark_jobs.archive.replayed import Replayed
from spark_jobs.decoding.records import load_references
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.reconciliation.sides import Explanation, all_sides, every_measure, reconciled, summed, summed_by_side
from spark_jobs.reconciliation.views import BASE_IS_AWAITED, against_topic, await_archive, with_causes
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.log import log_of
from spark_jobs.spark.schemas import struct_of
from spark_jobs.views.aggregate import aggregate_view
from spark_jobs.views.speed_topic import speed_values
from spark_jobs.views.stored_parts import stored_parts
from spark_jobs.views.values import key_json

SIDES = ("speed", "batch", "proved", "older", "delivered", "rest", "inside", "beyond", "replayed")

_BATCH_HOLDS = ("inside", "beyond", "replayed")


def reconcile_total(run: IntervalRun, view: AdditiveView, batch_view: DataFrame, replayed: Replayed) -> Reconciliation:
    """Compare the batch view of a pinned interval, and the parts of all others, with the speed view's totals.

    All keys of the view are compared; those without a row in this interval are reported only if unexplained.
    """
    pipeline = run.pipeline
    position = evidence.speed_position(pipeline.name, view.name)
    awaits_base = evidence.awaits_base(pipeline.name, view.name)
    archive_is_behind = not awaits_base and await_archive(pipeline.name, position)
    meeting = _Meeting(run, view, position, frozenset(closed(pipeline.name)), frozenset({run.pinned.id}))
    context = Context(archive_is_behind, meeting.counted_by_other_code(), replayed.first, awaits_base)

    def compare(meeting: _Meeting) -> Reconciliation:
        return classify(_side_by_side(view, meeting.sides(batch_view, replayed)), view, context)

    found = compare(meeting)
    if found.unexplained and (others := meeting.older | read_otherwise(meeting.parts)):
        # Other code may have given a row another key. Then the parts lack the key that it has now, which no class of
        # this key alone explains. Of an interval that was run again from Kafka, the base counts what had been landed.
        log_of(pipeline.name).warning(
            "the total %s is compared again, with the rows of %s intervals counted from the archive: other code built "
            "the parts of %s of them, and had landed the records of the rest",
            *(view.name, len(others), len(meeting.older)),
        )
        found = compare(replace(meeting, left_out=meeting.left_out | others))
    return with_causes(found, view)


@dataclass(frozen=True)
class _Meeting:
    """Where the running total and the intervals' parts meet."""

    run: IntervalRun
    view: AdditiveView
    position: SpeedPosition
    closed: frozenset[str]
    """Ids of deleted topics, which the speed view's base has read completely."""
    left_out: frozenset[int]
    """Intervals whose parts are not taken: the one that is compared, and those whose rows the archive is to give."""

    def sides(self, batch_view: DataFrame, replayed: Replayed) -> dict[str, DataFrame]:
        """Return what each side holds that can hold anything. Columns: key, the measures."""
        run, view, parts = self.run, self.view, self.parts
        delivered = replays_into([each.interval_id for each in parts])
        older = self.older
        built = {
            "proved": [each for each in parts if each.interval_id not in older],
            "older": [each for each in parts if each.interval_id in older],
        }
        return {
            "speed": speed_values(run.spark, view, self.position.batch_id),
            "batch": self._keyed(batch_view),
            **{side: self._keyed(self._rows(partials)) for side, partials in built.items() if partials},
            "rest": self._rest(),
            **{side: self._aggregate(rows) for side, rows in self._own().items()},
            **self._replayed("delivered", read_replayed(run.spark, run.pipeline, delivered.paths), delivered.records),
            **self._replayed("replayed", replayed.rows, replayed.records),
        }

    @cached_property
    def _held(self) -> Partials:
        """The other registered intervals that the speed view has read whole, and whose files are as built."""
        return stored_parts(self.run.pipeline, self.view, self.left_out, read=self.position.offsets, closed=self.closed)

    @property
    def parts(self) -> tuple[Partial, ...]:
        """What those intervals hold of the view."""
        return self._held.parts

    @cached_property
    def older(self) -> frozenset[int]:
        """The registered intervals whose part other code than the current one added up."""
        name, references = self.run.pipeline.name, self.run.versioned_references
        code, version = code_version(name, references), view_version(name, self.view.name, references)
        return of_other_code(self.run.pipeline.view_table(self.view), self.parts, code=code, view=version)

    def _replayed(self, side: str, rows: DataFrame, records: int) -> dict[str, DataFrame]:
        return {side: self._aggregate(rows)} if records else {}

    def _own(self) -> dict[str, DataFrame]:
        """Return this interval's rows in the archive: those that the speed view has read, and the others."""
        run = self.run
        own = read_archived(run.spark, run.pipeline, run.pinned.ranges, run.damaged)
        read = list(self._reached(run.pinned.ranges))
        if sum(map(len, read)) == sum(map(len, run.pinned.ranges)):
            return {"inside": own}
        return {"inside": own.where(within(read)), "beyond": own.where(~within(read))}

    def counted_by_other_code(self) -> bool:
        """Return whether the speed view was counted, or this interval landed, by other code than the current one."""
        name, run = self.run.pipeline.name, self.run
        version = view_version(name, self.view.name, run.versioned_references)
        return counted_otherwise(self.position.query_id, version) or bool(
            decoded_otherwise(name, run.pinned.ranges, decoder_version(name))
        )

    def _reached(self, ranges: Iterable[OffsetRange]) -> Iterator[OffsetRange]:
        """Yield the parts of the ranges that the speed view has read."""
        for each in ranges:
            at = self.position.offsets.get(each.topic_partition, 0)
            until = each.until_offset if each.topic_id in self.closed else min(each.until_offset, at)
            yield OffsetRange(each.topic_partition, each.from_offset, max(each.from_offset, until), each.topic_id)

    def _rows(self, parts: Sequence[Partial]) -> DataFrame:
        paths = [f"{each.location}/{name}" for each in parts for name in sorted(each.files)]
        return read_files(self.run.spark, paths, struct_of(self.view.columns), self.view.formerly)

    def _rest(self) -> DataFrame:
        """Return what the speed view has read and neither these intervals nor this one hold."""
        run = self.run
        current = micro_batches.stored_topics(run.pipeline.name)
        read = [OffsetRange(tp, 0, at, current.get(tp.topic, "")) for tp, at in self.position.offsets.items()]
        read += closed_extents(run.pipeline.name)
        held = [*run.pinned.ranges, *self._held.ranges]
        # Each incarnation of a topic is read by itself: their offsets overlap.
        by_topic: dict[str, list[OffsetRange]] = defaultdict(list)
        for each in without(read, held):
            by_topic[each.topic_id if each.topic_id in self.closed else ""].append(each)
        rows = [read_archived(run.spark, run.pipeline, ranges, run.damaged) for ranges in by_topic.values()]
        if not rows:
            return empty_frame(run.spark, self._aggregate(read_replayed(run.spark, run.pipeline, [])).schema)
        return self._aggregate(reduce(DataFrame.unionByName, rows))

    def _aggregate(self, rows: DataFrame) -> DataFrame:
        references = load_references(self.run.spark, self.run.pipeline)
        return self._keyed(aggregate_view(self.run.pipeline, self.view, rows, references))

    def _keyed(self, rows: DataFrame) -> DataFrame:
        return rows.select(key_json(self.view).alias("key"), *self.view.measures)


@dataclass(frozen=True)
class Context:
    """What explains differences besides the sums themselves."""

    archive_is_behind: bool
    other_code: bool
    """Whether other code counted the speed view, or landed this interval."""
    first_replayed: str
    """Coordinates of the first record that replays put into this interval; empty for none."""
    awaits_base: bool = False
    """Whether a topic was adopted, and the stream has not begun again, as in views.py."""


def _side_by_side(view: AdditiveView, sides: Mapping[str, DataFrame]) -> DataFrame:
    """Return a row per key. Columns: key, and `<side>_<measure>`, 0 where there is nothing.

    Further `below_<measure>`, which must be in the running total, and `own_<measure>`, which must be in the batch view.
    """
    below = summed(view, "below", ("proved", "older", "rest", "inside"), less=("delivered",))
    return all_sides(sides).groupBy("key").agg(*summed_by_side(view, SIDES), *below, *summed(view, "own", _BATCH_HOLDS))


def classify(compared: DataFrame, view: AdditiveView, context: Context) -> Reconciliation:
    """Count the keys of each class, and name the first ones with what all sides hold."""
    holds = {
        "speed_holds": every_measure(view, lambda m: F.col(f"speed_{m}") == F.col(f"below_{m}")),
        "batch_holds": every_measure(view, lambda m: F.col(f"batch_{m}") == F.col(f"own_{m}")),
    }
    classed = compared.withColumns(holds).withColumn("class", _class(view, context))
    return reconciled(classed, F.lit(1), ["key"], _EXPLANATIONS, view, context)


def _class(view: AdditiveView, context: Context) -> Column:
    """Return the class of a key, or `matched`, or `elsewhere`."""

    def has(*sides: str) -> Column:
        return ~every_measure(view, lambda m: reduce(Column.__and__, (F.col(f"{side}_{m}") == 0 for side in sides)))

    speed_holds, batch_holds = F.col("speed_holds"), F.col("batch_holds")
    other_code = F.lit(context.other_code) | has("older")
    # By the number of rows, as in views.py.
    ahead = F.col(f"speed_{view.measures[0]}") > F.col(f"below_{view.measures[0]}")
    behind = F.lit(context.awaits_base) | (ahead & F.lit(context.archive_is_behind))
    return (
        F.when(other_code & ~(speed_holds & batch_holds), DifferenceClass.CODE)
        .when(~batch_holds, DifferenceClass.UNEXPLAINED)
        .when(~speed_holds & behind, DifferenceClass.PENDING)
        .when(~speed_holds, DifferenceClass.UNEXPLAINED)
        .when(~has("batch", *_BATCH_HOLDS), "elsewhere")
        .when(has("rest", "beyond"), DifferenceClass.PENDING)
        .when(has("replayed", "delivered"), DifferenceClass.QUARANTINED)
        .otherwise(MATCHED)
    )


def _held(row: Row, view: AdditiveView) -> str:
    """Return what all sides hold of a key, by measure."""
    texts = []
    for m in view.measures:
        side = {name: row[f"{name}_{m}"] for name in SIDES}
        others = EXACT.add(side["proved"], side["older"])
        texts.append(
            f"{m}: speed view {side['speed']}; other registered intervals {others}, of which "
            f"{side['delivered']} by replays, this interval {side['batch']} ({side['inside']} read by the speed view, "
            f"{side['beyond']} not yet, {side['replayed']} by replays), rows of no such interval {side['rest']}"
        )
    return "; ".join(texts)


def _prefixed(prefix: str) -> Callable[[Row, AdditiveView, Context], Explanation]:
    def explain(row: Row, view: AdditiveView, context: Context) -> Explanation:
        return against_topic(view), row["key"], f"{prefix}{_held(row, view)}"

    return explain


def _unexplained(row: Row, view: AdditiveView, context: Context) -> Explanation:
    against = against_topic(view) if row["batch_holds"] else against_archive(view.name)
    return against, row["key"], _held(row, view)


def _quarantined(row: Row, view: AdditiveView, context: Context) -> Explanation:
    first = f"; first record of this interval: {context.first_replayed}" if context.first_replayed else ""
    text = f"rows replayed from quarantine are in the intervals only: {_held(row, view)}{first}"
    return against_topic(view), row["key"], text


def _pending(row: Row, view: AdditiveView, context: Context) -> Explanation:
    text = _held(row, view)
    if not row["speed_holds"]:
        why = BASE_IS_AWAITED if context.awaits_base else "the archive is behind the speed view"
        text += f"; {why}: run it again when the stream runs"
    return against_topic(view), row["key"], text


_EXPLANATIONS: Mapping[DifferenceClass, Callable[[Row, AdditiveView, Context], Explanation]] = {
    DifferenceClass.UNEXPLAINED: _unexplained,
    DifferenceClass.QUARANTINED: _quarantined,
    DifferenceClass.CODE: _prefixed("computed by other code: "),
    DifferenceClass.PENDING: _pending,
}
"""By class, in the order in which keys are named."""
