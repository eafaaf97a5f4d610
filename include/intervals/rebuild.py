"""Build a registered partition again from its pinned ranges, and compare: recorded, rebuilt, registered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from include import catalog, kafka, lake
from include.errors import AnotherWriter, OffsetsLost, ServiceUnreachable, TidemarkError, UsageError
from include.intervals.steps import submit
from include.lake.revision_files import DamagedFile, damaged_files
from include.ledger.archive.removal import removed_ranges
from include.ledger.erasures import unfinished
from include.ledger.intervals import attempts, locks, pins, revisions
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.revisions import RegisteredRevision
from include.ledger.intervals.states import RevisionState, Source
from include.ledger.lineage import BuiltRevision
from include.ledger.streams import losses
from include.pipelines import pipeline_of_table
from include.reconciliation import Difference, DifferenceClass
from include.spark.submission import SparkSubmission
from include.times import format_time
from include.versions import code_version

_SAID = 3
"""How many differences between rows a message names; the comparison has more."""


def rebuild(table: str, partition: str, source: Source | str, run: Callable[[SparkSubmission], int]) -> dict[str, Any]:
    """Rebuild the partition's interval, compare, and discard what was built; the catalog is not touched.

    Three things are compared: the content hash that the ledger recorded, that of the rebuilt rows, and the files at
    the registered location, byte by byte, with the location that the catalog has. The rebuilt rows are themselves
    compared with Kafka, or the ledger: `unexplained` lists what differs there. `equal` means that all agree; `notes`
    lists what that does not cover.
    Raises UsageError when no pipeline has the table, the partition is not registered, or its interval was pinned to
    other ranges since; AnotherWriter when it is registered again meanwhile, is pinned again for minutes, or an
    unfinished erasure has still to build it; TidemarkError when the build fails.
    """
    # What a removed view had stays registered until its interval runs again: nothing builds it.
    pipeline_of_table(table)
    pinned = pins.pinned_interval(_registered(table, partition).interval_id)
    # From the first look on, since the ranges that are compared must be those that the job reads.
    with locks.attempt_under_way(pinned.pipeline, pinned.interval):
        revision = _registered(table, partition)
        pinned, source = _pinned(revision, source)
        _check_not_erased(pinned)
        damaged = list(damaged_files(revision.location, revision.files, deep=True))
        pointed_at = _pointed_at(revision)
        again, unexplained = _build_again(pinned, source, run, revision, damaged)
        # Other runs go on meanwhile, and an erasure deletes what it replaced at once.
        _check_stays(revision)
        _check_not_erased(pinned)
    return {
        "table": table,
        "partition": partition,
        "source": source.value,
        "registered_hash": revision.content_hash,
        "rebuilt_hash": again.content_hash if again else None,
        "rows": again.rows if again else 0,
        "location": revision.location,
        "catalog": pointed_at,
        "differing_files": [asdict(each) for each in damaged],
        "unexplained": [each.as_json() for each in unexplained],
        "equal": again is not None
        and again.content_hash == revision.content_hash
        and not damaged
        and not unexplained
        and _same_place(pointed_at, revision.location),
        "notes": list(notes(pinned, source)),
    }


def notes(pinned: PinnedInterval, source: Source) -> Iterator[str]:
    """Yield what a rebuild from this source does not compare: rows of removed landing come from registered files."""
    removed = removed_ranges(pinned.pipeline, pinned.ranges) if source is Source.ARCHIVE else []
    if not removed:
        return
    offsets = sum(map(len, removed))
    yield (
        f"the landing files of {offsets:,} offsets, first {removed[0]}, were removed: their rows were read from the "
        f"registered files themselves; {_left_in_kafka(pinned)}"
    )


def _left_in_kafka(pinned: PinnedInterval) -> str:
    try:
        kafka.check_retained(pinned.pipeline, losses.to_be_read(pinned.pipeline, pinned.ranges))
    except OffsetsLost:
        return "Kafka does not hold the interval any more, so that nothing else is left to compare with"
    except ServiceUnreachable as error:
        return f"whether Kafka holds the interval is not known: {error.message}"
    return "Kafka holds the whole interval: --source kafka compares with it"


def differences(comparison: dict[str, Any]) -> list[str]:
    """Return the differences of a comparison in words: files by their names first, few of those between rows."""
    said = [f"{each['damage']}: {each['name']}" for each in comparison["differing_files"]]
    if not _same_place(comparison["catalog"], comparison["location"]):
        said.append(f"the catalog points at {comparison['catalog'] or 'nothing'}")
    if comparison["rebuilt_hash"] is None:
        said.append("the interval, built again, has no such partition")
    elif comparison["rebuilt_hash"] != comparison["registered_hash"]:
        said.append("the rows that were built again have another content hash")
    said += [f"{each['what']}, {each['where']}: {each['evidence']}" for each in comparison["unexplained"][:_SAID]]
    return said


def _registered(table: str, partition: str) -> RegisteredRevision:
    registered = revisions.registered(table, partition)
    if not registered:
        raise UsageError(f"{table} has no registered partition {partition!r}", remedy="./tidemark explain lists them")
    return registered[0]


def _stays(revision: RegisteredRevision) -> bool:
    return any(each.revision == revision.revision for each in revisions.registered(revision.table, revision.partition))


def _check_stays(revision: RegisteredRevision) -> None:
    """Raise AnotherWriter when the revision is no longer registered: what was built is compared with a former one."""
    if not _stays(revision):
        raise AnotherWriter(
            f"{revision.table} {revision.partition} was registered again, or left the catalog, while it was rebuilt: "
            "what is registered now was not compared",
            remedy="repeat this command",
        )


def _check_not_erased(pinned: PinnedInterval) -> None:
    """Raise AnotherWriter while what is registered has rows that an unfinished erasure takes out of each build."""
    erasure = unfinished.unfinished(pinned.pipeline)
    if erasure and any(each.id == pinned.id for each in unfinished.intervals_to_build(erasure)):
        raise AnotherWriter(
            f"erasure {erasure.id} has still to build {pinned.interval} again: until then its registered rows are not "
            "what a build gives",
            remedy=f"let it end, or finish it: ./tidemark erase {pinned.pipeline} --resume; then repeat this command",
            pipeline=pinned.pipeline,
        )


def _pinned(revision: RegisteredRevision, source: Source | str) -> tuple[PinnedInterval, Source]:
    pinned = pins.pinned_interval(revision.interval_id)
    read = revisions.published_ranges(revision.interval_id)
    if read and read != pinned.ranges:
        begin, end = format_time(pinned.interval.from_time), format_time(pinned.interval.to_time)
        raise UsageError(
            f"{revision.table} {revision.partition}: {pinned.interval} was pinned again since this was registered, so "
            "its rows would be compared with those of other offsets",
            remedy=f"./tidemark interval {pinned.pipeline} --from {begin} --to {end} registers the ranges of now",
            pipeline=pinned.pipeline,
        )
    return pinned, attempts.readable_source(pinned, Source(source))


def _pointed_at(revision: RegisteredRevision) -> str | None:
    """Return where the catalog points for the revision's partition."""
    key = (revision.table, revision.partition)
    entry = catalog.partitions([revision.table]).get(key)
    return entry.location if entry else None


def _same_place(pointed_at: str | None, location: str) -> bool:
    return pointed_at is not None and catalog.comparable_location(pointed_at) == catalog.comparable_location(location)


def _build_again(
    pinned: PinnedInterval,
    source: Source,
    run: Callable[[SparkSubmission], int],
    revision: RegisteredRevision,
    damaged: list[DamagedFile],
) -> tuple[BuiltRevision | None, list[Difference]]:
    """Build the interval in an attempt of its own and discard it.

    Returns its revision of the partition, and the first unexplained differences of its rows.
    """
    version = code_version(pinned.pipeline)
    attempt = attempts.begin_attempt(pinned, run_by=attempts.REBUILD, code_version=version, source=source)
    code = run(submit("build_interval", pinned.pipeline, attempt))
    spec = attempts.load_attempt(attempt)
    built = revisions.of_build(spec.build) if spec.build is not None else []
    attempts.close_attempt(attempt, code)
    revisions.set_state(built, RevisionState.DISCARDED)
    for each in built:
        lake.delete(each.location)
    if code:
        damaged = damaged if damaged and _stays(revision) else []
        where = f"{revision.table} {revision.partition}"
        also = f"; registered, {damaged[0]} in {revision.location}" if damaged else ""
        error = TidemarkError(
            f"the rebuild of {where} ended with exit code {code}{also}",
            remedy="do what the line above says" + ("; then run the interval again" if damaged else ""),
        )
        error.exit_code, error.is_reported = code, not damaged
        raise error
    key = (revision.table, revision.partition)
    found = spec.findings.build.differences if spec.findings.build else ()
    unexplained = [each for each in found if each.cls is DifferenceClass.UNEXPLAINED and each.is_of_rows]
    return next((each for each in built if (each.table, each.partition) == key), None), unexplained
