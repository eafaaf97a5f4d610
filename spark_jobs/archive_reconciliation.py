"""Archive against Kafka, per topic partition: counts of every fate, and a hash of all values."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.ledger.micro_batches import Fates
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import IDENTITY
from include.reconciliation import EXAMPLES, Difference, Reconciliation
from spark_jobs.content_hash import sums
from spark_jobs.decoding.records import ARCHIVED, EMPTY, QUARANTINED

_TOPIC_PARTITION = ("kafka_topic", "kafka_partition")


def count_fates(rows: DataFrame) -> dict[TopicPartition, tuple[Fates, tuple[object, ...]]]:
    """Fates and hash sums per topic partition.

    `rows` has outcome, the identity columns, hash_1 and hash_2 (null unless archived).
    """
    counted = rows.groupBy(*_TOPIC_PARTITION).agg(
        F.count_if((F.col("outcome") == ARCHIVED) & (F.col("kafka_element") == 0)).alias(ARCHIVED),
        F.count_if((F.col("outcome") == EMPTY) & (F.col("kafka_element") == 0)).alias(EMPTY),
        F.count_if((F.col("outcome") == QUARANTINED) & (F.col("kafka_element") == 0)).alias(QUARANTINED),
        *sums(),
    )
    return {
        TopicPartition(row["kafka_topic"], row["kafka_partition"]): (
            Fates(row[ARCHIVED], row[EMPTY], row[QUARANTINED]),
            (row["rows"], row["sum_1"], row["sum_2"]),
        )
        for row in counted.collect()
    }


def reconcile_archive(
    kafka_rows: DataFrame, landed_rows: DataFrame, ranges: Sequence[OffsetRange], found: Reconciliation
) -> tuple[dict[TopicPartition, Fates], dict[TopicPartition, int]]:
    """Compare both sides and add what differs to `found`; fates and gaps as Kafka tells them.

    Both frames have outcome, the identity columns, hash_1 and hash_2. A topic partition that agrees in
    every count and hash is `matched`; in one that does not, rows are compared one by one.
    """
    in_kafka, landed = count_fates(kafka_rows), count_fates(landed_rows)
    wrong = []
    for each in ranges:
        if in_kafka.get(each.topic_partition) != landed.get(each.topic_partition):
            wrong.append(each.topic_partition)
    if wrong:
        _compare_rows(kafka_rows, landed_rows, wrong, found)
    fates = {tp: counted[0] for tp, counted in in_kafka.items()}
    gaps = {r.topic_partition: len(r) - fates.get(r.topic_partition, Fates()).records for r in ranges}
    for tp, missing in gaps.items():
        if missing:
            found.add(Difference("gap", "offsets without a visible record", str(tp), f"{missing} offsets"))
    return fates, gaps


def _compare_rows(
    kafka_rows: DataFrame, landed_rows: DataFrame, wrong: Sequence[TopicPartition], found: Reconciliation
) -> None:
    in_question = F.concat_ws("-", *_TOPIC_PARTITION).isin([str(tp) for tp in wrong])
    keys = [*IDENTITY, "outcome"]

    def side(rows: DataFrame, name: str) -> DataFrame:
        return (
            rows.where(in_question)
            .groupBy(*keys)
            .agg(F.count(F.lit(1)).alias(f"{name}_rows"), F.sum("hash_1").alias(f"{name}_hash"))
        )

    compared = side(kafka_rows, "kafka").join(side(landed_rows, "landed"), keys, "full_outer")
    differing = compared.where(
        ~F.col("kafka_rows").eqNullSafe(F.col("landed_rows")) | ~F.col("kafka_hash").eqNullSafe(F.col("landed_hash"))
    ).persist()
    total = differing.count()
    for row in differing.orderBy(*keys).limit(EXAMPLES).collect():
        where = f"{row['kafka_topic']}-{row['kafka_partition']} offset {row['kafka_offset']} row {row['kafka_element']}"
        evidence = f"in Kafka {row['kafka_rows'] or 0} times, in the archive {row['landed_rows'] or 0} times"
        if row["kafka_rows"] == row["landed_rows"]:
            evidence = "in both, with different values"
        found.add(Difference("unexplained", f"archive against Kafka ({row['outcome']})", where, evidence))
        total -= 1
    found.unexplained += total
    differing.unpersist()
