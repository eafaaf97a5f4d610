"""What a run of an interval would read, and what it would replace: reported without changing anything."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from include.errors import UsageError
from include.intervals.pinning import NEAR, check_apart, check_repin, near_steps
from include.intervals.reporting.summary import bounded
from include.ledger import lineage
from include.ledger.archive.positions import positions
from include.ledger.intervals import pins, revisions
from include.ledger.intervals.pins import Neighbours, PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.lineage import BuiltRevision
from include.monitor.text import quantity
from include.pipelines.spec import Pipeline, Schedule
from include.pipelines.spec.references import content_of
from include.times import Interval
from include.versions import code_version


def plan_interval(
    pipeline: Pipeline, interval: Interval, *, source: Source, repin: bool, new_references: bool = False
) -> list[str]:
    """Return what a run would do, in a few lines. Only the ledger and files of references are read, nothing by Spark.

    `new_references`: it would read the references as they are now. Raises UsageError for an interval that overlaps a
    pinned one of another schedule.
    """
    known = pins.find_interval(pipeline.name, interval.from_time)
    around = pins.find_neighbours(pipeline.name, interval)
    for each in (around.before, known, around.after):
        if each is not None:
            check_apart(pipeline, interval, each)
    lines = [f"{pipeline.name} {interval}: dry run, nothing is changed"]
    if known is None:
        return bounded([*lines, *_would_pin(pipeline, interval, around)])
    registered = revisions.registered_of_interval(known.id)
    return bounded(
        [
            *lines,
            *(_would_repin(pipeline, known) if repin else []),
            *(f"would read from {source}: {each}, {len(each):,} offsets" for each in known.ranges[:8]),
            f"would read: {sum(map(len, known.ranges)):,} offsets of {len(known.ranges)} topic partitions",
            *(
                f"registered: {each.table} {each.partition} {each.revision}, {each.rows:,} rows, "
                f"content {each.content_hash[:16]}"
                for each in registered
            ),
            _expected(pipeline, registered, repin, _other_references(pipeline, known) if new_references else []),
        ]
    )


def _would_pin(pipeline: Pipeline, interval: Interval, neighbours: Neighbours) -> list[str]:
    before, after = (each.interval if each else "none" for each in (neighbours.before, neighbours.after))
    return [
        f"would pin: it has no ranges yet; pinned before it is {before}, after it {after}",
        *_would_pin_too(pipeline.schedule, interval, neighbours),
        *(f"archived: {tp} below {offset}" for tp, offset in sorted(positions(pipeline.name).items())[:8]),
        "would wait for the archive to reach the interval's end, then build, reconcile, validate and register it",
    ]


def _would_pin_too(schedule: Schedule, interval: Interval, neighbours: Neighbours) -> Iterator[str]:
    """Yield which intervals between it and the nearest pinned ones are pinned with it."""
    if neighbours.before is None:
        yield f"would pin, too: those from the topics' first record to it, if no more than {NEAR}"
    elif before := near_steps(schedule, neighbours.before.interval.to_time, interval.from_time):
        yield f"would pin, too: {quantity(len(before), 'interval')} before it, from {before[0]} on"
    if neighbours.after and (after := near_steps(schedule, interval.to_time, neighbours.after.interval.from_time)):
        yield f"would pin, too: {quantity(len(after), 'interval')} after it, until {after[-1]}"


def _would_repin(pipeline: Pipeline, known: PinnedInterval) -> list[str]:
    try:
        check_repin(pipeline, known)
    except UsageError as error:
        return [f"would be refused: {error}"]
    return ["would resolve again: the ranges begin where they do, or where the archive does, and may become longer"]


def _other_references(pipeline: Pipeline, known: PinnedInterval) -> list[str]:
    """Return the references that may hold something else now than when the interval was built.

    What is not read from a file is only known once Spark reads it.
    """
    then = revisions.references_of_published(known.id)
    return [
        name
        for name, each in sorted(pipeline.references.items())
        if each.source or hashlib.sha256(content_of(name, each)).hexdigest() != then.get(name)
    ]


def _expected(pipeline: Pipeline, registered: list[BuiltRevision], repin: bool, references: Sequence[str]) -> str:
    if not registered:
        return "would register: nothing is registered of it yet"
    now = code_version(pipeline.name)
    histories = lineage.revisions_of_partition(registered[0].table, registered[0].partition)
    before = next(each.code_version for each in histories if each.built.revision == registered[0].revision)
    if before != now:
        return f"would replace: built by code {before[:12]}, the code is {now[:12]}; the build counts what that changes"
    if reasons := [*(["late records"] if repin else []), *(f"the reference {each}" for each in references)]:
        return f"would replace rows that differ because of {' and '.join(reasons)}"
    return "would change nothing: same ranges, same code, so the same content is expected"
