"""A checkpoint per table over the revisions of a build; the last one's action registers what passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from expectations.checkpoint import run_checkpoint
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.intervals.revisions import BuiltRevision
from include.pipelines.spec import Pipeline
from include.times import Stopwatch
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import table_schema
from spark_jobs.reconciliation.interval_run import IntervalRun

OnPass = Callable[[Validation], None]
"""Called with what all checkpoints found, by the action of the last one, when and only when all passed."""


def validate(run: IntervalRun, built: Sequence[BuiltRevision], on_pass: OnPass) -> Validation:
    """Run a checkpoint per table that has revisions; `on_pass` runs inside the action that completes them.

    A build without any rows has nothing to judge, and passes.
    """
    suite = run.pipeline.name
    tables = [table for table in run.pipeline.tables if any(each.table == table for each in built)]
    if not tables:
        validation = Validation(True, suite)
        on_pass(validation)
        return validation
    *others, last = tables
    watch = Stopwatch()
    judged = []
    for table in others:
        with watch.part(table):
            judged.append(_judge(run, table, built, lambda _: None))
    have_passed = all(passed for passed, _ in judged)
    results = tuple(result for _, of_table in judged for result in of_table)

    def complete(of_last: Sequence[ExpectationResult]) -> None:
        if have_passed:
            on_pass(Validation(True, suite, (*results, *of_last), watch.seconds))

    # The action of the last checkpoint registers, too: that is no part of the check.
    with watch.part(f"{last}, registering included"):
        passed, of_last = _judge(run, last, built, complete)
    return Validation(have_passed and passed, suite, (*results, *of_last), watch.seconds)


def _judge(
    run: IntervalRun, table: str, built: Sequence[BuiltRevision], on_pass: Callable[[Sequence[ExpectationResult]], None]
) -> tuple[bool, list[ExpectationResult]]:
    """Run the checkpoint of one table; whether it passed, and what it found."""
    revisions = [each for each in built if each.table == table]
    files = [f"{each.location}/{name}" for each in revisions for name in each.files]
    rows = read_files(run.spark, files, table_schema(run.pipeline, table))
    counted = sum(each.rows for each in revisions)
    return run_checkpoint(run.pipeline, table, counted, named_for_suite(run.pipeline, table, rows), on_pass)


def named_for_suite(pipeline: Pipeline, table: str, rows: DataFrame) -> DataFrame:
    """A table's rows with the further columns that its suite may name: `event_time`, or a window's two ends."""
    if table == pipeline.table:
        return rows.withColumn("event_time", F.col(pipeline.archive.event_time))
    view = next(view for view in pipeline.views if pipeline.view_table(view) == table)
    window = F.col(view.window)
    return rows.withColumn("window_start", window["start"]).withColumn("window_end", window["end"])
