"""How a change of the decoding code changes records that other code landed.

Their rows are decoded from Kafka by the current code, so an interval's output stays a function of its ranges and the
code. Landing is then compared by coordinates; what differs in rows is of class `code`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.ledger.intervals.evidence import Recorded
from include.offsets import Fate, OffsetRange, TopicPartition
from include.pipelines.spec import IDENTITY
from include.reconciliation import Difference, DifferenceClass, Reconciliation
from spark_jobs.archive.files import within
from spark_jobs.reconciliation.counted import coordinate_hashes
from spark_jobs.spark.frames import frame_of

NO_CHANGES = {"added": 0, "removed": 0, "changed": 0}

RECORD = ("kafka_topic", "kafka_partition", "kafka_offset")

NAMED = 10
"""Rows that are named one by one."""


def by_coordinates(side: DataFrame, otherwise: Sequence[OffsetRange]) -> DataFrame:
    """Return a side of the archive's reconciliation with the records of these ranges reduced to their coordinates.

    Each becomes one row without values and of fate `empty`, so that both sides count it alike. Its hashes are those of
    its coordinates: a missing record and a doubled one are not the same as none. All others are unchanged.
    """
    if not otherwise:
        return side
    theirs = within(otherwise)
    hashes = zip(("hash_1", "hash_2"), coordinate_hashes(), strict=True)
    return side.where(~theirs | (F.col("kafka_element") == 0)).select(
        F.when(theirs, F.lit(Fate.EMPTY)).otherwise(F.col("fate")).alias("fate"),
        *IDENTITY,
        *(F.when(theirs, at).otherwise(F.col(name)).alias(name) for name, at in hashes),
    )


def without_doubles(records: DataFrame, rows: DataFrame, replaced: Sequence[OffsetRange]) -> DataFrame:
    """Return the landed records without rows, but for those that have rows in these ranges.

    Other code landed them than gave the rows, from registered revisions that took the place of removed landing.
    """
    if not replaced:
        return records
    have_rows = rows.where(within(replaced)).select(*RECORD).distinct()
    return records.join(have_rows, list(RECORD), "left_anti").select(*records.columns)


def count_left_out(spark: SparkSession, records: DataFrame, recorded: Sequence[Recorded]) -> int:
    """Return how many records that registered builds counted in their ranges are not among these records.

    Other code built what is registered after their landing was removed, and gave them no rows: they are empty, and the
    archive holds them nowhere. `records` has the identity columns, and all records of the ranges that the archive has.
    """
    if not recorded:
        return 0
    places = [
        (number, *astuple(each.range.topic_partition), each.range.from_offset, each.range.until_offset)
        for number, each in enumerate(recorded)
    ]
    columns = "number INT, kafka_topic STRING, kafka_partition INT, from_offset BIGINT, until_offset BIGINT"
    places_of = F.broadcast(frame_of(spark, places, columns))
    held = records.where("kafka_element = 0").join(places_of, ["kafka_topic", "kafka_partition"])
    held = held.where("kafka_offset >= from_offset AND kafka_offset < until_offset")
    counts = {row["number"]: row["count"] for row in held.groupBy("number").count().collect()}
    # Each for itself: what is missing in one place is not made up for in another.
    return sum(max(each.fates.records - counts.get(number, 0), 0) for number, each in enumerate(recorded))


def with_left_out(
    kafka_side: DataFrame, landed_side: DataFrame, replaced: Sequence[OffsetRange]
) -> tuple[DataFrame, Reconciliation]:
    """Return the archive's side with the records of these ranges that it holds nowhere, and name how many these are.

    Both sides are those of `by_coordinates`. The landing with their rows was removed, and other code that built the
    registered revisions since gave them no rows. The caller checks that all files that remain are as they were landed:
    then nothing else can have taken a record out.
    """
    if not replaced:
        return landed_side, Reconciliation()
    left_out = kafka_side.where(within(replaced)).join(landed_side.select(*RECORD), list(RECORD), "left_anti")
    left_out = left_out.select(*kafka_side.columns).persist()
    counts = left_out.groupBy("kafka_topic", "kafka_partition").count().collect()
    named = [
        left_out_by_code(TopicPartition(row["kafka_topic"], row["kafka_partition"]), row["count"]) for row in counts
    ]
    records = sum(row["count"] for row in counts)
    return landed_side.unionByName(left_out), Reconciliation.of(named, {"code": records})


def left_out_by_code(tp: TopicPartition, records: int) -> Difference:
    """Return the difference of records that the archive holds nowhere, because registered code gave them no rows."""
    return Difference(
        DifferenceClass.CODE,
        "archive records left out by the code",
        str(tp),
        f"{records} records had rows in landing files that were removed; the code that built the registered revisions "
        "since gave them none",
    )


def changed_rows(
    kafka_side: DataFrame, landed_side: DataFrame, otherwise: Sequence[OffsetRange]
) -> tuple[dict[str, int], Reconciliation]:
    """Count the rows that the current code adds, removes or changes in these ranges, and name the first ones."""
    counts = dict(NO_CHANGES)
    if not otherwise:
        return counts, Reconciliation()

    def rows_of(side: DataFrame, name: str) -> DataFrame:
        archived = side.where(within(otherwise) & (F.col("fate") == Fate.ARCHIVED))
        return archived.select(*IDENTITY, F.struct("hash_1", "hash_2").alias(name))

    compared = rows_of(kafka_side, "now").join(rows_of(landed_side, "landed"), list(IDENTITY), "full_outer")
    change = (
        F.when(F.col("landed").isNull(), "added")
        .when(F.col("now").isNull(), "removed")
        .when(F.col("now") != F.col("landed"), "changed")
    )
    changes = compared.select(*IDENTITY, change.alias("change")).where("change IS NOT NULL").persist()
    counts.update({row["change"]: row["count"] for row in changes.groupBy("change").count().collect()})
    evidence = f"in all {', '.join(f'{count} {name}' for name, count in counts.items())}"
    named = [
        Difference(
            DifferenceClass.CODE,
            f"archive row {row['change']} by the code",
            f"{row['kafka_topic']}-{row['kafka_partition']} offset {row['kafka_offset']} row {row['kafka_element']}",
            evidence,
        )
        for row in changes.orderBy(*IDENTITY).limit(NAMED).collect()
    ]
    changes.unpersist()
    return counts, Reconciliation.of(named, {"code": sum(counts.values())})
