"""Tables of a pipeline that reads lines: its archive, its quarantine, and its views computed from the archive."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include.ledger.archive.landing_files import paths_of
from include.offsets import Fate
from include.pipelines.spec import Pipeline
from spark_jobs.archive.files import read_files
from spark_jobs.decoding.records import load_references
from spark_jobs.lines.line_source import line_archive_schema
from spark_jobs.spark.schemas import struct_of
from spark_jobs.views.aggregate import aggregate_view

_QUARANTINE = (
    "source_name STRING, source_line BIGINT, source_time TIMESTAMP, value BINARY, reason STRING, detail STRING"
)


class LineTables:
    """Temporary tables of a session, up to the last commit: `<name>_live`, `<name>_quarantine`, and each view."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self._pipeline = pipeline

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables."""
        views = (view.name for view in self._pipeline.views)
        return (*views, f"{self._pipeline.table}_live", f"{self._pipeline.table}_quarantine")

    def start(self) -> None:
        """Do nothing: these tables need no query."""

    def refresh(self) -> None:
        """Bring the tables to what the ledger holds now."""
        pipeline = self._pipeline
        schema = line_archive_schema(pipeline)
        rows = read_files(self._spark, paths_of(pipeline.name, Fate.ARCHIVED), schema, pipeline.archive.formerly)
        rows.createOrReplaceTempView(f"{pipeline.table}_live")
        kept = read_files(self._spark, paths_of(pipeline.name, Fate.QUARANTINED), struct_of(_QUARANTINE))
        kept.createOrReplaceTempView(f"{pipeline.table}_quarantine")
        timed = rows.withColumn("event_time", F.col(pipeline.archive.event_time))
        for view in pipeline.views:
            aggregates = aggregate_view(pipeline, view, timed, load_references(self._spark, pipeline))
            aggregates.createOrReplaceTempView(view.name)
