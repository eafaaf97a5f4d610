"""The base of a speed view in the lake, by the day in which a window begins: a micro-batch reads only its own days.

So the cost of a micro-batch does not depend on the length of the history that the base sums up. Files are read by the
names that were noted when they were written: a lost one is an error, not a smaller sum.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from include import lake
from include.lake.revision_files import damaged_files
from include.pipelines.spec import AdditiveView
from spark_jobs.spark.frames import empty_frame
from spark_jobs.spark.schemas import struct_of

DAY = "day"

_NO_DAY = "none"

_FILES = "_files.json"
"""The file, hidden from readers, with the names and sizes of a base's files; older bases have none."""


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
        self._noted = _noted_files(location)
        self._files = _files_on_disk(location) if self._noted is None else self._noted
        self._days = {name.split("/")[0].removeprefix(f"{DAY}=") for name in self._files if "/" in name}
        self._is_whole = any("/" not in name for name in self._files)
        """Written before bases were kept by day."""
        self._held: tuple[frozenset[str], DataFrame] | None = None

    @staticmethod
    def write(values: DataFrame, location: str) -> None:
        """Write a base, or a further part of one. Columns: key, the measures, day (`day_of`)."""
        values.repartition(F.col(DAY)).write.mode("append").partitionBy(DAY).parquet(location)
        lake.write_text(f"{location}/{_FILES}", json.dumps(_files_on_disk(location), indent=1))

    def damage(self) -> str:
        """Return which file is lost or changed; empty when all are as written, or nobody noted which there were."""
        if not lake.exists(self._location):
            return "there is no such folder"
        if self._noted is None:
            return ""
        damaged = damaged_files(self._location, self._noted, deep=False)
        # Files beside those that were noted are not read.
        return next((str(each) for each in damaged if each.damage != "extra file"), "")

    def every(self) -> DataFrame:
        """Return the whole base, the sum of its parts: a key once."""
        return self._summed(self._read(self._files))

    def of_days(self, days: Collection[str]) -> DataFrame:
        """Return the base of the days, in parts; it is kept in memory until other days are requested."""
        wanted = frozenset(days) & self._days
        if self._held is None or self._held[0] != wanted:
            if self._held is not None:
                self._held[1].unpersist()
            folders = tuple(f"{DAY}={day}/" for day in wanted)
            read = self._read(name for name in self._files if self._is_whole or name.startswith(folders))
            self._held = (wanted, read.persist() if wanted or self._is_whole else read)
        return self._held[1]

    def added_to(self, state: DataFrame, days: Collection[str]) -> DataFrame:
        """Return the sum of base and state. Columns: key, the measures.

        For a view in update mode the result has a row for each row of the state, whose days are given. In complete mode
        the keys of the base count too: these few are all read.
        """
        if self._view.mode == "complete":
            base = self._read(self._files)
        else:
            base = self.of_days(days).join(state.select("key"), "key", "left_semi")
        measures = self._view.measures
        return self._summed(state.select("key", *measures).unionByName(base.select("key", *measures)))

    def _summed(self, values: DataFrame) -> DataFrame:
        # A sum of rows: where two sums of decimals are added, Spark takes digits off the result. It is null where
        # none has a value: so the batch view has it.
        return values.groupBy("key").agg(*(F.sum(name).alias(name) for name in self._view.measures))

    def _read(self, names: Iterable[str]) -> DataFrame:
        if not (paths := [f"{self._location}/{name}" for name in sorted(names)]):
            return empty_frame(self._spark, self._schema)
        return self._spark.read.schema(self._schema).parquet(*paths)


def _files_on_disk(location: str) -> dict[str, Any]:
    return {file.name: {"bytes": file.bytes} for file in lake.list_files(location)}


def _noted_files(location: str) -> Mapping[str, Any] | None:
    """Return the facts of the files that were written, by name; None for a base that was written without this note."""
    try:
        noted: Mapping[str, Any] = json.loads(lake.read_text(f"{location}/{_FILES}"))
    except FileNotFoundError:
        return None
    except ValueError:
        # Cut off when the machine failed: nothing shows which files were written.
        return {_FILES: {"bytes": 0}}
    return noted
