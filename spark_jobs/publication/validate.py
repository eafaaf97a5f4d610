"""A checkpoint per table over the revisions of a build; the last one's action registers what passed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from expectations.checkpoint import counts_rows, expectations_of, run_checkpoint
from expectations.usual import EVENT_TIMESTAMP, UsualBounds, usual_of
from include.ledger.intervals import revisions
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.validation.approvals import Question
from include.pipelines.spec import IDENTITY, Pipeline
from include.times import Stopwatch
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import table_schema
from spark_jobs.reconciliation.interval_run import IntervalRun

OnPass = Callable[[Validation], None]
"""Called with the results of all checkpoints, by the action of the last one, only when all passed."""


def validate(
    run: IntervalRun, built: Sequence[BuiltRevision], on_pass: OnPass, approved: Question | None = None
) -> Validation:
    """Run a checkpoint per table that has revisions; `on_pass` runs inside the action that completes them.

    A checkpoint also passes when it missed only warnings that a person has `approved`. A build without any rows passes,
    unless rows are usual, other code took out those that are registered, or a suite expects a number of rows.
    """
    usual, watch = replace(usual_of(run.pipeline, run.pinned.interval), kept=least_rows(run)), Stopwatch()
    tables = _judged_tables(run, built, usual)
    judged: list[tuple[bool, list[ExpectationResult]]] = []

    def outcome(success: bool, *of_last: ExpectationResult) -> Validation:
        results = (*(result for _, of_table in judged for result in of_table), *of_last)
        validation = Validation(success, run.pipeline.name, results, watch.seconds, usual.not_checked)
        return replace(validation, **_decided(approved)) if success and approved and validation.warnings else validation

    if not tables:
        on_pass(outcome(True))
        return outcome(True)
    *others, last = tables
    for table in others:
        with watch.part(table):
            judged.append(_judge(run, table, built, usual, lambda _: None, approved))
    have_passed = all(passed for passed, _ in judged)

    def complete(of_last: Sequence[ExpectationResult]) -> None:
        if have_passed:
            on_pass(outcome(True, *of_last))

    # The action of the last checkpoint also registers, which is not part of the check.
    with watch.part(f"{last}, registering included"):
        passed, of_last = _judge(run, last, built, usual, complete, approved)
    return outcome(have_passed and passed, *of_last)


def least_rows(run: IntervalRun) -> int:
    """Return half of the archive table's registered rows where the current code takes out more than these, else 0.

    A stricter decoder would otherwise empty an old interval that is merely run again, and exit with 0. What others take
    out, as an erasure does, does not count.
    """
    build = run.attempt.findings.build
    if build is None or not (removed := build.code_changes.get("removed", 0)):
        return 0
    registered = revisions.registered_of_interval(run.pinned.id)
    half = -(-sum(each.rows for each in registered if each.table == run.pipeline.table) // 2)
    return half if removed > half else 0


def _decided(question: Question) -> dict[str, Any]:
    return {"question": question.id, "decision": question.decision.as_json() if question.decision else {}}


def _judged_tables(run: IntervalRun, built: Sequence[BuiltRevision], usual: UsualBounds) -> list[str]:
    """Return the tables with revisions, and those without one of which a number of rows is expected.

    A suite does not expect rows where an erasure took some out: what holds them would stay registered.
    """
    judged = {each.table for each in built}
    if not _has_erased(run):
        judged |= {table for table in run.pipeline.tables if counts_rows(run.pipeline, table)}
    if usual.expects_rows:
        judged.add(run.pipeline.table)
    return [table for table in run.pipeline.tables if table in judged]


def _has_erased(run: IntervalRun) -> bool:
    build = run.attempt.findings.build
    return build is not None and build.records.erased > 0


def _judge(
    run: IntervalRun,
    table: str,
    built: Sequence[BuiltRevision],
    usual: UsualBounds,
    on_pass: Callable[[Sequence[ExpectationResult]], None],
    approved: Question | None,
) -> tuple[bool, list[ExpectationResult]]:
    """Run the checkpoint of one table; return whether it passed, and its results."""
    revisions = [each for each in built if each.table == table]
    files = [f"{each.location}/{name}" for each in revisions for name in each.files]
    rows = read_files(run.spark, files, table_schema(run.pipeline, table), run.pipeline.formerly(table))
    counted = sum(each.rows for each in revisions)
    return run_checkpoint(
        table,
        expectations_of(run.pipeline, table, counted, usual, may_be_empty=_has_erased(run)),
        named_for_suite(run.pipeline, table, rows),
        on_pass,
        accepted=approved.keys if approved else (),
        named_by=key_columns(run.pipeline, table),
    )


def key_columns(pipeline: Pipeline, table: str) -> list[str]:
    """Return the columns that name a row of a table: its record's coordinates, or the key of a view."""
    if table == pipeline.table:
        return list(IDENTITY)
    view = next(view for view in pipeline.views if pipeline.view_table(view) == table)
    return ["window_start" if column == view.window else column for column in view.key]


def named_for_suite(pipeline: Pipeline, table: str, rows: DataFrame) -> DataFrame:
    """Return a table's rows with the further columns that its suite may name: `event_time`, or a window's two ends.

    For usual bounds, `EVENT_TIMESTAMP` too.
    """
    if table == pipeline.table:
        event_time = F.col(pipeline.archive.event_time)
        return rows.withColumns({"event_time": event_time, EVENT_TIMESTAMP: event_time.try_cast("timestamp")})
    view = next(view for view in pipeline.views if pipeline.view_table(view) == table)
    if view.is_total:
        return rows
    window = F.col(view.window)
    return rows.withColumn("window_start", window["start"]).withColumn("window_end", window["end"])
