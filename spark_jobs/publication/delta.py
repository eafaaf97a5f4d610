"""The validated part of a Delta archive: registered rows in one of its versions, to which a view is pinned."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.catalog import DATABASE
from include.crash_points import crash_point
from include.errors import TidemarkError
from include.iceberg.statement import statement_of
from include.ledger import proofs
from include.ledger.archive.holdings import ranges_of_intervals
from include.ledger.intervals import attempts, builds, revisions
from include.ledger.intervals.findings import DeltaVersion
from include.offsets import OffsetRange
from include.pipelines.spec import Pipeline
from spark_jobs.archive.delta import ensure_table, has_foreign_writes, latest_version, location, replace_rows, table_id
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import archive_schema
from spark_jobs.reconciliation.interval_run import IntervalRun

TRIES = 5
"""How often the table is written when somebody else changes it meanwhile."""


def publish_delta(run: IntervalRun) -> None:
    """Put the interval's registered rows into the Delta table, and pin the view to the version that has them.

    Where somebody else has changed the table since the view was pinned, or an interval was registered without it, the
    rows of all intervals are written again. The view does not show later appends and changes.
    """
    spark, pipeline = run.spark, run.pipeline
    view = f"{DATABASE}.{pipeline.delta_view}"
    with attempts.publishing_delta(pipeline.name):
        ensure_table(spark, pipeline)
        # What was registered while the table was not declared is missing in the version that the view shows.
        is_whole = not revisions.is_left_out_of_delta(pipeline.name)
        version = _put_rows(run, pinned_version(spark, pipeline) if is_whole else None)
        crash_point("delta_rows_put")
        pin_view(spark, pipeline, version)
    builds.note_delta(run.attempt, DeltaVersion(view, version))


def pin_view(spark: SparkSession, pipeline: Pipeline, version: int) -> None:
    """Pin the view to the validated rows of a version."""
    columns = ", ".join(f"`{name}`" for name in (*archive_schema(pipeline).names, "interval"))
    spark.sql(
        f"CREATE OR REPLACE VIEW {DATABASE}.{pipeline.delta_view} "
        f"TBLPROPERTIES ('tidemark.table' = '{table_id(spark, pipeline)}', 'tidemark.version' = '{version}') "
        f"AS SELECT {columns} FROM delta.`{location(pipeline)}` VERSION AS OF {version} WHERE interval IS NOT NULL"
    )


def restore_rows(spark: SparkSession, pipeline: Pipeline, properties: Mapping[str, str], *delivered: int) -> None:
    """Write the rows of all registered intervals, and no others, into the table again; `delivered`: more intervals."""
    every = revisions.registered(pipeline.table, pipeline=pipeline.name)
    files = [f"{each.location}/{name}" for each in every for name in sorted(each.files)]
    intervals = {*delivered, *(each.interval_id for each in every)}
    _replace(spark, pipeline, "interval IS NOT NULL", intervals, files, properties)


def _replace(
    spark: SparkSession,
    pipeline: Pipeline,
    validated: str,
    delivered: Collection[int],
    files: list[str],
    properties: Mapping[str, str],
) -> None:
    streamed = f"interval IS NULL AND ({within_sql(ranges_of_intervals(delivered))})"
    replace_rows(pipeline, f"{validated} OR ({streamed})", _rows(spark, pipeline, files), properties)


def pinned_version(spark: SparkSession, pipeline: Pipeline) -> int | None:
    """Return the version that the view shows; None where there is no view of this table."""
    view = f"{DATABASE}.{pipeline.delta_view}"
    if not spark.catalog.tableExists(view):
        return None
    properties = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {view}").collect()}
    is_ours = properties.get("tidemark.table") == table_id(spark, pipeline)
    return int(properties["tidemark.version"]) if is_ours else None


def _put_rows(run: IntervalRun, trusted: int | None) -> int:
    """Write until a version holds only registered rows where `interval` is not null; return that version.

    Version `trusted` already met this condition.
    """
    spark, pipeline, mine = run.spark, run.pipeline, run.pinned
    for _ in range(TRIES):
        before = latest_version(spark, pipeline)
        if trusted is None or has_foreign_writes(spark, pipeline, trusted, before):
            restore_rows(spark, pipeline, {**_summary(run), "tidemark.restored": "all registered intervals"}, mine.id)
        else:
            own = [each for each in revisions.registered_of_interval(mine.id) if each.table == pipeline.table]
            files = [f"{each.location}/{name}" for each in own for name in sorted(each.files)]
            _replace(spark, pipeline, f"interval = '{mine.interval.label}'", {mine.id}, files, _summary(run))
        version = latest_version(spark, pipeline)
        if not has_foreign_writes(spark, pipeline, before, version):
            return version
        trusted = None
    raise TidemarkError(
        f"somebody else keeps changing {location(pipeline)}: its view stays as it was",
        remedy="stop the other writer, then run the interval again",
        pipeline=pipeline.name,
    )


def _summary(run: IntervalRun) -> dict[str, str]:
    """Return the commit's statement about the interval, the same as in the summary of an Iceberg snapshot."""
    build = proofs.build_to_prove(run.pinned.id)
    if build is None:
        return {}
    registered = revisions.registered_of_interval(run.pinned.id)
    of_archive = [each for each in registered if each.table == run.pipeline.table]
    return statement_of(attempts.of_build(build)).summary(of_archive)


def _rows(spark: SparkSession, pipeline: Pipeline, files: list[str]) -> DataFrame:
    """Return the rows of files of revisions, with the interval that their folder names."""
    rows = read_files(spark, files, archive_schema(pipeline))
    return rows.withColumn("interval", F.regexp_extract(F.input_file_name(), ".*/interval=([^/]+)/", 1))


def within_sql(ranges: Iterable[OffsetRange]) -> str:
    """Return the condition of rows whose coordinates lie in the ranges. Kafka allows no quote in a topic's name."""
    parts = [
        f"(kafka_topic = '{r.topic_partition.topic}' AND kafka_partition = {r.topic_partition.partition} "
        f"AND kafka_offset >= {r.from_offset} AND kafka_offset < {r.until_offset})"
        for r in ranges
        if len(r)
    ]
    return " OR ".join(parts) or "false"
