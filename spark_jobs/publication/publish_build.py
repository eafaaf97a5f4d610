"""From a build to registered partitions: validate all tables, then register what passed."""

from __future__ import annotations

from dataclasses import replace

from include import lake
from include.catalog.declared import check_storage
from include.completeness import follow_ledger
from include.errors import (
    AnotherWriter,
    ApprovalNeeded,
    ReconciliationFailed,
    TidemarkError,
    UsageError,
    ValidationFailed,
)
from include.lake.delta_log import check_disk
from include.lake.revision_files import damaged_files, described
from include.ledger.columns.renames import lacking_in_build
from include.ledger.held_locks import Check
from include.ledger.intervals import attempts, builds, locks, revisions
from include.ledger.intervals.findings import Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.validation import approvals
from include.ledger.validation.approvals import Question
from include.monitor.history.remedies import approve_command
from include.pipelines.spec.names import LONGEST_PATH
from include.versions import suite_version
from spark_jobs.archive.delta import check_table
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.delta import publish_delta
from spark_jobs.publication.iceberg import follow_in_iceberg, prepare_iceberg
from spark_jobs.publication.register import (
    finish_interval,
    finish_registrations,
    giving_way,
    point_at_registered,
    register,
    serve_registered,
)
from spark_jobs.publication.unregistered import check_build, make_anew
from spark_jobs.publication.validate import validate
from spark_jobs.reconciliation.interval_run import IntervalRun


def publish(run: IntervalRun) -> None:
    """Validate the attempt's latest build and register what passed, alone with the interval.

    Publishing twice changes nothing more. A build that does not pass changes nothing that an earlier one registered,
    and one that is older than what is registered is not registered any more. Raises ValidationFailed,
    ReconciliationFailed when the attempt was not reconciled, AnotherWriter while somebody else publishes the interval.
    """
    name, interval = run.pipeline.name, run.pinned.interval
    with locks.attempt_under_way(name, interval), locks.publishing(name, interval) as check:
        # Read the attempt again, now that nobody else can publish it.
        _publish_alone(replace(run, attempt=attempts.resume_attempt(run.attempt.id)), check)


def _publish_alone(run: IntervalRun, check: Check) -> None:
    build = _check_reconciled(run)
    anew = check_storage(run.pipeline)
    if run.pipeline.archive.delta:
        check_disk(run.pipeline.name)
        check_table(run.spark, run.pipeline)
    catalog = Catalog(run.spark, run.pipeline)
    if anew:
        check_build(run.pipeline, run.pinned.interval, build)
        make_anew(catalog)
    catalog.create_tables()
    finish_interval(run.pinned, catalog, check, later=build)
    finish_registrations(run.pipeline, catalog)
    prepare_iceberg(run.pipeline)
    if builds.is_published(build):
        registered = revisions.registered_of_interval(run.pinned.id)
        with giving_way(catalog, run.pinned, registered):
            point_at_registered(catalog, registered, check)
            follow_in_iceberg(run.pipeline, run.pinned, check)
            follow_ledger(run.pipeline)
            check()
        serve_registered(run.pipeline)
    else:
        built = revisions.of_build(build)
        _check_files(run, built)
        _check_tables(run, built)
        _check_names(run, build)
        check_build(run.pipeline, run.pinned.interval, build)
        _check_paths(run, built)
        approved = _approved(run, build)
        validation = validate(run, built, lambda passed: register(run, catalog, built, passed, check), approved)
        if not validation.success:
            raise _not_passed(run, _reject_or_ask(run, build, validation))
    if run.pipeline.archive.delta:
        publish_delta(run, check)


def _check_reconciled(run: IntervalRun) -> int:
    """Return the build to publish. Raises ReconciliationFailed unless it is explained and of the current ranges."""
    build, findings = run.attempt.build, run.attempt.findings.build
    reason = ""
    if build is None or findings is None:
        reason = "is not built"
    elif findings.reconciliation.unexplained:
        reason = "is not reconciled"
    elif findings.ranges and set(findings.ranges) != set(run.pinned.ranges):
        reason = "was pinned again since it was built"
    if build is None or reason:
        raise ReconciliationFailed(
            f"{run.pinned.interval} {reason}, nothing was registered",
            remedy="run the interval again and read its report",
            pipeline=run.pipeline.name,
        )
    return build


def _approved(run: IntervalRun, build: int) -> Question | None:
    """Return the question that a person has approved for this build and this suite; None where nobody has.

    Raises ValidationFailed when the build was refused, whatever the suite.
    """
    asked = approvals.last_of_build(build)
    if asked is None or asked.decision is None:
        return None
    if not asked.decision.approved:
        refusal = f"refused by {asked.decision.by}, nothing was registered: {asked.decision.reason}"
        raise ValidationFailed(
            f"{run.pinned.interval} was {refusal}",
            remedy="run the interval again, which builds and asks again",
            pipeline=run.pipeline.name,
        )
    return asked if asked.suite == suite_version(run.pipeline.name) else None


def _reject_or_ask(run: IntervalRun, build: int, validation: Validation) -> Validation:
    """Reject a build that did not pass, or ask a person about it; what is registered stays either way.

    Raises AnotherWriter when records of the interval were erased since it was built.
    """
    if not validation.is_only_warned:
        builds.reject(run.attempt, validation)
        return validation
    asked = approvals.ask(build, suite_version(run.pipeline.name), validation.warnings)
    waiting = replace(validation, question=asked.id)
    builds.hold(run.attempt, waiting)
    return waiting


def _check_files(run: IntervalRun, built: list[BuiltRevision]) -> None:
    """Raise ReconciliationFailed unless the build's directories hold what it wrote, byte for byte, and nothing else.

    The checkpoint reads the files that the build noted and counts their rows; readers of the catalog take every file
    of a directory. It costs a listing of each directory and a read of each file: 0.6 s of a processor for a GiB, from
    a bucket its download as well. Raises TidemarkError when the build was removed.
    """
    for revision in built:
        if not lake.exists(revision.location):
            raise TidemarkError(
                f"what attempt {run.attempt.id} built of {run.pinned.interval} was removed: {revision.location}",
                remedy="run the interval again",
                pipeline=run.pipeline.name,
            )
        for damaged in damaged_files(revision.location, revision.files, deep=True):
            raise ReconciliationFailed(
                f"{run.pinned.interval} was changed since it was built, nothing was registered: "
                f"{described(revision, damaged)}",
                remedy="run the interval again, which builds it anew",
                pipeline=run.pipeline.name,
            )


def _check_tables(run: IntervalRun, built: list[BuiltRevision]) -> None:
    """Raise AnotherWriter for a build with tables that are no longer declared: earlier code built it."""
    if gone := {each.table for each in built}.difference(run.pipeline.tables):
        raise AnotherWriter(
            f"{run.pinned.interval} was built while {', '.join(sorted(gone))} was declared; nothing was registered",
            remedy="run the interval again",
            pipeline=run.pipeline.name,
        )


def _check_names(run: IntervalRun, build: int) -> None:
    """Raise AnotherWriter for a build whose files lack a renamed column's new name: earlier code built it."""
    for table in run.pipeline.tables:
        if missing := lacking_in_build(build, table, run.pipeline.formerly(table)):
            raise AnotherWriter(
                f"{run.pinned.interval} was built before {', '.join(sorted(missing))} of {table} was declared as the "
                "new name of a column; nothing was registered",
                remedy="run the interval again",
                pipeline=run.pipeline.name,
            )


def _check_paths(run: IntervalRun, built: list[BuiltRevision]) -> None:
    """Raise UsageError for a partition that the metastore would refuse, after others of the interval were changed."""
    longest = max((each.partition for each in built), key=len, default="")
    if len(longest) > LONGEST_PATH:
        raise UsageError(
            f"{run.pinned.interval} has a partition with a path of {len(longest)} characters, and Hive's metastore "
            f"keeps {LONGEST_PATH}; nothing was registered: {longest}",
            remedy="let the rows function shorten these values, and run the interval again; or name fewer columns in "
            "partition_by, in a pipeline of another name",
            pipeline=run.pipeline.name,
        )


def _not_passed(run: IntervalRun, validation: Validation) -> ValidationFailed:
    name, place = run.pipeline.name, run.pinned.interval
    blocking = [each for each in validation.failed if each.severity != "info"]
    if not blocking:
        return ValidationFailed("the checkpoint had no result", remedy="read the interval's report", pipeline=name)
    first = f"first: {blocking[0].table}: {blocking[0].words} (observed {blocking[0].observed})"
    if validation.question is not None:
        return ApprovalNeeded(
            f"{len(blocking)} warnings in {place}, nothing was registered yet; {first}",
            remedy=approve_command(name, place, validation.question),
            pipeline=name,
        )
    return ValidationFailed(
        f"{len(blocking)} expectations failed in {place}, nothing was registered; {first}",
        remedy="read the interval's report",
        pipeline=name,
    )
