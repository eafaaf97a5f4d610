"""The steps of an erasure after it was begun: each finds in the ledger what is left to do, so it may be killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

from include import catalog, lake
from include.crash_points import crash_point
from include.erasure import open_tables, views
from include.erasure.files import rewrite_files
from include.erasure.keys import FORGOTTEN
from include.erasure.names import columns_of, names_of
from include.errors import AnotherWriter, TidemarkError, error_class
from include.housekeeping.leftovers import left_tables
from include.housekeeping.old_generations import sweep_checkpoints
from include.housekeeping.run import holding_files
from include.housekeeping.sweep import Done, Times, sweep_landing, sweep_tables
from include.intervals import steps
from include.lake.delta_log import check_disk
from include.ledger import quarantine as ledger_quarantine
from include.ledger.erasures import named_partitions, unfinished
from include.ledger.erasures.reports import cleaned_reports
from include.ledger.erasures.unfinished import Begun
from include.ledger.held_locks import Check
from include.ledger.intervals import locks
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.inventory import attempts_under_way
from include.ledger.lineage import BuiltRevision
from include.ledger.streams import writers
from include.ledger.streams.writers import Lease
from include.monitor.text import quantity
from include.pipelines.spec import Pipeline
from include.proof.replace import replace_proofs, replaced_by
from include.spark.run import run_job, run_stream_job
from include.spark.submission import stream_submission, submission
from include.waiting import wait_for

Tell = Callable[[str], None]

_LONG_AGO = timedelta(days=30)
"""An attempt that began longer ago is no longer under way."""


@contextmanager
def files_stay(pipeline: Pipeline) -> Iterator[Check]:
    """Hold the locks on replaying, discarding, compacting and deleting.

    Yields a function that raises when one of them was lost: call it before each change. Raises AnotherWriter.
    """
    with (
        ledger_quarantine.deciding(pipeline.name) as check_quarantine,
        holding_files(pipeline.name) as check_files,
    ):
        yield _both(check_quarantine, check_files)


def _both(first: Check, second: Check) -> Check:
    def check_locks() -> None:
        first()
        second()

    return check_locks


@contextmanager
def files_stay_at_last(pipeline: Pipeline, tell: Tell, *, nobody_builds: bool = False) -> Iterator[Check]:
    """Hold the same locks for a step of an erasure that was begun, which waits for others' hours of work.

    With `nobody_builds` from a moment without a process that works on an interval. Raises AnotherWriter that says how
    to go on where no such moment comes within minutes.
    """
    told: set[str] = set()
    now = datetime.now(UTC)
    with ExitStack() as held:

        def take() -> Check | AnotherWriter:
            # All or none: who held one while it waits would keep others from their work.
            try:
                with ExitStack() as taken:
                    if nobody_builds:
                        _check_nobody_builds(pipeline, now)
                    check_files = taken.enter_context(holding_files(pipeline.name))
                    check_quarantine = taken.enter_context(ledger_quarantine.deciding(pipeline.name, locks.NO_WAIT))
                    held.enter_context(taken.pop_all())
                    return _both(check_quarantine, check_files)
            except AnotherWriter as error:
                if (why := error.message.partition(" (")[0]) not in told:
                    told.add(why)
                    tell(f"{pipeline.name}: waiting: {error.message}")
                return error

        found = wait_for(take, lambda each: not isinstance(each, AnotherWriter), seconds=locks.PATIENCE.total_seconds())
        if isinstance(found, AnotherWriter):
            raise AnotherWriter(
                f"{found.message}: the erasure is unfinished",
                remedy=f"{found.remedy}; then: ./tidemark erase {pipeline.name} --resume",
                pipeline=pipeline.name,
            ) from found
        yield found


def _check_nobody_builds(pipeline: Pipeline, now: datetime) -> None:
    open_attempts = attempts_under_way(pipeline.name, now - _LONG_AGO)
    if found := locks.with_attempts(pipeline.name, set(open_attempts.values())):
        first = min(found)
        raise AnotherWriter(
            f"an attempt of {first} is under way{locks.attempt_held_by(pipeline.name, first)}",
            remedy=_when_ended(pipeline),
            pipeline=pipeline.name,
        )


def rewrite(pipeline: Pipeline, erasure: Begun, tell: Tell, check: Check) -> None:
    """Rewrite landing and quarantine without the records, and delete reports that may list them.

    Reports of intervals that are not built again are written from what the ledger has left of them. Raises
    AnotherWriter when one is announced for longer than the lock's patience.
    """
    written = rewrite_files(pipeline, erasure, check)
    for interval in unfinished.intervals_to_report_again(erasure):
        # Whoever announces it now may have read the ledger before the erasure, and be killed with the page written.
        with locks.announcing(pipeline.name, interval):
            lake.delete(steps.report_uri(pipeline.name, interval.label))
    for report in cleaned_reports(erasure, FORGOTTEN):
        uri = steps.report_uri(pipeline.name, report.label)
        steps.write_report(uri, pipeline, report.verdict, report.data)
    tell(f"{pipeline.name}: {written} files of landing and quarantine were written again")
    crash_point("erased_from_landing")


def build_views(pipeline: Pipeline, erasure: Begun, tell: Tell) -> None:
    """Let the stream build its views in the generation that the erasure opened, from the archive as it is now.

    The content of a view's sinks is replaced, and keys that no longer exist are deleted from them. A stream that
    somebody else has started since does the same. Raises the error of the stream's exit code.
    """
    if erasure.generation is None or not pipeline.views or views.are_built(pipeline):
        return
    tell(f"{pipeline.name}: the stream builds its views again")
    code = run_stream_job(stream_submission(pipeline, "--until-caught-up"), is_step=True)
    if code not in (0, AnotherWriter.exit_code) or not views.are_built(pipeline):
        raise _ended(pipeline, "the stream", code)
    crash_point("erased_from_views")


def build_intervals(pipeline: Pipeline, erasure: Begun, tell: Tell) -> None:
    """Build, validate and register the tables of the intervals again.

    Raises ValidationFailed or ReconciliationFailed for one that does not pass: its registered revisions then stay.
    """
    left = unfinished.intervals_to_build(erasure)
    for number, pinned in enumerate(left, 1):
        tell(f"{pipeline.name}: {pinned.interval} is built again ({number} of {len(left)})")
        _build_interval(pipeline, erasure, pinned)
        crash_point("erased_interval_built")
    for attempt in unfinished.attempts_to_announce(erasure):
        steps.announce(attempt)


def _build_interval(pipeline: Pipeline, erasure: Begun, pinned: PinnedInterval) -> None:
    # Where nothing else is left, the rows as they landed: what is to be erased must not stay.
    source = steps.source_as_registered(pinned) or Source.ARCHIVE
    ended = partial(_ended, pipeline, str(pinned.interval))
    verdict = steps.run_again(pinned, run_by=f"erasure {erasure.id}", source=source, ended=ended)
    if verdict.exit_code:
        raise error_class(verdict.exit_code)(
            f"{verdict.in_words()}; what was registered before stays, with the rows that are to be erased",
            remedy=f"./tidemark erase {pipeline.name} --resume, when it can pass",
            pipeline=pipeline.name,
        )


def _ended(pipeline: Pipeline, what: str, code: int) -> TidemarkError:
    return error_class(code)(
        f"{what} ended with {code}: the erasure is unfinished",
        remedy=f"repair what the log above names, then: ./tidemark erase {pipeline.name} --resume",
        pipeline=pipeline.name,
    )


def erase_from_delta(pipeline: Pipeline, erasure: Begun, lease: Lease, tell: Tell) -> None:
    """Delete the records from the Delta table, its older versions and its log, and pin its view again.

    Raises the error of the application's exit code, AnotherWriter when the lease was lost meanwhile, UsageError for a
    disk without hard links.
    """
    check_disk(pipeline.name)
    tell(f"{pipeline.name}: the Delta table is written again, its older versions are deleted")
    arguments = ("--pipeline", pipeline.name, "--erasure", str(erasure.id), "--token", str(lease.token))
    job = submission("erase_subject", *arguments, name=f"erase {pipeline.name}", short=True, delta=True)
    if code := run_job(job):
        raise _ended(pipeline, "the Delta table's application", code)
    try:
        writers.renew(lease)
    except AnotherWriter as error:
        raise AnotherWriter(
            "the lease was lost while the Delta table was written again, and files of another driver may be gone, too: "
            "the erasure is unfinished",
            remedy=f"{writers.how_to_stop(pipeline.name)}, and when it has ended: "
            f"./tidemark erase {pipeline.name} --resume",
            pipeline=pipeline.name,
        ) from error


def sweep(pipeline: Pipeline, erasure: Begun, tell: Tell) -> dict[str, int]:
    """Delete what may still hold the rows: replaced revisions, removed, leftover and set aside files, old checkpoints.

    Also in the tables of removed views. Raises AnotherWriter when attempts of intervals, or a replay, stay under
    way for minutes: leftovers could be their files.
    """
    with files_stay_at_last(pipeline, tell, nobody_builds=True) as check:
        times = Times.all_due()
        done = Done(pipeline.name, dry_run=False, check=check)
        left = left_tables(pipeline)
        pointed_at = catalog.pointed_at([*pipeline.tables, *left])
        retired = unfinished.retire(erasure)
        locations = sorted({each.location for each in retired})
        for each in retired:
            if catalog.comparable_location(each.location) in pointed_at:
                raise _pointed_at(pipeline, each)
        crash_point("erased_revisions_retired")
        snapshots = open_tables.forget(pipeline, retired, names_of(pipeline, erasure))
        for location in locations:
            check()
            lake.delete(location)
        if not sweep_landing(pipeline, times, done, nobody_replays=True):
            raise AnotherWriter(
                f"an interval began meanwhile: {done.kept[-1]}; the erasure is unfinished",
                remedy=f"{_when_ended(pipeline)}; then: ./tidemark erase {pipeline.name} --resume",
                pipeline=pipeline.name,
            )
        sweep_tables(pipeline, times, pointed_at, done, left)
        sweep_checkpoints(pipeline, times, done, kept=())
        for table in (*pipeline.tables, *left):
            # What was deleted just now left folders that are younger than `times`, with names of partitions.
            lake.delete_empty_folders(lake.uri("tables", table), datetime.now(UTC))
    for line in done.kept:
        tell(f"{pipeline.name}: left: {line}")
    crash_point("erased_files_swept")
    return {"revisions": len(locations), "snapshots": snapshots, "swept_files": done.deleted["files"]}


def _pointed_at(pipeline: Pipeline, revision: BuiltRevision) -> TidemarkError:
    # Doctor looks at declared tables only.
    mend = (
        "./tidemark doctor --repair"
        if revision.table in pipeline.tables
        else f"the table is no longer declared: drop {revision.partition} from {catalog.DATABASE}.{revision.table}"
    )
    return TidemarkError(
        f"the catalog points at a replaced revision: {revision.location}; the erasure is unfinished",
        remedy=f"{mend}, then: ./tidemark erase {pipeline.name} --resume",
        pipeline=pipeline.name,
    )


def forget_names(pipeline: Pipeline, erasure: Begun, tell: Tell) -> dict[str, int]:
    """Write proofs without erased keys that name partitions in the place of those with them, then clean the ledger.

    Return what was done, also before a kill; nothing where no key can be the value of a partition column. Raises
    UsageError without the key to sign with.
    """
    if not columns_of(pipeline, erasure.columns):
        return {}
    if names := names_of(pipeline, erasure):
        replaced = replace_proofs(pipeline, erasure.id, names)
        tell(f"{pipeline.name}: {quantity(replaced, 'proof')} replaced, which named erased partitions or followed one")
        crash_point("erased_proofs_replaced")
        named_partitions.forget_names(erasure, pipeline.table, names)
        crash_point("erased_names_forgotten")
    return {
        "proofs_replaced": replaced_by(pipeline, erasure.id),
        "partitions_renamed": named_partitions.renamed_by(erasure.id, pipeline.table),
    }


def _when_ended(pipeline: Pipeline) -> str:
    return f"let it end, or, where runs follow each other, as in a backfill, pause interval__{pipeline.name}"
