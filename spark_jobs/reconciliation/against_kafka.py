"""Archive against Kafka, per topic partition: counts of every fate, a hash of all values, and proved gaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from include.kafka.gap_proof import GapProof, Span, prove_gaps
from include.offsets import Fate, Fates, OffsetRange, TopicPartition
from include.pipelines.spec import IDENTITY
from include.reconciliation import (
    ARCHIVE_AGAINST_KAFKA,
    EXAMPLES,
    KAFKA_AGAINST_OFFSETS,
    KAFKA_READ_TWICE,
    Difference,
    DifferenceClass,
    Reconciliation,
)
from spark_jobs.reconciliation.counted import TOPIC_PARTITION, Counted, CountedRows, count_fates, differing
from spark_jobs.spark.frames import frame_of
from spark_jobs.spark.json_rows import row_json, row_of

_COLUMNS_NAMED = 3

Gaps = dict[TopicPartition, int]


@dataclass(frozen=True)
class ArchiveComparison:
    """Fates and proved gaps according to Kafka, and the differences from the archive."""

    fates: dict[TopicPartition, Fates]
    gaps: Gaps
    reconciliation: Reconciliation


def reconcile_archive(
    kafka_rows: DataFrame,
    landed_rows: DataFrame,
    values: tuple[DataFrame, DataFrame],
    ranges: Sequence[OffsetRange],
) -> ArchiveComparison:
    """Compare both sides, per topic partition.

    Both frames have fate, the identity columns, hash_1 and hash_2; `values` are the archived rows of either side with
    all columns, read only to show what a differing row holds. A topic partition that agrees in every count and hash is
    not compared row by row. Raises OffsetsLost, ServiceUnreachable.
    """
    in_kafka, landed = count_fates(kafka_rows), count_fates(landed_rows)
    proofs = prove_missing(kafka_rows, in_kafka, ranges)
    compared = compare_offsets(in_kafka, proofs, ranges)
    unequal = set(differing(in_kafka, landed))
    wrong = [r for r in ranges if r.topic_partition in unequal]
    if not wrong:
        return compared
    proved = {tp: each.spans for tp, each in proofs.items() if not each.proof.visible}
    differences = _compare_rows(kafka_rows, landed_rows, values, wrong, proved)
    return replace(compared, reconciliation=compared.reconciliation + differences)


@dataclass(frozen=True)
class MissingOffsets:
    """Offsets of a range at which Spark read no record, and what a second reader found there."""

    spans: Sequence[Span]
    proof: GapProof


def prove_missing(
    records: DataFrame, counted: CountedRows, ranges: Sequence[OffsetRange]
) -> dict[TopicPartition, MissingOffsets]:
    """Return the missing offsets of the ranges that have more offsets than records.

    `records` has the identity columns of what was counted. Raises OffsetsLost, ServiceUnreachable.
    """
    short = [r for r in ranges if len(r) > counted.get(r.topic_partition, Counted()).fates.records]
    missing = missing_spans(records, short) if short else {}
    proofs = prove_gaps(missing)
    return {r.topic_partition: MissingOffsets(missing[tp], proofs[tp]) for r in short if (tp := r.topic_partition)}


def compare_offsets(
    counted: CountedRows, missing: Mapping[TopicPartition, MissingOffsets], ranges: Sequence[OffsetRange]
) -> ArchiveComparison:
    """Compare the records counted in Kafka and the proved gaps with the offsets of the ranges."""
    fates = {tp: each.fates for tp, each in counted.items()}
    proofs = {tp: each.proof for tp, each in missing.items()}
    gaps = {tp: proofs[tp].offsets if tp in proofs else 0 for tp in (r.topic_partition for r in ranges)}
    visible = {tp: proof.visible for tp, proof in proofs.items()}
    proved = sum((_gap(proof) for proof in proofs.values()), Reconciliation())
    uncounted = Reconciliation.of(_uncounted(ranges, fates, gaps, visible))
    return ArchiveComparison(fates, gaps, proved + uncounted)


def _uncounted(
    ranges: Sequence[OffsetRange],
    fates: Mapping[TopicPartition, Fates],
    gaps: Mapping[TopicPartition, int],
    visible: Mapping[TopicPartition, int],
) -> Iterator[Difference]:
    """Yield the ranges whose records, proved gaps and records seen elsewhere do not add up to their offsets."""
    for each in ranges:
        tp, counted = each.topic_partition, fates.get(each.topic_partition, Fates())
        if counted.records > len(each):
            text = f"Spark read {counted.records} records, the range has {len(each)} offsets"
        elif counted.records + gaps[tp] + visible.get(tp, 0) != len(each):
            text = f"{counted.records} records and {gaps[tp]} proved gaps in {len(each)} offsets"
        else:
            continue
        yield Difference(DifferenceClass.UNEXPLAINED, KAFKA_AGAINST_OFFSETS, str(each), text)


def missing_spans(kafka_rows: DataFrame, ranges: Sequence[OffsetRange]) -> dict[TopicPartition, list[Span]]:
    """Return the offsets of the ranges at which `kafka_rows` has no record, per topic partition in order."""
    seen = kafka_rows.where(_of(ranges) & (F.col("kafka_element") == 0)).select(*TOPIC_PARTITION, "kafka_offset")
    # A sentinel before and after each range makes offsets that are missing at its ends a jump like any other.
    sentinels = [
        (r.topic_partition.topic, r.topic_partition.partition, offset)
        for r in ranges
        for offset in (r.from_offset - 1, r.until_offset)
    ]
    ends = frame_of(kafka_rows.sparkSession, sentinels, "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT")
    before = F.lag("kafka_offset").over(Window.partitionBy(*TOPIC_PARTITION).orderBy("kafka_offset"))
    jumps = (
        seen.unionByName(ends)
        .withColumn("before", before)
        .where(F.col("kafka_offset") > F.col("before") + 1)
        .select(*TOPIC_PARTITION, (F.col("before") + 1).alias("low"), F.col("kafka_offset").alias("high"))
        .orderBy(*TOPIC_PARTITION, "low")
        .toArrow()
    )
    columns = [jumps[name].to_pylist() for name in (*TOPIC_PARTITION, "low", "high")]
    rows = zip(*columns, strict=True)
    return {
        TopicPartition(*tp): [(low, high) for _, _, low, high in spans]
        for tp, spans in groupby(rows, key=lambda row: (row[0], row[1]))
    }


def _gap(proof: GapProof) -> Reconciliation:
    """Return what a second reader found at offsets at which Spark saw no record."""
    tp = proof.topic_partition
    proved = Difference(DifferenceClass.GAP, "offsets without a visible record", str(tp), proof.evidence())
    seen = [
        Difference(
            DifferenceClass.UNEXPLAINED,
            KAFKA_READ_TWICE,
            f"{tp} offset {offset}",
            f"a second reader sees a record ({description}), Spark's read did not",
        )
        for offset, description in proof.seen
    ]
    named = [*([proved] if proof.offsets else []), *seen]
    return Reconciliation.of(named, {"unexplained": proof.visible, "gap": proof.offsets})


def _of(ranges: Iterable[OffsetRange]) -> Column:
    return F.concat_ws("-", *TOPIC_PARTITION).isin([str(r.topic_partition) for r in ranges])


def _compare_rows(
    kafka_rows: DataFrame,
    landed_rows: DataFrame,
    values: tuple[DataFrame, DataFrame],
    wrong: Sequence[OffsetRange],
    proved: Mapping[TopicPartition, Sequence[Span]],
) -> Reconciliation:
    """Count the rows that differ in these ranges, and name the first ones with what both sides hold."""
    keys = [*IDENTITY, "fate"]

    def side(rows: DataFrame, name: str) -> DataFrame:
        # As decimals: the sum of a doubled row's hashes does not fit a bigint.
        hashes = [F.sum(F.col(h).cast("DECIMAL(38,0)")).alias(f"{name}_{h}") for h in ("hash_1", "hash_2")]
        return rows.where(_of(wrong)).groupBy(*keys).agg(F.count(F.lit(1)).alias(f"{name}_rows"), *hashes)

    compared = side(kafka_rows, "kafka").join(side(landed_rows, "landed"), keys, "full_outer")
    same = [F.col(f"kafka_{n}").eqNullSafe(F.col(f"landed_{n}")) for n in ("rows", "hash_1", "hash_2")]
    differing = compared.where(~(same[0] & same[1] & same[2])).persist()
    total = differing.count()
    examples = differing.orderBy(*keys).limit(EXAMPLES).collect()
    differing.unpersist()
    contents = _contents(examples, values)
    named = [_row_difference(row, contents, proved) for row in examples]
    return Reconciliation.of(named, {"unexplained": total})


def _row_difference(
    row: Row, contents: Mapping[tuple[object, ...], str], proved: Mapping[TopicPartition, Sequence[Span]]
) -> Difference:
    identity = tuple(row[name] for name in IDENTITY)
    where = f"{identity[0]}-{identity[1]} offset {identity[2]} row {identity[3]}"
    text = f"in Kafka {_times(row['kafka_rows'])}, in the archive {_times(row['landed_rows'])}"
    if row["kafka_rows"] == row["landed_rows"]:
        text = f"in both, with different values{contents.get(identity, '')}"
    elif _lies_in(proved.get(TopicPartition(identity[0], identity[1]), ()), identity[2]):
        text += "; a second reader sees no record there either (aborted, compacted away, or never written)"
    return Difference(DifferenceClass.UNEXPLAINED, f"{ARCHIVE_AGAINST_KAFKA} ({row['fate']})", where, text)


def _lies_in(spans: Sequence[Span], offset: int) -> bool:
    at = bisect_right(spans, offset, key=lambda span: span[0])
    return at > 0 and offset < spans[at - 1][1]


def _times(count: int | None) -> str:
    return "once" if count == 1 else f"{count or 0} times"


def _contents(examples: Sequence[Row], values: tuple[DataFrame, DataFrame]) -> dict[tuple[object, ...], str]:
    """Return what both sides hold in the first differing columns of rows that both have, by identity."""
    wanted = [
        tuple(row[name] for name in IDENTITY)
        for row in examples
        if row["fate"] == Fate.ARCHIVED and row["kafka_rows"] == row["landed_rows"] == 1
    ]
    if not wanted:
        return {}
    spark = values[0].sparkSession
    schema = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT"
    chosen = F.broadcast(frame_of(spark, wanted, schema))
    in_kafka, landed = (_by_identity(rows.join(chosen, list(IDENTITY), "left_semi")) for rows in values)
    return {each: _differing(in_kafka[each], landed[each]) for each in wanted if each in in_kafka and each in landed}


def _by_identity(rows: DataFrame) -> dict[tuple[object, ...], dict[str, object]]:
    # As JSON: rows may hold dates and times that Python cannot, and there NaN equals itself.
    collected = rows.select(*IDENTITY, row_json(rows.columns).alias("row")).collect()
    return {tuple(row[name] for name in IDENTITY): row_of(row["row"], has_decimals=True) for row in collected}


def _differing(kafka: Mapping[str, object], landed: Mapping[str, object]) -> str:
    names = [name for name in kafka if kafka[name] != landed.get(name)]
    named = "; ".join(
        f"{name}: Kafka {_short(kafka[name])}, archive {_short(landed.get(name))}" for name in names[:_COLUMNS_NAMED]
    )
    more = f"; and {len(names) - _COLUMNS_NAMED} more columns" if len(names) > _COLUMNS_NAMED else ""
    return f": {named}{more}" if named else ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
