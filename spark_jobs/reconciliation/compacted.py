"""Archived records that Kafka's log no longer shows because it was compacted since.

Kafka cannot tell what they were. The evidence is that their topic is compacted, that a second reader sees none of them
either, and that the archive's files, and the fates counted of the ranges before, are as the ledger noted them. Without
all of this such records stay unexplained, like phantoms in the archive. Where this user must not read whether a topic
is compacted, that is named beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include import kafka
from include.kafka.gap_proof import prove_gaps
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import ARCHIVE_AGAINST_KAFKA, Difference, DifferenceClass, Reconciliation
from spark_jobs.archive.files import within
from spark_jobs.reconciliation.against_kafka import missing_spans
from spark_jobs.reconciliation.against_ledger import reconcile_with_ledger
from spark_jobs.reconciliation.counted import count_fates

_COORDINATES = ["kafka_topic", "kafka_partition", "kafka_offset"]


@dataclass(frozen=True)
class Compacted:
    """The part of an interval that only the archive still holds."""

    landed: DataFrame
    """Their fates and rows, in the columns of the archive's side."""
    records: int
    reconciliation: Reconciliation
    """With the topics whose settings must not be read, where only that is missing; their records are not among these,
    and are counted where they are compared."""

    def rows(self, archived: DataFrame) -> DataFrame:
        """Return the archive rows of these records."""
        coordinates = self.landed.select(*_COORDINATES).distinct()
        return archived.join(coordinates, _COORDINATES, "left_semi").select(*archived.columns)


def find_compacted(
    pinned: PinnedInterval, in_kafka: DataFrame, in_landing: DataFrame, ranges: Sequence[OffsetRange]
) -> Compacted | None:
    """Return the records of the ranges that Kafka has compacted since they were archived, or may have; None without.

    Both frames have fate, the identity columns, hash_1 and hash_2. Costs one request per topic where none is compacted.
    Raises OffsetsLost, ServiceUnreachable.
    """
    policies = {topic: kafka.cleanup_policy(topic) for topic in _topics(ranges)}
    compacted = {topic for topic, policy in policies.items() if "compact" in policy}
    wanted = [r for r in ranges if len(r) and _may_be_compacted(policies[r.topic_partition.topic])]
    missing = missing_spans(in_kafka, wanted) if wanted else {}
    wanted = [r for r in wanted if r.topic_partition in missing]
    if not wanted:
        return None
    landed = in_landing.where(within(wanted)).join(in_kafka.select(*_COORDINATES).distinct(), _COORDINATES, "left_anti")
    landed = landed.select(*in_landing.columns).persist()
    counts = _counts(landed)
    proofs = prove_gaps({tp: missing[tp] for tp in counts})
    is_proved = bool(counts) and not any(proof.visible for proof in proofs.values())
    if not is_proved or reconcile_with_ledger(pinned, in_landing, count_fates(in_landing)).reconciliation.unexplained:
        landed.unpersist()
        return None
    named = [(_since if tp.topic in compacted else _unknown)(tp, *counted) for tp, counted in sorted(counts.items())]
    records = sum(count for tp, (count, _, _) in counts.items() if tp.topic in compacted)
    known = landed.where(F.col("kafka_topic").isin(sorted(compacted)))
    return Compacted(known, records, Reconciliation.of(named, {"compacted_since": records}))


def _may_be_compacted(policy: str) -> bool:
    return "compact" in policy or not policy


def _topics(ranges: Iterable[OffsetRange]) -> set[str]:
    return {r.topic_partition.topic for r in ranges if len(r)}


def _counts(landed: DataFrame) -> dict[TopicPartition, tuple[int, int, int]]:
    """Return the number of records, and the first and the last offset, per topic partition."""
    counted = landed.where("kafka_element = 0").groupBy(*_COORDINATES[:2])
    counts = counted.agg(
        F.count(F.lit(1)).alias("n"), F.min("kafka_offset").alias("a"), F.max("kafka_offset").alias("b")
    )
    return {
        TopicPartition(row["kafka_topic"], row["kafka_partition"]): (row["n"], row["a"], row["b"])
        for row in counts.collect()
    }


def _since(tp: TopicPartition, records: int, first: int, last: int) -> Difference:
    return Difference(
        DifferenceClass.COMPACTED_SINCE,
        "records that only the archive holds",
        str(tp),
        f"{records} records between offsets {first} and {last} were archived, and Kafka has compacted its log since: a "
        "second reader sees none of them; the archive's files are as the ledger noted them",
    )


def _unknown(tp: TopicPartition, records: int, first: int, last: int) -> Difference:
    return Difference(
        DifferenceClass.UNEXPLAINED,
        f"{ARCHIVE_AGAINST_KAFKA} (compaction not known)",
        str(tp),
        f"{records} records between offsets {first} and {last} were archived, as the ledger noted them, and a second "
        f"reader sees none of them: if {tp.topic} is compacted, they are explained, but this user must not read its "
        f"settings. Grant DescribeConfigs on {tp.topic} and run the interval again; or, if you know that it is "
        "compacted, build it with --source archive",
    )
