"""From a build to registered partitions: validate all tables, then register what passed."""

from __future__ import annotations

from dataclasses import replace

from include import lake
from include.errors import ReconciliationFailed, TidemarkError, ValidationFailed
from include.lake import delta_tables
from include.ledger.intervals import attempts, builds, locks, revisions
from include.ledger.intervals.findings import Validation
from include.ledger.intervals.revisions import BuiltRevision
from spark_jobs.archive.storage import check_storage
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.delta import publish_delta
from spark_jobs.publication.register import Check, finish_interval, finish_registrations, point_at_registered, register
from spark_jobs.publication.validate import validate
from spark_jobs.reconciliation.interval_run import IntervalRun


def publish(run: IntervalRun) -> None:
    """Validate the attempt's latest build and register what passed, alone with the interval.

    Publishing twice is once. A build that does not pass changes nothing that an earlier one registered, and
    one that is older than what is registered is not registered any more. Raises ValidationFailed,
    ReconciliationFailed when the attempt was not reconciled, AnotherWriter while somebody else publishes the interval.
    """
    name, interval = run.pipeline.name, run.pinned.interval
    with locks.attempt_under_way(name, interval), locks.publishing(name, interval) as check:
        # The attempt as it is now that nobody else publishes.
        _publish_alone(replace(run, attempt=attempts.resume_attempt(run.attempt.id)), check)


def _publish_alone(run: IntervalRun, check: Check) -> None:
    build = _check_reconciled(run)
    check_storage(run.pipeline)
    catalog = Catalog(run.spark, run.pipeline)
    catalog.create_tables()
    finish_interval(run.pinned, catalog, check)
    finish_registrations(run.pipeline, catalog)
    if builds.is_published(build):
        point_at_registered(run, catalog)
    else:
        built = revisions.of_build(build)
        _check_files_lie_there(run, built)
        validation = validate(run, built, lambda passed: register(run, catalog, built, passed, check))
        if not validation.success:
            builds.reject(run.attempt, validation)
            raise _not_passed(run, validation)
    if delta_tables.has_delta_table(run.pipeline):
        publish_delta(run)


def _check_reconciled(run: IntervalRun) -> int:
    """Return the build to publish. Raise ReconciliationFailed unless it is explained, and of the ranges as they are."""
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


def _check_files_lie_there(run: IntervalRun, built: list[BuiltRevision]) -> None:
    for revision in built:
        if not lake.exists(revision.location):
            raise TidemarkError(
                f"what attempt {run.attempt.id} built of {run.pinned.interval} was removed: {revision.location}",
                remedy="run the interval again",
                pipeline=run.pipeline.name,
            )


def _not_passed(run: IntervalRun, validation: Validation) -> ValidationFailed:
    first = next(iter(validation.failed), None)
    return ValidationFailed(
        f"{len(validation.failed)} expectations failed in {run.pinned.interval}, nothing was registered; first: "
        f"{first.table}: {first.words} (observed {first.observed})"
        if first
        else "the checkpoint had no result",
        remedy="read the interval's report",
        pipeline=run.pipeline.name,
    )
