"""The base of a speed view in the lake, by the day in which a window begins: a micro-batch reads only its own days.

So the cost of a micro-batch does not depend on the length of the history that the base sums up.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from include import lake
from include.pipelines.spec import AdditiveView
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.schemas import struct_of

DAY = "day"

_NO_DAY = "none"


def day_of(view: AdditiveView) -> Column:
    """Return the day, in UTC, in which the window of a row of the view begins, e.g. `2026-11-20`.

    Without a window all rows have one day, `none`: there are as many rows as keys.
    """
    if view.is_total:
        return F.lit(_NO_DAY).alias(DAY)
    return F.coalesce(F.date_format(F.col(view.window)["start"], "yyyy-MM-dd"), F.lit(_NO_DAY)).alias(DAY)


class StoredBase:
    """A base that was written. Columns of its frames: key, the measures."""

    def __init__(self, spark: SparkSession, view: AdditiveView, location: str) -> None:
        self._spark = spark
        self._view = view
        self._location = location
        declared = struct_of(view.columns)
        self._schema = StructType([StructField("key", StringType()), *(declared[name] for name in view.measures)])
        names = [entry.name for entry in lake.list_entries(location, recursive=False) if lake.is_visible(entry.name)]
        self._days = {name.removeprefix(f"{DAY}=") for name in names if name.startswith(f"{DAY}=")}
        self._is_whole = any(name.endswith(".parquet") for name in names)
        """Written before bases were kept by day."""
        self._held: tuple[frozenset[str], DataFrame] | None = None

    @staticmethod
    def write(values: DataFrame, location: str) -> None:
        """Write a base. Columns: key, the measures, day (`day_of`)."""
        values.repartition(F.col(DAY)).write.partitionBy(DAY).parquet(location)

    def every(self) -> DataFrame:
        """Return the whole base."""
        if self._is_whole:
            return self._spark.read.schema(self._schema).parquet(self._location)
        return self._read(self._days)

    def of_days(self, days: Collection[str]) -> DataFrame:
        """Return the base of the days; it is kept in memory until other days are requested."""
        wanted = frozenset(days) & self._days
        if self._held is None or self._held[0] != wanted:
            if self._held is not None:
                self._held[1].unpersist()
            read = self.every() if self._is_whole else self._read(wanted)
            self._held = (wanted, read.persist() if wanted or self._is_whole else read)
        return self._held[1]

    def added_to(self, state: DataFrame, days: Collection[str]) -> DataFrame:
        """Return the sum of base and state. Columns: key, the measures.

        For a view in update mode the result has a row for each row of the state, whose days are given. In complete mode
        the keys of the base count too: these few are all read.
        """
        if self._view.mode == "complete":
            base = self.every()
        else:
            base = self.of_days(days).join(state.select("key"), "key", "left_semi")
        measures = self._view.measures
        both = state.select("key", *measures).unionByName(base.select("key", *measures))
        # A sum of rows: where two sums of decimals are added, Spark takes digits off the result. It is null where
        # neither has a value: so the batch view has it.
        return both.groupBy("key").agg(*(F.sum(name).alias(name) for name in measures))

    def _read(self, days: Collection[str]) -> DataFrame:
        if not days:
            return empty_frame(self._spark, self._schema)
        folders = [f"{self._location}/{DAY}={day}" for day in sorted(days)]
        return self._spark.read.schema(self._schema).parquet(*folders)
