"""Rows that replays put into an interval: they were in quarantine, and no speed view has counted them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from include.ledger.intervals.pins import PinnedInterval
from include.ledger.quarantine import replayed_into
from include.pipelines.spec import Pipeline
from spark_jobs.archive.reader import read_replayed


@dataclass(frozen=True)
class Replayed:
    """Rows and records that replays put into an interval."""

    rows: DataFrame
    """The archive table's columns, and `event_time`."""
    records: int
    first: str
    """Coordinates of the first record; empty for none."""

    def added_to(self, rows: DataFrame) -> DataFrame:
        """Return archive rows together with these."""
        return rows.unionByName(self.rows) if self.records else rows


def replayed_rows(spark: SparkSession, pipeline: Pipeline, pinned: PinnedInterval) -> Replayed:
    """Return the interval's replayed rows as they landed: the same on every rerun, from either source."""
    into = replayed_into(pinned.id)
    return Replayed(read_replayed(spark, pipeline, into.paths), into.records, str(into.first or ""))
