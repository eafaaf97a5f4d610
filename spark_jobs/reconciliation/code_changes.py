"""How a change of the decoding code changes records that other code landed.

Their rows are decoded from Kafka by the current code, so an interval's output stays a function of its ranges and the
code. Landing is then compared by coordinates; what differs in rows is of class `code`.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.offsets import Fate, OffsetRange
from include.pipelines.spec import IDENTITY
from include.reconciliation import Difference, DifferenceClass, Reconciliation
from spark_jobs.archive.files import within

NO_CHANGES = {"added": 0, "removed": 0, "changed": 0}

NAMED = 10
"""Rows that are named one by one."""


def by_coordinates(side: DataFrame, otherwise: Sequence[OffsetRange]) -> DataFrame:
    """Return a side of the archive's reconciliation with the records of these ranges reduced to their coordinates.

    Each becomes one row without values and of fate `empty`, so that both sides count it alike. All others are
    unchanged.
    """
    if not otherwise:
        return side
    theirs = within(otherwise)
    return side.where(~theirs | (F.col("kafka_element") == 0)).select(
        F.when(theirs, F.lit(Fate.EMPTY)).otherwise(F.col("fate")).alias("fate"),
        *IDENTITY,
        *(F.when(~theirs, F.col(name)).alias(name) for name in ("hash_1", "hash_2")),
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
    return counts, Reconciliation.of(named)
