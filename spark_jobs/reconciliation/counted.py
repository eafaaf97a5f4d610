"""What is compared of rows that should be the same: fates and sums of hashes per topic partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.offsets import ERASED, Fate, Fates, TopicPartition
from include.pipelines.spec import IDENTITY
from include.reconciliation import WRITTEN_AGAINST_ROWS, Difference, DifferenceClass, Reconciliation
from spark_jobs.archive.content_hash import HashVersion, row_hashes, sums

TOPIC_PARTITION = ("kafka_topic", "kafka_partition")


@dataclass(frozen=True)
class Counted:
    """A topic partition's fates, and the number of rows and sums of both hashes over all fates."""

    fates: Fates = field(default_factory=Fates)
    hashes: tuple[int, int, int] = (0, 0, 0)

    def __add__(self, other: Counted) -> Counted:
        """Return both together."""
        return self._with(other, 1)

    def __sub__(self, other: Counted) -> Counted:
        """Return what is left without the other's rows."""
        return self._with(other, -1)

    def _with(self, other: Counted, sign: int) -> Counted:
        ours, theirs = self.fates, other.fates
        fates = Fates(
            ours.archived + sign * theirs.archived,
            ours.empty + sign * theirs.empty,
            ours.quarantined + sign * theirs.quarantined,
            ours.erased + sign * theirs.erased,
        )
        one, two, three = (a + sign * b for a, b in zip(self.hashes, other.hashes, strict=True))
        return Counted(fates, (one, two, three))


CountedRows = Mapping[TopicPartition, Counted]


def added(first: CountedRows, second: CountedRows) -> dict[TopicPartition, Counted]:
    """Return both sides together."""
    return {tp: first.get(tp, Counted()) + second.get(tp, Counted()) for tp in first.keys() | second.keys()}


def left_of(first: CountedRows, second: CountedRows) -> dict[TopicPartition, Counted]:
    """Return what the first side has beyond the second, without topic partitions of which nothing is left."""
    left = {tp: first.get(tp, Counted()) - second.get(tp, Counted()) for tp in first.keys() | second.keys()}
    return {tp: counted for tp, counted in left.items() if counted != Counted()}


def hashed(rows: DataFrame, schema: StructType, version: HashVersion) -> DataFrame:
    """Return the records of all fates with their hashes; `schema` is the archive table's.

    Columns: fate, the identity columns, hash_1 and hash_2: of an archived row's values, else of its coordinates.
    """
    values = row_hashes(schema, version)
    return rows.select("fate", *IDENTITY, *_hashes(F.col("fate") == Fate.ARCHIVED, values))


def hashed_coordinates(records: DataFrame) -> DataFrame:
    """Return records without rows, in the columns of `hashed`. `records` has the columns fate and the coordinates."""
    whole = records.withColumn("kafka_element", F.lit(0))
    return whole.select("fate", *IDENTITY, *_hashes(F.lit(False), (F.lit(None), F.lit(None))))


def coordinate_hashes() -> tuple[Column, Column]:
    """Return both hashes of a record without values."""
    return F.xxhash64(*IDENTITY), F.xxhash64(F.lit("tidemark"), *IDENTITY)


def _hashes(is_row: Column, values: tuple[Column, Column]) -> list[Column]:
    pairs = zip(values, coordinate_hashes(), strict=True)
    return [F.when(is_row, value).otherwise(at).alias(f"hash_{n}") for n, (value, at) in enumerate(pairs, 1)]


def count_fates(rows: DataFrame) -> dict[TopicPartition, Counted]:
    """Return fates and hash sums per topic partition. `rows` has the columns of `hashed`."""
    counted = rows.groupBy(*TOPIC_PARTITION).agg(
        *(
            F.count_if((F.col("fate") == fate) & (F.col("kafka_element") == 0)).alias(fate)
            for fate in (Fate.ARCHIVED, Fate.EMPTY, Fate.QUARANTINED, ERASED)
        ),
        *sums(),
    )
    return {
        TopicPartition(row["kafka_topic"], row["kafka_partition"]): Counted(
            Fates(row[Fate.ARCHIVED], row[Fate.EMPTY], row[Fate.QUARANTINED], row[ERASED]), hash_sums(row)
        )
        for row in counted.collect()
    }


def hash_sums(row: Row) -> tuple[int, int, int]:
    """Return rows and sums of a row that has the columns of `sums`."""
    return int(row["rows"]), int(row["sum_1"] or 0), int(row["sum_2"] or 0)


def differing(first: CountedRows, second: CountedRows) -> list[TopicPartition]:
    """Return the topic partitions in which the sides differ."""
    every = sorted(first.keys() | second.keys())
    return [tp for tp in every if first.get(tp, Counted()) != second.get(tp, Counted())]


def check_written(reconciled: CountedRows, written: CountedRows) -> Reconciliation:
    """Compare the rows that came back from the written files with those that were reconciled."""

    def words(counted: Counted) -> str:
        rows, one, two = counted.hashes
        return f"{rows} rows with the hash sums {one} and {two}"

    return Reconciliation.of(
        Difference(
            DifferenceClass.UNEXPLAINED,
            WRITTEN_AGAINST_ROWS,
            str(tp),
            f"reconciled were {words(reconciled.get(tp, Counted()))}, "
            f"the revisions have {words(written.get(tp, Counted()))}",
        )
        for tp in differing(reconciled, written)
    )
