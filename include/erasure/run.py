"""An erasure from its keys to its account: search, begin, then steps that a kill may interrupt anywhere.

Search and beginning hold the pipeline's lease, the lock of its quarantine and that of housekeeping: nobody lands,
replays or moves files meanwhile. The beginning is one transaction (`include/ledger/erasures/intent.py`). From its
commit on every reader leaves the records out, and a resumed run finds in the ledger what is left to do.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from include.crash_points import crash_point
from include.erasure import accounts, check, steps, views
from include.erasure.find import Search, search
from include.erasure.keys import Keys, hashes_of
from include.erasure.names import columns_now
from include.erasure.open_tables import delta_table_exists
from include.erasure.steps import Tell
from include.errors import AnotherWriter, ServiceUnreachable, UsageError
from include.housekeeping import replaced
from include.housekeeping.leftovers import left_tables
from include.intervals.lake_of_ledger import check_may_delete
from include.intervals.reporting.asking import notify_overtaken
from include.lake.delta_log import check_disk
from include.ledger.connection import await_ledger
from include.ledger.erasures import intent, unfinished
from include.ledger.erasures.coordinates import intervals_with
from include.ledger.erasures.intent import Request
from include.ledger.erasures.unfinished import Begun
from include.ledger.streams import writers
from include.ledger.streams.writers import Lease
from include.monitor.lag import archive_lag
from include.monitor.text import quantity
from include.pipelines.spec import Pipeline
from include.settings import settings
from include.streams.generations import no_stream
from include.streams.written_topics import check_not_taken_over
from include.times import format_time


@dataclass(frozen=True)
class Wish:
    """What to erase, and why."""

    keys: tuple[str, ...]
    columns: Sequence[str]
    reason: str
    by: str
    whole_records: bool = False
    """Whether the rows of others in the same messages are erased too."""


def erase(pipeline: Pipeline, wish: Wish, tell: Tell) -> dict[str, Any]:
    """Erase what is kept of the keys and return the account of it.

    An unfinished erasure of the same keys in the same columns is finished instead. Raises the error of `check_lake`;
    UsageError while files of another ledger are kept, for revisions outside of the lake, for signed proofs without a
    key to sign others, for a Delta table on a disk without hard links, for a reason that names a key, for rows of
    others in the same messages, while another erasure is unfinished, and where the stream of another ledger writes the
    views' topics; TidemarkError when the clock of the lake's store is more than a minute ahead; AnotherWriter while a
    stream runs; the error of an interval that fails.
    """
    await_ledger()
    columns = _columns_to_erase(pipeline, wish)
    check.check_can_sign_proofs(pipeline, columns)
    reason = " ".join(wish.reason.split())
    if not reason:
        raise UsageError("a reason is needed, it is kept for ever", remedy='--reason "…"', pipeline=pipeline.name)
    keys = Keys(wish.keys)
    if (begun := unfinished.unfinished(pipeline.name)) is not None:
        _check_same(pipeline, begun, wish, columns)
        return {**_finished(pipeline, wish, tell), "references": check.references_naming(pipeline, keys)}
    _check_topics(pipeline)
    accounts.check_clock(pipeline.name)
    with no_stream(pipeline.name, "erase") as lease, _renewed(lease), steps.files_stay(pipeline) as check_locks:
        # What this ledger names is searched, and stays when the rest of what was set aside is deleted.
        replaced.put_back(pipeline.name)
        tell(f"{pipeline.name}: searching {quantity(len(wish.keys), 'key')}")
        found = search(pipeline, columns, keys)
        _check_others(pipeline, found, whole_records=wish.whole_records)
        salt = secrets.token_hex(16)
        hashes = hashes_of(wish.keys, salt)
        # Now, because a later step runs the stream, which archives them.
        not_archived = _archive_lag(pipeline)
        check_locks()
        _check_lease(lease)
        intent.begin(
            lease,
            Request(
                pipeline.name,
                columns,
                reason,
                wish.by,
                salt,
                hashes,
                views.are_kept(pipeline),
                pipeline.archive.formerly,
                not_archived,
            ),
            found.found,
            keys,
        )
    crash_point("erasure_noted")
    return {**_finished(pipeline, wish, tell), "references": check.references_naming(pipeline, keys)}


def _finished(pipeline: Pipeline, wish: Wish, tell: Tell) -> dict[str, Any]:
    done = resume(pipeline, tell)
    for each in accounts.forget_repeated(pipeline.name, wish.keys):
        tell(f"{each}; {each.remedy}")
    return done


def dry_run(pipeline: Pipeline, wish: Wish) -> dict[str, Any]:
    """Return how much an erasure would erase; nothing is changed.

    Raises what `erase` raises before it searches, except for signed proofs without a key to sign others; UsageError
    also while one of the same keys is unfinished.
    """
    columns = _columns_to_erase(pipeline, wish)
    if (begun := unfinished.unfinished(pipeline.name)) is not None:
        _check_same(pipeline, begun, wish, columns)
        what = f"erasure {begun.id} of these keys is unfinished, and what it erases is not counted"
        raise UsageError(what, remedy=f"./tidemark erase {pipeline.name} --resume", pipeline=pipeline.name)
    _check_topics(pipeline)
    found = search(pipeline, columns, Keys(wish.keys))
    records = {*found.found.landed, *found.found.registered, *found.found.quarantined}
    return {
        "pipeline": pipeline.name,
        "keys": len(wish.keys),
        "records": len(records),
        "rows": found.found.rows,
        "rows_of_others": found.rows_of_others,
        "quarantined": len(found.found.quarantined),
        "intervals": len(intervals_with(pipeline.name, records)),
    }


def resume(pipeline: Pipeline, tell: Tell) -> dict[str, Any]:
    """Finish the unfinished erasure of a pipeline and return the account of it.

    Raises UsageError without one, while files of another ledger are kept, for revisions outside of the lake and for
    signed proofs without a key to sign others; the error of `check_lake`; AnotherWriter while housekeeping, a replay or
    attempts stay under way for minutes.

    A stream may run meanwhile, except for a pipeline with a Delta table: it reads the archive without the records.
    """
    await_ledger()
    erasure = unfinished.unfinished(pipeline.name)
    if erasure is None:
        raise UsageError("no erasure is unfinished", remedy="name a key: --key KEY", pipeline=pipeline.name)
    check_may_delete(pipeline, left_tables(pipeline))
    # Whoever resumes it may have another environment.
    check.check_can_sign_proofs(pipeline, erasure.columns)
    accounts.await_clock(accounts.write(erasure), pipeline.name, tell)
    counts = erasure.counts
    tell(
        f"{pipeline.name}: erasure {erasure.id}: no build reads the {quantity(counts['records'], 'record')} any more; "
        "tables show their rows until they are built again"
    )
    with steps.files_stay_at_last(pipeline, tell) as check_locks:
        steps.rewrite(pipeline, erasure, tell, check_locks)
    steps.build_views(pipeline, erasure, tell)
    steps.build_intervals(pipeline, erasure, tell)
    if delta_table_exists(pipeline):
        # Nobody may append meanwhile: files that are not in a version yet are deleted with older versions.
        with no_stream(pipeline.name, "erase") as lease, _renewed(lease):
            steps.erase_from_delta(pipeline, erasure, lease, tell)
    # Those of which nothing was built again, and whose questions are asked no longer.
    notify_overtaken(pipeline.name, unfinished.intervals_to_report_again(erasure))
    swept = steps.sweep(pipeline, erasure, tell)
    replaced = steps.forget_names(pipeline, erasure, tell)
    done = unfinished.finish(erasure.id, {**swept, **replaced})
    crash_point("erasure_finished")
    return account(pipeline, done)


def account(pipeline: Pipeline, erasure: Begun) -> dict[str, Any]:
    """Return what the ledger has of an erasure: how many and never what, and what it did not reach."""
    return {
        "erasure": erasure.id,
        "pipeline": erasure.pipeline,
        "columns": list(erasure.columns),
        "reason": erasure.reason,
        "by": erasure.by,
        "begun_at": format_time(erasure.begun_at),
        "ended_at": format_time(erasure.ended_at) if erasure.ended_at else None,
        # Erasures of earlier versions did not note it.
        "not_archived_yet": None,
        **erasure.counts,
        "remains": check.all_that_remains(pipeline, erasure),
    }


def _archive_lag(pipeline: Pipeline) -> int | None:
    """Return how many offsets are not archived yet; None when Kafka does not answer, which fails no erasure."""
    try:
        return archive_lag(pipeline)
    except ServiceUnreachable:
        return None


def _check_topics(pipeline: Pipeline) -> None:
    """Raise UsageError where the views that are to be built again are written by the stream of another ledger.

    Kafka that is away fails no erasure.
    """
    if not views.are_kept(pipeline):
        return
    try:
        with suppress(ServiceUnreachable):
            check_not_taken_over(pipeline)
    except UsageError as error:
        raise UsageError(
            error.message,
            remedy="where that one is in use, take what writes topics (views, reports, flags, outputs to topics) out "
            f"of the declaration here, then again; else {error.remedy}",
            pipeline=pipeline.name,
        ) from None


def _columns_to_erase(pipeline: Pipeline, wish: Wish) -> tuple[str, ...]:
    check_may_delete(pipeline, left_tables(pipeline))
    columns = check.subject_columns(pipeline, wish.columns)
    if delta_table_exists(pipeline):
        check_disk(pipeline.name)
    if Keys(wish.keys).named_in(wish.reason):
        raise UsageError(
            "the reason names a key, and it is kept for ever; nothing was changed",
            remedy='--reason "…" without the key, e.g. with the number of the request',
            pipeline=pipeline.name,
        )
    return columns


def _check_same(pipeline: Pipeline, begun: Begun, wish: Wish, columns: Sequence[str]) -> None:
    """Raise UsageError when the unfinished erasure is of other keys, or was asked to search other columns."""
    if hashes_of(wish.keys, begun.salt) != sorted(begun.key_hashes):
        what = "of other keys"
    elif (asked := columns_now(pipeline, begun.columns)) != {*columns}:
        what = f"of the column {' and '.join(sorted(asked))}"
    else:
        return
    raise UsageError(
        f"erasure {begun.id}, {what}, is unfinished",
        remedy=f"finish it first: ./tidemark erase {pipeline.name} --resume",
        pipeline=pipeline.name,
    )


def _check_others(pipeline: Pipeline, found: Search, *, whole_records: bool) -> None:
    if found.rows_of_others and not whole_records:
        raise UsageError(
            f"the same messages hold {quantity(found.rows_of_others, 'row')} of others, and a record is erased whole; "
            "nothing was changed",
            remedy="--whole-records erases these rows, too",
            pipeline=pipeline.name,
        )


def _check_lease(lease: Lease) -> None:
    """Raise AnotherWriter when the lease ran out, with a remedy that is not a stream's."""
    try:
        writers.renew(lease)
    except AnotherWriter as error:
        raise AnotherWriter(
            "the lease of this erasure was lost while the keys were searched: nothing was changed",
            remedy="repeat this command",
            pipeline=lease.pipeline,
        ) from error


@contextmanager
def _renewed(lease: Lease) -> Iterator[None]:
    """Renew the lease during the block, however long the search takes."""
    ended = threading.Event()

    def renew() -> None:
        # If the lease is lost, the check before the erasure begins, or the Delta table's step, finds out; a shorter
        # outage does no harm.
        while not ended.wait(settings().lease_seconds / 4):
            with suppress(Exception):  # the thread's edge
                writers.renew(lease)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
