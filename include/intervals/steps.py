"""The steps of an interval, as the DAG's tasks and the command run them:

    pin → build, and publish where nothing is unexplained (one Spark application) → judge_reconciliation
        → publish (another one, where the first has not published) → judge_validation → announce

Each step finds in the ledger what the previous one left there, so a rerun may begin at any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from include import kafka, lake
from include.crash_points import crash_point
from include.errors import ApprovalNeeded, DiskFull, OffsetsLost, ReconciliationFailed, TidemarkError, ValidationFailed
from include.intervals.pinning import pin_interval
from include.intervals.reporting import notifications
from include.intervals.reporting.asking import notify_asked
from include.intervals.reporting.lineage import send_lineage
from include.intervals.verdict import Verdict, assemble_verdict
from include.ledger.archive.decoders import are_of, decoders_of
from include.ledger.archive.removal import removed_ranges
from include.ledger.connection import await_ledger
from include.ledger.erasures.coordinates import last_erasure
from include.ledger.intervals import attempts, locks, revisions
from include.ledger.intervals.attempts import AttemptSpec, readable_source
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.streams import losses
from include.monitor.history.remedies import approve_command
from include.monitor.text import quantity
from include.offsets import without
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.proof.write import prove_registered
from include.reconciliation import DifferenceClass
from include.spark.cluster import DeployMode
from include.spark.run import run_job
from include.spark.submission import SHORT, SparkSubmission, submission
from include.times import Interval
from include.versions import code_version

AttemptJob = Literal["build_interval", "publish"]

JUDGED = (0, ValidationFailed.exit_code)
"""Exit codes of an application after which its attempt can be announced: its checkpoint passed, or did not."""


def pin(
    pipeline: str,
    interval: Interval,
    *,
    run_by: str,
    source: Source = Source.KAFKA,
    repin: bool = False,
    patience: timedelta | None = None,
) -> int:
    """Pin the interval (or reuse its ranges), begin an attempt, and return the attempt's id.

    Waits for the archive as long as `patience`, else as the settings say, and for a ledger that is away for seconds.
    Raises ArchiveBehind, OffsetsLost, ServiceUnreachable, UsageError (also for a `repin` while an attempt is under
    way).
    """
    await_ledger()
    declared = load_pipeline(pipeline)
    # Until the attempt has begun: a question about an earlier build then waits for what it builds.
    with locks.no_attempt_under_way(pipeline, interval) if repin else nullcontext():
        pinned = pin_interval(declared, interval, pinned_by=run_by, repin=repin, patience=patience)
        crash_point("interval_pinned")
        return attempts.begin_attempt(
            pinned, run_by=run_by, code_version=code_version(pipeline), source=readable_source(pinned, source)
        )


def source_as_registered(pinned: PinnedInterval) -> Source | None:
    """Return from where a run takes back nothing that newer code corrected; None where no such source is left.

    The landing has the rows as they were decoded at first, while what is registered may have been decoded from Kafka
    by newer code since. Raises ServiceUnreachable.
    """
    topic_ids, removed = pinned.topic_ids, removed_ranges(pinned.pipeline, pinned.ranges)
    removed = [replace(each, topic_id=topic_ids[each.topic_partition.topic]) for each in removed]
    # Where the landing was removed, the archive's rows are the registered ones.
    present = decoders_of(pinned.pipeline, without(pinned.ranges, removed))
    landed = (decoders_of(pinned.pipeline, pinned.ranges), present)
    registered = revisions.decoders_of_registered(pinned.id)
    if not present or (registered and all(any(are_of(each, side) for side in landed) for each in registered)):
        return Source.ARCHIVE
    if readable_source(pinned, Source.KAFKA) is Source.ARCHIVE:
        return None
    try:
        kafka.check_retained(pinned.pipeline, losses.to_be_read(pinned.pipeline, pinned.ranges))
    except OffsetsLost:
        return None
    return Source.KAFKA


def run_again(pinned: PinnedInterval, *, run_by: str, source: Source, ended: Callable[[int], TidemarkError]) -> Verdict:
    """Build, validate and register a pinned interval again, in the foreground, and return its verdict.

    Raises what `ended` makes of the exit code of an application that came to none.
    """
    pipeline = pinned.pipeline
    attempt = attempts.begin_attempt(pinned, run_by=run_by, code_version=code_version(pipeline), source=source)
    with locks.attempt_under_way(pipeline, pinned.interval):
        if (code := run_job(submit_both(pipeline, attempt))) not in JUDGED:
            # Under the lock: where the ledger is away, the application's own error is what counts.
            raise ended(attempts.note_failure(attempt, code))
        return announce(attempt)


def submit(job: AttemptJob, pipeline: str, attempt: int, mode: DeployMode | None = None) -> SparkSubmission:
    """Return the Spark application of a step.

    `build_interval` builds the attempt's revisions and reconciles; `publish` validates them and registers
    what passed.
    """
    delta = job == "publish" and load_pipeline(pipeline).archive.delta
    return _submission(job, pipeline, attempt, name=f"{job} {pipeline}", delta=delta, mode=mode)


def submit_both(
    pipeline: str, attempt: int, *, new_references: bool = False, mode: DeployMode | None = None
) -> SparkSubmission:
    """Return one Spark application for both steps. It takes only the first where something is unexplained."""
    options = ("--publish", *(("--new-references",) if new_references else ()))
    delta = load_pipeline(pipeline).archive.delta
    name = f"interval {pipeline}"
    return _submission("build_interval", pipeline, attempt, *options, name=name, delta=delta, mode=mode)


def _submission(
    job: AttemptJob, pipeline: str, attempt: int, *options: str, name: str, delta: bool, mode: DeployMode | None = None
) -> SparkSubmission:
    offsets = sum(len(r) for r in attempts.attempt_of(pipeline, attempt).pinned.ranges)
    arguments = ("--pipeline", pipeline, "--attempt", str(attempt), *options)
    decoder = load_pipeline(pipeline).decoder
    return submission(job, *arguments, name=name, short=offsets < SHORT, delta=delta, decoder=decoder, mode=mode)


def is_unexplained(attempt: int) -> bool:
    """Return whether the attempt's latest build left something unexplained; then it is not published."""
    build = attempts.load_attempt(attempt).findings.build
    return build is not None and build.reconciliation.unexplained > 0


def judge_reconciliation(attempt: int) -> None:
    """Raise ReconciliationFailed, after writing the report, when the attempt left something unexplained."""
    spec = attempts.load_attempt(attempt)
    build = spec.findings.build
    if build is None:
        raise ReconciliationFailed(
            f"{spec.pinned.interval} is not built, nothing was registered",
            remedy="run the interval again",
            pipeline=spec.pinned.pipeline,
        )
    unexplained = build.reconciliation.unexplained
    if unexplained:
        verdict = announce(attempt)
        examples = "; ".join(
            f"{each.what}: {each.where}" for each in build.differences if each.cls is DifferenceClass.UNEXPLAINED
        )
        raise ReconciliationFailed(
            f"{unexplained} differences are unexplained in {spec.pinned.interval}, nothing was registered: "
            f"{examples[:600]}",
            remedy=f"read the report: {verdict.report}",
            pipeline=spec.pinned.pipeline,
        )


def judge_validation(attempt: int) -> None:
    """Raise ValidationFailed, after writing the report, when the attempt's checkpoint did not pass."""
    spec = attempts.load_attempt(attempt)
    validation = spec.findings.validation
    if validation is not None and not validation.success:
        verdict = announce(attempt)
        failed = "; ".join(f"{each.expectation}({each.column})" for each in validation.failed)
        if validation.waits and validation.question is not None:
            warned = quantity(len(validation.warnings), "warning")
            raise ApprovalNeeded(
                f"{warned} in {spec.pinned.interval}, nothing was registered yet: {failed}",
                remedy=approve_command(spec.pinned.pipeline, spec.pinned.interval, validation.question),
                pipeline=spec.pinned.pipeline,
            )
        if validation.decision:
            failed = f"refused by {validation.decision['by']}: {validation.decision['reason']}; {failed}"
        raise ValidationFailed(
            f"the checkpoint did not pass in {spec.pinned.interval}, nothing was registered: {failed}",
            remedy=f"read the report: {verdict.report}",
            pipeline=spec.pinned.pipeline,
        )


def announce(attempt: int) -> Verdict:
    """Write the interval's proof, report and verdict, end the attempt, and notify the operators of what is new.

    If a newer build was registered or announced before, only the attempt is ended: report and verdict are the newer
    build's. They are written here unless its attempt has ended or failed: its process may have died before. If it
    lives, it ends its attempt itself.
    """
    crash_point("interval_published")
    pinned = attempts.load_attempt(attempt).pinned
    with locks.announcing(pinned.pipeline, pinned.interval):
        try:
            while (verdict := _announce(attempt, last_erasure(pinned.pipeline))) is None:
                # The erasure has cleaned what the ledger holds; what was read before must not come back.
                pass
            match attempts.superseded_by(attempts.load_attempt(attempt)):
                case int(build), False:
                    while not _write_verdict_of(build, last_erasure(pinned.pipeline)):
                        pass
        except DiskFull as error:
            error.pipeline = pinned.pipeline
            raise
        return verdict


def report_uri(pipeline: str, label: str) -> str:
    """Return where an interval's page lies."""
    return lake.uri("reports", pipeline, f"{label}.html")


def write_report(uri: str, pipeline: Pipeline, verdict: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Write the page of an interval: its verdict as JSON, and what its build collected."""
    from include.monitor.report import render_report

    shown = {"description": pipeline.description, **data}
    lake.write_text(uri, render_report(dict(verdict), shown))


def _announce(attempt: int, known: int) -> Verdict | None:
    """Announce the attempt; None, and nothing is noted, when an erasure began meanwhile, after the last `known` one."""
    spec = attempts.load_attempt(attempt)
    pipeline, verdict = load_pipeline(spec.pinned.pipeline), _verdict_of(spec)
    if is_late := attempts.superseded_by(spec) is not None:
        attempts.close_attempt(spec.id, verdict.exit_code)
    else:
        _write_report_of(spec, verdict)
        if not attempts.end_attempt(spec.id, verdict.exit_code, verdict.as_json(), known):
            return None
    send_lineage(pipeline, spec.id, verdict)
    if not is_late:
        notify_asked(spec)
    if verdict.exit_code == 0:
        notifications.notify(pipeline, spec.pinned)
    return verdict


def _write_verdict_of(build: int, known: int) -> bool:
    """Write a registered build's report and verdict, and leave its attempt as it is; False like `end_attempt`."""
    spec = attempts.of_build(build)
    verdict = _verdict_of(spec)
    _write_report_of(spec, verdict)
    return attempts.note_verdict(spec.pinned, verdict.as_json(), known)


def _verdict_of(spec: AttemptSpec) -> Verdict:
    verdict = assemble_verdict(spec, revisions.registered_of_interval(spec.pinned.id))
    verdict = replace(verdict, report=_report_of(spec).removeprefix("file://"))
    if verdict.exit_code == 0:
        verdict = verdict.with_proof(prove_registered(load_pipeline(verdict.pipeline), spec.pinned.id))
    return verdict


def _write_report_of(spec: AttemptSpec, verdict: Verdict) -> None:
    data = spec.findings.build.report if spec.findings.build else {}
    write_report(_report_of(spec), load_pipeline(verdict.pipeline), verdict.as_json(), data)


def _report_of(spec: AttemptSpec) -> str:
    return report_uri(spec.pinned.pipeline, spec.pinned.interval.label)
