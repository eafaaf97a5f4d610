"""Flags that the stream raised against flags recomputed from an interval's rows, bid by bid.

For every archive row that the flags' query has passed, under the limits that were in force at its offset:

    the flag is in the topic, in every character      matched
    it is not                                         unexplained; `gap` where its topic partition no longer goes back
                                                      so far, or the topic was deleted since; also where the row's own
                                                      topic was deleted before the query had read the row
    a flag in the topic that its row does not give    unexplained
    the flag of a record that was erased              erased
    another flag of the row than its limits give,
    since an erasure took some of these out           erased

A flag may be there twice, also under the limits of a query that was stopped before it committed the record: each flag
is recomputed under the version that it names. Flags that other code raised are of class `code`, also those beyond what
it had committed, where this code raised its own later. Those of another incarnation's records do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from include import kafka
from include.ledger.archive import micro_batches
from include.ledger.archive.decoders import replaced_by_other_code
from include.ledger.archive.positions import topics_that_left
from include.ledger.erasures.coordinates import erased_within
from include.ledger.intervals.evidence import raised_since
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.streams import flags as ledger
from include.ledger.streams import writers
from include.ledger.streams.flags import FLAGS, InForce
from include.ledger.streams.incarnations import closed, never_read, terms
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from include.reconciliation import EXAMPLES, Difference, DifferenceClass, Reconciliation
from include.times import parse_duration
from include.versions import rules_version
from include.waiting import wait_for
from spark_jobs.archive.files import any_of, within
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.frames import empty_frame, frame_of
from spark_jobs.spark.kafka_source import read_topic
from spark_jobs.spark.schemas import struct_of
from spark_jobs.views.cut_flags import may_be_cut, of_deleted_topics
from spark_jobs.views.flags import VALUE, bounded_flags, declared
from spark_jobs.views.speed_topic import CLOCKS_APART

_COMMITTING = timedelta(seconds=30)
"""How long a commit of the flags' query may take at most, beyond its period, on a busy machine."""

_NAMED = [DifferenceClass(name) for name in ("unexplained", "gap", "code", "erased", "pending")]

_PLACE = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"

_COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")


def reconcile_flags(run: IntervalRun, rows: DataFrame) -> Reconciliation:
    """Compare the flags of an interval's archive rows with the topic's.

    Missing flags of rows that the query has not committed yet are `pending`. No later interval has these rows: while
    the stream runs, its commit is waited for, and they are compared again. So they are, with all flags of the topic,
    where a wrong clock may have given some that are unexplained without it a time before they were raised.
    """
    found = _compare(run, rows)
    if found.counts.pending and _await_commit(run):
        found = _compare(run, rows)
    if found.unexplained:
        # Not instead: the topic may have flags of a former topic's records at the same offsets.
        found = min(found, _compare(run, rows, whole=True), key=lambda each: each.unexplained)
    return found


def _await_commit(run: IntervalRun) -> bool:
    """Wait until the flags' query has committed the interval's ranges; return False when it does not in time.

    Ranges of topics that left, or were deleted since, are not waited for: nobody reads these.
    """
    left, gone = topics_that_left(run.pipeline.name), closed(run.pipeline.name)
    awaited = [r for r in run.pinned.ranges if r.topic_partition.topic not in left and r.topic_id not in gone]

    def progress() -> str:
        passed = micro_batches.positions(run.pipeline.name, FLAGS)
        if all(passed.get(r.topic_partition, 0) >= r.until_offset for r in awaited):
            return "committed"
        return "waiting" if writers.live_writer(run.pipeline.name) else "nobody streams"

    period = parse_duration(declared(run.pipeline).commit_every)
    seconds = (period + _COMMITTING).total_seconds()
    return wait_for(progress, lambda stage: stage != "waiting", seconds=seconds) == "committed"


def _compare(run: IntervalRun, rows: DataFrame, *, whole: bool = False) -> Reconciliation:
    pipeline, pinned = run.pipeline, run.pinned
    forces = ledger.in_force(pipeline.name, pinned.ranges)
    if not forces:
        return Reconciliation()
    since = min(raised_since(pipeline.name, force) for force in forces) - CLOCKS_APART
    raised = _raised(run, None if whole else since).persist()
    named = {row.limits_version for row in raised.select("limits_version").distinct().collect()} - {None}
    versions = sorted(named | {force.version for force in forces})
    recomputed = _recomputed(pipeline, rows, pinned, forces, versions)
    both = recomputed.join(raised, ["key", "value"], "full_outer")
    both = _with_erased(run, both, raised).select(
        "key",
        F.coalesce("raised_at", "recomputed_at").alias("at"),
        "value",
        "is_erased",
        F.col("raised_at").isNotNull().alias("is_raised"),
        "written_at",
        *(F.coalesce(name, F.lit(False)).alias(name) for name in ("may_be", "must_be")),
    )
    lost = of_deleted_topics(declared(pipeline).topic, forces)
    unread = never_read(pipeline.name, FLAGS, pinned.ranges)
    is_cut = may_be_cut(declared(pipeline).topic, since, raised) | within([*lost, *unread], F.col("at"))
    gone = {
        "the topic was deleted since, and with it the flag that the rules give,": lost,
        "the row's topic was deleted before the flags' query had read the row; the rules give": unread,
    }
    classed = both.withColumn("class", _class(run, forces, is_cut)).persist()
    counts = {r["class"]: r["count"] for r in classed.groupBy("class").count().collect() if r["class"] is not None}
    examples = [
        _difference(pipeline, cls, row, gone)
        for cls in _NAMED
        if counts.get(cls)
        for row in classed.where(F.col("class") == cls).orderBy("at").limit(EXAMPLES).collect()
    ]
    for frame in (classed, raised):
        frame.unpersist()
    return Reconciliation.of(examples, counts)


def _raised(run: IntervalRun, since: datetime | None) -> DataFrame:
    """Return the topic's flags of records in the ranges, each once; only those written since then, if it is given.

    Columns: key, value, limits_version, raised_at, flag_partition (a topic partition of the flag itself), written_at
    (Kafka's timestamp of the first such flag).
    """
    spark, pipeline, pinned = run.spark, run.pipeline, run.pinned
    if declared(pipeline).topic not in kafka.describe_topics([declared(pipeline).topic]):
        return empty_frame(spark, struct_of(f"{_RAISED}, raised_at {_AT}, flag_partition INT, written_at TIMESTAMP"))
    messages = read_topic(spark, declared(pipeline).topic, since).select(
        F.col("key").cast("string").alias("key"),
        F.col("value").cast("string").alias("value"),
        "partition",
        "timestamp",
    )
    parsed = messages.select("*", F.from_json("value", VALUE).alias("of"))
    parsed = parsed.select("key", "value", "partition", "timestamp", "of.*")
    return (
        parsed.where(within(pinned.ranges))
        .groupBy("key", "value", "limits_version", F.struct(*_COORDINATES).alias("raised_at"))
        .agg(F.max("partition").alias("flag_partition"), F.min("timestamp").alias("written_at"))
    )


_RAISED = "key STRING, value STRING, limits_version BIGINT"
_AT = "STRUCT<kafka_topic: STRING, kafka_partition: INT, kafka_offset: BIGINT>"


def _with_erased(run: IntervalRun, both: DataFrame, raised: DataFrame) -> DataFrame:
    """Add `is_erased`: the flag is of an erased record, or differs because limits were removed from its version.

    Without a limit a row breaks fewer rules, never more. So the difference is explained only if the topic's flag names
    a rule of a removed limit; a flag that the topic lacks is not explained by it.
    """
    gone, rules = erased_within(run.pipeline.name, run.pinned.ranges), ledger.erased_rules(run.pipeline.name)
    if not gone and not rules:
        return both.withColumn("is_erased", F.lit(False))
    value = F.from_json("value", "limits_version BIGINT, rules ARRAY<STRUCT<rule: STRING>>")
    named = [
        (value["limits_version"] == number) & F.arrays_overlap(value["rules"]["rule"], F.array(*map(F.lit, names)))
        for number, names in rules.items()
    ]
    by_erased = raised.where(reduce(Column.__or__, named, F.lit(False))).select("key", "limits_version").distinct()
    at = [F.col(f"raised_at.{name}") for name in _COORDINATES]
    erased = frame_of(run.spark, gone, _PLACE).select(*(F.col(name).alias(f"erased_{name}") for name in _COORDINATES))
    there = [column == F.col(f"erased_{name}") for column, name in zip(at, _COORDINATES, strict=True)]
    version = F.coalesce("limits_version", value["limits_version"])
    marked = by_erased.select(
        F.col("key").alias("of_key"), F.col("limits_version").alias("of_version"), F.lit(True).alias("by_erased")
    )
    joined = (
        both.withColumn("version", version)
        .join(marked, (F.col("key") == F.col("of_key")) & (F.col("version") == F.col("of_version")), "left")
        .join(F.broadcast(erased), reduce(Column.__and__, there), "left")
    )
    is_erased = F.col("by_erased") | F.col("erased_kafka_topic").isNotNull()
    return joined.withColumn("is_erased", F.coalesce(is_erased, F.lit(False)))


def _recomputed(
    pipeline: Pipeline, rows: DataFrame, pinned: PinnedInterval, forces: Sequence[InForce], versions: Sequence[int]
) -> DataFrame:
    """Return the flags of the rows under each of the versions.

    Columns: key, value, recomputed_at, may_be (a query with that version has read so far), must_be (it was in force).
    """
    limits = ledger.limits_of(pipeline.name, versions)
    firsts = ledger.first_starts(pipeline.name, versions, pinned.topic_ids)
    ends = {r.topic_partition: r.until_offset for r in pinned.ranges}
    frames = []
    for version in limits:
        here = [force.range for force in forces if force.version == version]
        # Nothing is flagged before a query with this version began.
        reach = [OffsetRange(tp, min(at, ends[tp]), ends[tp]) for tp, at in firsts[version].items() if tp in ends]
        flagged = bounded_flags(pipeline, rows.where(within(reach)), limits[version], version)
        at = F.from_json("value", struct_of(VALUE))
        frames.append(
            flagged.select("key", "value", at.alias("of"))
            .select("key", "value", *(f"of.{name}" for name in _COORDINATES))
            .select(
                "key",
                "value",
                F.struct(*_COORDINATES).alias("recomputed_at"),
                F.lit(True).alias("may_be"),
                within(here).alias("must_be"),
            )
        )
    return reduce(DataFrame.unionByName, frames)


def _class(run: IntervalRun, forces: Sequence[InForce], is_cut: Column) -> Column:
    """Return the class of a flag; null for a correct one that was superseded, never needed, or of another record."""
    pipeline = run.pipeline.name
    passed: Mapping[TopicPartition, int] = micro_batches.positions(pipeline, FLAGS)
    # Positions are of the topics that are read now; nothing of a deleted one will be read any more.
    gone = closed(pipeline)
    deleted = [r for r in run.pinned.ranges if r.topic_id in gone]
    is_passed = within([*(OffsetRange(tp, 0, at) for tp, at in passed.items() if at), *deleted], F.col("at"))
    current = rules_version(pipeline)
    others = [force.range for force in forces if force.rules_version != current]
    if run.attempt.source is Source.ARCHIVE:
        others += replaced_by_other_code(pipeline, run.pinned.ranges)
    by_other_code = within(others, F.col("at"))
    by_other_code |= F.col("is_raised") & _read_ahead(pipeline, forces, current)
    other = F.when(by_other_code, "code").when(is_cut & ~F.col("is_raised"), "gap").otherwise("unexplained")
    return (
        F.when(F.col("is_raised") & F.col("must_be"), "matched")
        .when(F.col("is_raised") & F.col("may_be"), None)
        .when(F.col("is_raised") & _of_other_incarnations(run.pinned), None)
        .when(F.col("is_raised") & F.col("is_erased"), "erased")
        .when(F.col("is_raised"), other)
        .when(F.col("must_be") & ~is_passed, "pending")
        .when(F.col("must_be") & F.col("is_erased"), "erased")
        .when(F.col("must_be"), other)
    )


def _read_ahead(pipeline: str, forces: Sequence[InForce], current: str) -> Column:
    """Return whether other code, which had read on beyond its last commit, may have raised a flag of the topic.

    Such a flag was written before the query in force at its row began.
    """
    conditions = [
        within([OffsetRange(tp, max(force.range.from_offset, began), force.range.until_offset)], F.col("at"))
        & (F.col("written_at") < F.lit(force.since + CLOCKS_APART))
        for force in forces
        for tp, began in [(force.range.topic_partition, ledger.other_code_began(pipeline, force, current))]
        if began is not None
    ]
    return any_of(conditions)


def _of_other_incarnations(pinned: PinnedInterval) -> Column:
    """Return whether a flag was written while another incarnation of its record's topic was read.

    That has other records at the same offsets. Which one a flag is of, only its time tells.
    """
    adopted, closed_since = terms(pinned.pipeline)
    topic, written, ids = F.col("at.kafka_topic"), F.col("written_at"), pinned.topic_ids.items()
    before = [(topic == name) & (written < F.lit(adopted[its])) for name, its in ids if its in adopted]
    after = [(topic == name) & (written >= F.lit(closed_since[its])) for name, its in ids if its in closed_since]
    return any_of([*before, *after])


def _difference(
    pipeline: Pipeline, cls: DifferenceClass, row: Row, gone: Mapping[str, Sequence[OffsetRange]]
) -> Difference:
    at = row["at"]
    tp = TopicPartition(at.kafka_topic, at.kafka_partition)
    where = f"{tp} offset {at.kafka_offset}"
    if cls is DifferenceClass.ERASED:
        # The flag itself may name erased values.
        text = "its record, or limits that it was raised by, were erased; the topic has what was raised before"
        return Difference(cls, f"flags in {declared(pipeline).topic}", where, text)
    side = "the topic has" if row["is_raised"] else "the rules give, but the topic has not,"
    if cls is DifferenceClass.PENDING:
        side = "the flags' query has not committed the row; the topic does not have yet what the rules give,"
    elif cls is DifferenceClass.GAP:
        side = next((why for why, of in gone.items() if any(r.holds(tp, at.kafka_offset) for r in of)), side)
    return Difference(cls, f"flags in {declared(pipeline).topic}", where, f"{side} {row['value'][:500]}")
