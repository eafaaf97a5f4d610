"""A stream of the archive's landing files: every row of committed files once, and none of uncommitted files.

A file source over the folder would also see what a killed or fenced-off driver left there. This one asks the
ledger, whose micro-batch numbers are its offsets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from include import lake
from include.ledger.archive import landing_files
from include.ledger.erasures.coordinates import being_erased, in_file
from include.offsets import Coordinates
from include.pipelines.spec import IDENTITY, Pipeline
from include.settings import settings
from include.times import parse_time
from spark_jobs.archive.schema import archive_schema

FORMAT = "tidemark_landing"

_AT = "micro_batch"


def read_landed(spark: SparkSession, pipeline: Pipeline, since: str) -> DataFrame:
    """Return the rows of the pipeline's committed landing files as a stream, from events at `since` (ISO time) on.

    Columns: the archive table's, and `event_time`. Files are taken whole, so earlier events may be among them;
    rows that a quarantine replay delivers are not, as in a speed view.
    """
    spark.dataSource.register(LandingSource)
    reader = spark.readStream.format(FORMAT).schema(archive_schema(pipeline))
    most = str(settings().max_offsets_per_trigger or pipeline.source.max_offsets_per_trigger)
    renamed = json.dumps({before: name for name, names in pipeline.archive.formerly.items() for before in names})
    rows = reader.options(pipeline=pipeline.name, since=since, most_rows=most, renamed=renamed).load()
    return rows.withColumn("event_time", F.col(pipeline.archive.event_time))


class LandingSource(DataSource):
    """Options: pipeline, since, most_rows (of a micro-batch), renamed (JSON: columns' former names to theirs)."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format`."""
        return FORMAT

    def streamReader(self, schema: StructType) -> LandingReader:  # noqa: N802
        """Return the reader; Spark calls this in a process of its own."""
        return LandingReader(
            self.options["pipeline"],
            self.options["since"],
            int(self.options["most_rows"]),
            to_arrow_schema(schema, timezone="UTC"),
            json.loads(self.options["renamed"]),
        )


@dataclass
class LandedPart(InputPartition):
    """One file, read by one task."""

    path: str
    erased: frozenset[Coordinates] = frozenset()
    """Records whose rows the file still has, and that are being erased."""


class LandingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"micro_batch": N}`: everything up to and including N was read."""

    def __init__(
        self,
        pipeline: str,
        since: str,
        most_rows: int,
        schema: pa.Schema,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._since = since
        self._most_rows = most_rows
        self._schema = schema
        self._renamed = renamed or {}
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset before the first file with an event at `since` or later."""
        return {_AT: landing_files.before_events(self._pipeline, parse_time(self._since))}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most rows of a micro-batch."""
        return ReadMaxRows(self._most_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is committed now, then end."""
        self._target = landing_files.committed_until(self._pipeline, 0, None)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return how far the next micro-batch reads."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        assert most is not None or isinstance(limit, ReadAllAvailable)
        until = landing_files.committed_until(self._pipeline, start[_AT], most)
        return {_AT: until if self._target is None else max(start[_AT], min(until, self._target))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[LandedPart]:
        """Return the files between two offsets. Those that housekeeping has removed are left out."""
        files = landing_files.archived_between(self._pipeline, start[_AT], end[_AT])
        erased = being_erased(self._pipeline)
        topic_ids = landing_files.topic_ids_of_files([file.path for file in files]) if erased else {}
        return [LandedPart(lake.uri(each.path), in_file(erased, topic_ids.get(each.path, {}))) for each in files]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the file's rows as Arrow batches of the declared schema; columns that it lacks are null."""
        assert isinstance(partition, LandedPart)
        names = self._schema.names
        with lake.open_parquet(partition.path) as file:
            wanted = {*names, *self._renamed}
            for batch in file.iter_batches(columns=[name for name in file.schema_arrow.names if name in wanted]):
                table = pa.Table.from_batches([batch])
                if partition.erased:
                    at = zip(*(table[name].to_pylist() for name in IDENTITY[:3]), strict=True)
                    table = table.filter(pa.array([each not in partition.erased for each in at], pa.bool_()))
                table = table.rename_columns([self._renamed.get(name, name) for name in table.column_names])
                for field in self._schema:
                    if field.name not in table.column_names:
                        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
                yield from table.select(names).cast(self._schema).to_batches()
