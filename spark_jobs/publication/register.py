"""From revisions to registered partitions: validate all tables, then point the catalog at what passed."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from expectations.checkpoint import Outcome, run_checkpoint
from include import lake
from include.crash_points import crash_point
from include.errors import ReconciliationFailed, ValidationFailed
from include.lake.revision_files import damaged_files
from include.ledger.intervals import attempts, revisions
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.revisions import BuiltRevision
from include.pipelines.spec import Pipeline
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import table_schema
from spark_jobs.archive.storage import check_storage
from spark_jobs.publication.catalog import Catalog
from spark_jobs.spark.log import log_of


def publish(spark: SparkSession, pipeline: Pipeline, attempt: AttemptSpec) -> None:
    """Run a checkpoint per table; the last one's action registers the partitions of all of them.

    A table whose checkpoint passed is marked validated; registration happens inside the action of the
    checkpoint that completes them, so never before all passed. Raises ValidationFailed otherwise, and
    ReconciliationFailed when the attempt was not reconciled.
    """
    if attempt.verdict.get("reconciliation", {}).get("unexplained", 1):
        raise ReconciliationFailed(
            f"{attempt.pinned.interval} is not reconciled, nothing was registered",
            remedy="run the interval again and read its report",
            pipeline=pipeline.name,
        )
    check_storage(pipeline)
    finish_registrations(spark, pipeline)
    built = revisions.of_attempt(attempt.id)
    tables = [table for table in pipeline.tables if any(r.table == table for r in built)]
    validated: list[BuiltRevision] = []
    outcomes: list[Outcome] = []
    passed = True
    for table in tables:
        mine = [r for r in built if r.table == table]

        def on_pass(mine: list[BuiltRevision] = mine) -> None:
            validated.extend(mine)
            revisions.set_state(mine, "validated")
            if len(validated) == len(built):
                register(spark, pipeline, attempt, built)

        files = [f"{r.location}/{name}" for r in mine for name in r.files]
        frame = named_for_suite(pipeline, table, read_files(spark, files, table_schema(pipeline, table)))
        success, found = run_checkpoint(pipeline, table, sum(r.rows for r in mine), frame, on_pass)
        outcomes += found
        passed &= success
    if not built:
        register(spark, pipeline, attempt, built)
    failed = [o for o in outcomes if not o.success]
    attempts.note_findings(
        attempt.id,
        validation={
            "success": passed,
            "suite": pipeline.name,
            "failed": [
                {
                    "expectation": o.expectation,
                    "column": o.column,
                    "observed": o.observed,
                    "unexpected_count": o.unexpected_count,
                }
                for o in failed
            ],
        },
        expectations=[o.as_json() for o in outcomes],
    )
    if not passed:
        revisions.set_state(built, "rejected")
        first = failed[0] if failed else None
        raise ValidationFailed(
            f"{len(failed)} expectations failed in {attempt.pinned.interval}, nothing was registered; first: "
            f"{first.table}: {first.words} (observed {first.observed})"
            if first
            else "the checkpoint had no result",
            remedy="read the interval's report",
            pipeline=pipeline.name,
        )


def named_for_suite(pipeline: Pipeline, table: str, rows: DataFrame) -> DataFrame:
    """A table's rows with the further columns that its suite may name: `event_time`, or a window's two ends."""
    if table == pipeline.table:
        return rows.withColumn("event_time", F.col(pipeline.archive.event_time))
    view = next(view for view in pipeline.views if pipeline.view_table(view) == table)
    window = F.col(view.window)
    return rows.withColumn("window_start", window["start"]).withColumn("window_end", window["end"])


def register(spark: SparkSession, pipeline: Pipeline, attempt: AttemptSpec, built: list[BuiltRevision]) -> None:
    """Point the catalog at the revisions; called by the action of a passed checkpoint only.

    A revision equal to the registered one changes nothing: the pointer stays, the new files go. A
    partition that the interval no longer delivers is dropped. The intent is noted before the first
    pointer moves, so that whoever publishes next finishes what a crash left half done.
    """
    catalog = Catalog(spark, pipeline)
    catalog.create_tables()
    before = {(r.table, r.partition): r for r in revisions.registered_of_interval(attempt.pinned.id)}
    changed: list[BuiltRevision] = []
    kept: list[BuiltRevision] = []
    for revision in built:
        old = before.pop((revision.table, revision.partition), None)
        disagreement = _disagreement(catalog, old) if old is not None else ""
        if disagreement:
            log_of(pipeline.name).warning("%s %s: %s; built anew", revision.table, revision.partition, disagreement)
        unchanged = old is not None and old.content_hash == revision.content_hash and not disagreement
        (kept if unchanged else changed).append(revision)
    revisions.set_state(changed, "registering")
    for revision in changed:
        catalog.point_at(revision)
        crash_point("partition_registered")
    for stale in before.values():
        catalog.drop(stale)
    revisions.set_state(changed, "registered")
    revisions.set_state(kept, "discarded")
    revisions.set_state(list(before.values()), "superseded")
    for revision in kept:
        lake.delete(revision.location)


def finish_registrations(spark: SparkSession, pipeline: Pipeline) -> None:
    """Register what an earlier publish of the pipeline had validated and begun to register when it ended."""
    begun = [revision for table in pipeline.tables for revision in revisions.in_state(table, "registering")]
    if begun:
        catalog = Catalog(spark, pipeline)
        catalog.create_tables()
        for revision in begun:
            catalog.point_at(revision)
        revisions.set_state(begun, "registered")


def _disagreement(catalog: Catalog, registered: BuiltRevision) -> str:
    """What the catalog or the registered files say other than the ledger; empty when they agree, byte for byte."""
    location = catalog.location(registered)
    if location != registered.location:
        return f"the catalog points at {location or 'nothing'}, registered is {registered.location}"
    wrong = [str(each) for each in damaged_files(registered.location, registered.files, deep=True)]
    return f"{registered.location}: {', '.join(wrong[:3])}" if wrong else ""
