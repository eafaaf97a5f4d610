"""Attempts: runs of a pinned interval, what each found, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Select, exists, func, select
from sqlalchemy.orm import Session

from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.ledger.archive.positions import topics_that_left
from include.ledger.database import session
from include.ledger.erasures.coordinates import began_after, lock_erasing
from include.ledger.intervals.findings import DeltaVersion, FateCounts, Findings, IcebergSnapshot, findings_of
from include.ledger.intervals.pins import PinnedInterval, pinned_of
from include.ledger.intervals.states import IntervalState, RevisionState, Source
from include.ledger.models import Attempt, Build, IntervalRange, IntervalRow, Repin, Revision
from include.ledger.streams.incarnations import closed
from include.offsets import OffsetRange, TopicPartition
from include.times import Interval

REBUILD = "rebuild"
"""`run_by` of an attempt that builds registered revisions again for comparison: its build is discarded."""


@dataclass(frozen=True)
class AttemptSpec:
    """What an attempt's jobs need to know."""

    id: int
    pinned: PinnedInterval
    source: Source
    code_version: str
    findings: Findings
    """Findings of its latest build."""
    build: int | None
    """The latest build; None before the first."""
    is_rebuild: bool = False
    """Whether its build is only compared with what is registered, and then discarded."""


def begin_attempt(pinned: PinnedInterval, *, run_by: str, code_version: str, source: Source | str) -> int:
    """Note a run of the interval and return its id."""
    with session() as ledger:
        # Without a verdict, even an empty one, until a job of it begins.
        row = Attempt(interval_id=pinned.id, run_by=run_by, code_version=code_version, source=Source(source))
        ledger.add(row)
        ledger.flush()
        return row.id


def readable_source(pinned: PinnedInterval, wanted: Source) -> Source:
    """Return where the interval can be read from: for a topic that was deleted or left since, only the archive."""
    left = topics_that_left(pinned.pipeline)
    is_over = any(len(each) and each.topic_partition.topic in left for each in pinned.ranges)
    return Source.ARCHIVE if is_over or closed(pinned.pipeline).intersection(pinned.topic_ids.values()) else wanted


def resume_attempt(attempt: int, code_version: str | None = None, source: Source | None = None) -> AttemptSpec:
    """Note that an attempt is under way, again if a task of it was cleared or is retried; return it.

    A build passes its `code_version`, since what it builds comes from the present code, and its `source`, since a topic
    may have left since the attempt began.
    """
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt, with_for_update=True)
        if row.ended_at is not None or row.exit_code is not None:
            # Housekeeping leaves alone what an attempt that began recently may be reading.
            row.started_at, row.ended_at, row.exit_code = func.now(), None, None
        if row.verdict is None:
            row.verdict = {}
        if code_version is not None:
            row.code_version = code_version
        if source is not None:
            row.source = source
    return load_attempt(attempt)


def interval_of_run(pipeline: str, run_by: str, at: datetime) -> Interval | None:
    """Return the interval of the first attempt that `run_by`, e.g. `airflow <run id>`, began; None before it.

    It begins at `at`, or is the last complete one before, by a schedule of a day at most.
    """
    wanted = (
        select(IntervalRow.from_time, IntervalRow.to_time)
        .join(Attempt, Attempt.interval_id == IntervalRow.id)
        .where(
            # Runs of different DAGs may have the same id. By the times, an index finds the few that it can be, and a
            # run that was deleted is not taken for another one with its id.
            IntervalRow.pipeline == pipeline,
            IntervalRow.from_time > at - timedelta(days=2),
            IntervalRow.from_time <= at,
            Attempt.run_by == run_by,
        )
        .order_by(Attempt.id)
        .limit(1)
    )
    with session() as ledger:
        row = ledger.execute(wanted).tuples().first()
        return Interval(*row) if row else None


def load_attempt(attempt: int) -> AttemptSpec:
    """Return an attempt with its pinned interval. Raise TidemarkError when no attempt has that id."""
    with session() as ledger:
        row = ledger.get(Attempt, attempt)
        if row is None:
            raise TidemarkError(f"the ledger has no attempt {attempt}", remedy="run the interval again")
        pinned = pinned_of(ledger, ledger.get_one(IntervalRow, row.interval_id))
        build = latest_build(ledger, attempt)
        findings = findings_of(build.findings) if build else Findings()
        number = build.id if build else None
        is_rebuild = row.run_by == REBUILD
        return AttemptSpec(row.id, pinned, Source(row.source), row.code_version, findings, number, is_rebuild)


def attempt_of(pipeline: str, number: int, run_by: str = "") -> AttemptSpec:
    """Return the pipeline's attempt of a number that was kept elsewhere; with `run_by`, the one that this began.

    Raises UsageError when the number has no attempt, or another one: a ledger that was restored from an older copy
    gives numbers out again.
    """
    with session() as ledger:
        row = ledger.get(Attempt, number)
        begun_by = row.run_by if row is not None else ""
    spec = load_attempt(number) if begun_by else None
    if spec is not None and spec.pinned.pipeline == pipeline and run_by in ("", begun_by):
        return spec
    told = f"the ledger has no attempt {number}"
    if spec is not None:
        other = f"{begun_by} began it for {spec.pinned.pipeline} {spec.pinned.interval}"
        told = f"attempt {number} is not of {run_by or pipeline}: {other}"
    raise UsageError(
        told,
        remedy="was the ledger restored? Run the interval again; in Airflow, clear pin_ranges with the tasks after it",
        pipeline=pipeline,
    )


def of_build(build: int) -> AttemptSpec:
    """Return the attempt of a build with what that build found, whether or not it is the latest one."""
    with session() as ledger:
        row = ledger.get_one(Build, build)
        attempt = ledger.get_one(Attempt, row.attempt_id)
        pinned = pinned_of(ledger, ledger.get_one(IntervalRow, row.interval_id))
        findings = findings_of(row.findings)
        return AttemptSpec(attempt.id, pinned, Source(attempt.source), attempt.code_version, findings, row.id)


def went_on_since_build(attempt: int) -> bool:
    """Return whether an attempt has ended, failed or been resumed since its latest build was noted.

    The driver that builds publishes before any of these. False before the first build.
    """
    with session() as ledger:
        row, build = ledger.get_one(Attempt, attempt), latest_build(ledger, attempt)
        if build is None:
            return False
        # A driver that is killed notes no end: then its beginning tells that there was one.
        return row.ended_at is not None or row.exit_code is not None or row.started_at > build.noted_at


def note_iceberg(build: int, snapshots: Iterable[IcebergSnapshot]) -> None:
    """Note the Iceberg snapshots that hold what a build registered."""
    _note(build, iceberg=tuple(snapshots))


def note_delta_anew(build: int, version: DeltaVersion) -> None:
    """Note a version of the Delta table, which was made anew, in place of the former one that a build has noted.

    Nothing is said of whose rows the version has.
    """
    _note(build, delta=version)


def _note(build: int, **parts: Any) -> None:
    """Note parts of what a build found, whether or not it is its attempt's latest one."""
    with session() as ledger:
        pipeline = select(IntervalRow.pipeline).join(Build, Build.interval_id == IntervalRow.id)
        # Before the rows: an erasure that begins holds it and changes them.
        lock_erasing(ledger, ledger.execute(pipeline.where(Build.id == build)).scalar_one())
        attempt = ledger.get_one(Attempt, ledger.get_one(Build, build).attempt_id, with_for_update=True)
        row = ledger.get_one(Build, build, with_for_update=True)
        row.findings = replace(findings_of(row.findings), **parts).as_json()
        if (latest := latest_build(ledger, attempt.id)) is not None and latest.id == row.id:
            attempt.verdict = row.findings


def note_fates(
    ledger: Session, interval_id: int, ranges: Iterable[OffsetRange], fates: Mapping[TopicPartition, FateCounts]
) -> None:
    """Write the fate of every offset of an interval's ranges beside these, within a transaction.

    Not beside ranges that were pinned again since they were read.
    """
    read = {*ranges}
    for row in ledger.scalars(select(IntervalRange).where(IntervalRange.interval_id == interval_id)):
        tp = TopicPartition(row.topic, row.topic_partition)
        counts = fates.get(tp) if OffsetRange(tp, row.from_offset, row.until_offset) in read else None
        if counts is not None:
            row.archived, row.empty, row.quarantined = counts.archived, counts.empty, counts.quarantined
            row.gaps, row.erased = counts.gaps, counts.erased


def attempt_times(attempt: int) -> tuple[datetime, datetime]:
    """Return when an attempt began, and when it ended: now if it has not."""
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt)
        return row.started_at, row.ended_at or datetime.now(UTC)


def latest_build(ledger: Session, attempt: int) -> Build | None:
    """Return the build of the attempt that was noted last."""
    return ledger.scalar(select(Build).where(Build.attempt_id == attempt).order_by(Build.id.desc()).limit(1))


def repins_since(build: Build | type[Build]) -> Select[int]:
    """Select the repins of a build's interval since it was noted: it had other ranges.

    By the order of builds: the ledger's clock may have been set back.
    """
    return select(Repin.id).where(Repin.interval_id == build.interval_id, Repin.last_build >= build.id)


def superseded_by(spec: AttemptSpec) -> tuple[int | None, bool] | None:
    """Return the latest build of another attempt, after this one's, that was registered or announced.

    With whether its attempt was announced or has failed. An attempt without a build is as late as its own number.
    """
    later = Attempt.id > spec.id if spec.build is None else Build.id > spec.build
    wanted = (
        select(Build.id, Attempt.ended_at.is_not(None) | Attempt.exit_code.is_not(None))
        .outerjoin(Build, Build.attempt_id == Attempt.id)
        .where(
            Attempt.interval_id == spec.pinned.id,
            Attempt.id != spec.id,
            Attempt.run_by != REBUILD,
            Attempt.ended_at.is_not(None) | Build.published_at.is_not(None),
            later,
        )
        .order_by(Build.id.desc().nulls_last(), Attempt.id.desc())
        .limit(1)
    )
    with session() as ledger:
        return ledger.execute(wanted).tuples().one_or_none()


def end_attempt(attempt: int, exit_code: int, verdict: dict[str, Any], known: int | None = None) -> bool:
    """Note how an attempt ended, and its verdict as the interval's.

    An interval without registered revisions has then failed. A registered one stays registered: a failed attempt
    changes nothing that an earlier one registered. `known` is the last erasure when the verdict's findings were read:
    when another one began since, nothing is noted, and False is returned.
    """
    with session() as ledger:
        pipeline = select(IntervalRow.pipeline).join(Attempt, Attempt.interval_id == IntervalRow.id)
        of_attempt = ledger.execute(pipeline.where(Attempt.id == attempt)).scalar_one()
        if known is not None and began_after(ledger, of_attempt, known):
            return False
        row = ledger.get_one(Attempt, attempt)
        row.ended_at, row.exit_code = func.now(), exit_code
        interval = ledger.get_one(IntervalRow, row.interval_id, with_for_update=True)
        interval.verdict = verdict
        of_interval = Revision.interval_id == interval.id
        registered = exists().where(of_interval, Revision.state == RevisionState.REGISTERED)
        if exit_code and interval.state == IntervalState.PINNED and not ledger.scalar(select(registered)):
            interval.state = IntervalState.FAILED
        return True


def note_verdict(pinned: PinnedInterval, verdict: dict[str, Any], known: int) -> bool:
    """Note a verdict as the interval's, whose attempt does not end by this; False like `end_attempt`."""
    with session() as ledger:
        if is_noted := not began_after(ledger, pinned.pipeline, known):
            ledger.get_one(IntervalRow, pinned.id, with_for_update=True).verdict = verdict
        return is_noted


def note_failure(attempt: int, exit_code: int) -> int:
    """Note the exit code of a job after which nobody announces the attempt, for whoever looks at it, and return it.

    It has not ended by this: only a verdict, or a rebuild's end, outdates other attempts. Where the ledger does not
    answer, nothing is noted: the job's own error is what counts.
    """
    with suppress(ServiceUnreachable), session() as ledger:
        row = ledger.get(Attempt, attempt)
        if row is not None and row.ended_at is None:
            row.exit_code = exit_code
    return exit_code


def close_attempt(attempt: int, exit_code: int) -> None:
    """Note the end of an attempt that does not change its interval: a rebuild, or one that comes too late."""
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt)
        row.ended_at, row.exit_code = func.now(), exit_code
