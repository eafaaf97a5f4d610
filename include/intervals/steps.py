"""The steps of an interval, as the DAG's tasks and the command run them:

    pin → build (Spark) → judge_reconciliation → publish (Spark) → announce

Each step finds in the ledger what the one before left there, so a rerun may begin at any of them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from include import lake
from include.crash_points import crash_point
from include.errors import ReconciliationFailed, ValidationFailed
from include.intervals import notifications
from include.intervals.pinning import pin_interval
from include.intervals.verdict import Verdict
from include.lake import delta_tables
from include.ledger.intervals import attempts, revisions
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.streams.incarnations import closed
from include.pipelines import load_pipeline
from include.spark.submission import SHORT, SparkSubmission, submission
from include.times import Interval, format_time
from include.versions import code_version

Source = Literal["kafka", "archive"]
AttemptJob = Literal["build_interval", "publish"]


def pin(
    pipeline: str,
    interval: Interval,
    *,
    run_by: str,
    source: Source = "kafka",
    repin: bool = False,
    patience: timedelta | None = None,
) -> int:
    """Pin the interval (or reuse its ranges) and begin an attempt; the attempt's id.

    Waits for the archive as long as `patience`, else as the settings say. Raises ArchiveBehind, OffsetsLost,
    ServiceUnreachable, UsageError.
    """
    declared = load_pipeline(pipeline)
    pinned = pin_interval(declared, interval, pinned_by=run_by, repin=repin, patience=patience)
    crash_point("interval_pinned")
    return attempts.begin_attempt(
        pinned, run_by=run_by, code_version=code_version(pipeline), source=readable_source(pinned, source)
    )


def readable_source(pinned: PinnedInterval, wanted: Source) -> Source:
    """Where the interval can be read from: of a topic that was deleted since only the archive is left."""
    return "archive" if closed(pinned.pipeline).intersection(pinned.topic_ids.values()) else wanted


def submit(job: AttemptJob, pipeline: str, attempt: int) -> SparkSubmission:
    """The Spark application of a step.

    `build_interval` builds the attempt's revisions and reconciles; `publish` validates them and registers
    what passed.
    """
    delta = job == "publish" and delta_tables.is_kept(load_pipeline(pipeline))
    return _submission(job, pipeline, attempt, name=f"{job} {pipeline}", delta=delta)


def submit_both(pipeline: str, attempt: int) -> SparkSubmission:
    """One Spark application that takes both of its steps; where something is unexplained, only the first."""
    delta = delta_tables.is_kept(load_pipeline(pipeline))
    return _submission("build_interval", pipeline, attempt, "--publish", name=f"interval {pipeline}", delta=delta)


def _submission(job: AttemptJob, pipeline: str, attempt: int, *options: str, name: str, delta: bool) -> SparkSubmission:
    offsets = sum(len(r) for r in attempts.load_attempt(attempt).pinned.ranges)
    arguments = ("--pipeline", pipeline, "--attempt", str(attempt), *options)
    return submission(job, *arguments, name=name, short=offsets < SHORT, delta=delta)


def judge_reconciliation(attempt: int) -> None:
    """Raise ReconciliationFailed, after writing the report, when the attempt left something unexplained."""
    spec = attempts.load_attempt(attempt)
    unexplained = spec.verdict["reconciliation"]["unexplained"]
    if unexplained:
        verdict = announce(attempt)
        unexplained_ones = [d for d in verdict.differences if d["class"] == "unexplained"]
        examples = "; ".join(f"{d['what']}: {d['where']}" for d in unexplained_ones)
        raise ReconciliationFailed(
            f"{unexplained} differences are unexplained in {spec.pinned.interval}, nothing was registered: "
            f"{examples[:600]}",
            remedy=f"read the report: {verdict.report}",
            pipeline=spec.pinned.pipeline,
        )


def judge_validation(attempt: int) -> None:
    """Raise ValidationFailed, after writing the report, when the attempt's checkpoint did not pass."""
    spec = attempts.load_attempt(attempt)
    validation = spec.verdict.get("validation", {})
    if validation.get("success") is False:
        verdict = announce(attempt)
        failed = "; ".join(f"{f['expectation']}({f['column']})" for f in validation["failed"])
        raise ValidationFailed(
            f"the checkpoint did not pass in {spec.pinned.interval}, nothing was registered: {failed}",
            remedy=f"read the report: {verdict.report}",
            pipeline=spec.pinned.pipeline,
        )


def assemble_verdict(spec: AttemptSpec) -> Verdict:
    """The verdict of an attempt from what its steps found."""
    found = spec.verdict
    pinned = spec.pinned
    interval = {"from": format_time(pinned.interval.from_time), "to": format_time(pinned.interval.to_time)}
    verdict = Verdict(pinned.pipeline, interval, spec.code_version, spec.source)
    fates = found.get("fates", {})
    verdict.ranges = [
        {
            "topic": r.topic_partition.topic,
            "topic_id": pinned.topic_ids[r.topic_partition.topic],
            "partition": r.topic_partition.partition,
            "from_offset": r.from_offset,
            "until_offset": r.until_offset,
            **fates.get(str(r.topic_partition), {}),
        }
        for r in pinned.ranges
    ]
    verdict.records = found.get("records", {})
    verdict.reconciliation = found.get("reconciliation", {})
    verdict.differences = found.get("differences", [])
    verdict.decoder_versions = found.get("decoder_versions", [])
    verdict.code_changes = found.get("code_changes", {})
    verdict.revision_differences = found.get("revision_differences", [])
    verdict.validation = found.get("validation", verdict.validation)
    verdict.expectations = found.get("expectations", [])
    verdict.delta = found.get("delta", {})
    verdict.registered = (
        [r.as_registered() for r in revisions.registered_of_interval(pinned.id)]
        if verdict.validation["success"]
        else []
    )
    return verdict


def announce(attempt: int) -> Verdict:
    """Write the interval's report and verdict, end the attempt, and notify the operators of what is new."""
    from include.monitor.report import render_report

    crash_point("interval_published")
    spec = attempts.load_attempt(attempt)
    verdict = assemble_verdict(spec)
    location = lake.uri("reports", spec.pinned.pipeline, f"{spec.pinned.interval.label}.html")
    verdict.report = location.removeprefix("file://")
    data = spec.verdict.get("report", {})
    lake.write_text(
        location, render_report(verdict.as_json(), {"description": load_pipeline(verdict.pipeline).description, **data})
    )
    # A failed rerun leaves what an earlier attempt registered, so the interval stays registered.
    state = (
        "registered"
        if verdict.exit_code == 0
        else ("" if revisions.registered_of_interval(spec.pinned.id) else "failed")
    )
    attempts.end_attempt(attempt, verdict.exit_code, state, verdict.as_json())
    if verdict.exit_code == 0:
        notifications.notify(load_pipeline(verdict.pipeline), spec.pinned)
    return verdict
