"""Compare Iceberg tables with the ledger, and make them follow it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from include.catalog import DATABASE
from include.errors import MetadataGone, OtherScale, UsageError, one_line
from include.iceberg.catalog import find, opened, writing
from include.iceberg.commit import (
    Difference,
    commit_interval,
    difference_of,
    ensure_table,
    restore_tag,
    roll_back_foreign,
)
from include.iceberg.snapshot_retention import missing_verdicts
from include.iceberg.statement import last_own, statement_of
from include.ledger import proofs
from include.ledger.intervals import attempts, revisions
from include.ledger.intervals.pinned import pinned_intervals
from include.ledger.inventory import begun_intervals
from include.pipelines.spec import Pipeline


@dataclass(frozen=True)
class Deviation:
    """One way in which an Iceberg table differs from the ledger."""

    kind: Literal[
        "missing table", "another's table", "missing metadata", "foreign commit", "other files", "expired summary"
    ]
    table: str
    what: str
    remedy: str = ""
    """Empty when publishing the interval again repairs it."""

    @property
    def can_be_restored(self) -> bool:
        """Whether `restore` repairs it."""
        return self.kind != "another's table"


def deviations(pipeline: Pipeline) -> Iterator[Deviation]:
    """Yield how the pipeline's Iceberg tables differ from the ledger, except for intervals being registered."""
    begun = _being_registered(pipeline)
    with opened() as catalog:
        for table in pipeline.iceberg_tables:
            try:
                yield from _of_table(catalog, pipeline, table, begun)
            except UsageError as error:
                yield Deviation("another's table", table, error.message, error.remedy)
            except MetadataGone as error:
                yield Deviation("missing metadata", table, error.message, error.remedy)


def _of_table(catalog: SqlCatalog, pipeline: Pipeline, table: str, begun: set[str]) -> Iterator[Deviation]:
    named = f"the Iceberg table {DATABASE}.{table}"
    registered = revisions.registered(table, pipeline=pipeline.name)
    stored = find(catalog, pipeline, table)
    if stored is None:
        if registered:
            yield Deviation("missing table", table, f"{named} is missing, {len(registered)} revisions are registered")
        return
    head, own = stored.current_snapshot(), last_own(stored)
    if head is not None and (own is None or own.snapshot_id != head.snapshot_id):
        yield Deviation("foreign commit", table, f"{named}: somebody else committed snapshot {head.snapshot_id}")
    differences = _by_label(difference_of(stored, registered))
    for label, (missing, unknown) in sorted(differences.items()):
        if label not in begun:
            yield Deviation(
                "other files",
                table,
                f"{named}, interval {label}: {missing} registered files are not in it, {unknown} others are",
            )
    for label, build in sorted(_untold(stored, pipeline, begun).items()):
        if label not in differences:
            what = f"{named}, interval {label}: the snapshot of build {build} or its tag is gone, somebody expired it"
            yield Deviation("expired summary", table, what)


def _untold(table: Table, pipeline: Pipeline, begun: set[str]) -> dict[str, int]:
    """Return builds by the labels of registered intervals whose summaries are missing."""
    labels = {each.id: each.interval.label for each in pinned_intervals(pipeline.name)}
    told = ((labels[interval], build) for interval, build in proofs.builds_to_prove(pipeline.name).items())
    return {label: build for label, build in missing_verdicts(table, told).items() if label not in begun}


def restore(pipeline: Pipeline) -> list[str]:
    """Make every Iceberg table of the pipeline follow the ledger; return what was done, a line each.

    A table whose metadata is gone is created again, without its history. An interval whose files it cannot have is left
    out, and named. Raises UsageError for another's table.
    """
    done: list[str] = []
    with writing(pipeline.name), opened() as catalog:
        # Under the lock, and before what is registered: a registration that begins later commits to Iceberg later.
        begun = _being_registered(pipeline)
        for table in pipeline.iceberg_tables:
            done += _restore_table(catalog, pipeline, table, begun)
    return done


def _restore_table(catalog: SqlCatalog, pipeline: Pipeline, table: str, begun: set[str]) -> list[str]:
    named, done = f"{DATABASE}.{table}", []
    registered = revisions.registered(table, pipeline=pipeline.name)
    try:
        stored = ensure_table(catalog, pipeline, table)
        before = _head_of(stored)
        stored = roll_back_foreign(stored)
        difference = difference_of(stored, registered)
    except MetadataGone:
        catalog.drop_table((DATABASE, table))
        stored = ensure_table(catalog, pipeline, table)
        before = _head_of(stored)
        difference = difference_of(stored, registered)
        done.append(f"{named} was created again, because its metadata was gone")
    if before != _head_of(stored):
        done.append(f"{named} was rolled back to what Tidemark committed last")
    intervals = {each.interval.label: each.id for each in pinned_intervals(pipeline.name)}
    left = set(begun)
    for label in sorted(_by_label(difference).keys() & intervals.keys() - begun):
        build = proofs.build_to_prove(intervals[label])
        if build is not None:
            wanted = [each for each in registered if each.interval_id == intervals[label]]
            try:
                commit_interval(catalog, pipeline, table, statement_of(attempts.of_build(build)), wanted)
            except (OtherScale, FileNotFoundError, pa.ArrowInvalid) as error:
                # Its verdict is not stated either: the table does not have its rows.
                left.add(label)
                why = f"{error.message}; {error.remedy}" if isinstance(error, OtherScale) else _unreadable(error)
                done.append(f"left: {named} lacks interval {label}: {why}")
            else:
                done.append(f"{named} has the registered files of interval {label}")
    return done + list(_restore_tags(catalog, pipeline, table, left))


def _unreadable(error: Exception) -> str:
    return f"a registered file is missing or damaged ({one_line(str(error))}); run its interval again"


def _restore_tags(catalog: SqlCatalog, pipeline: Pipeline, table: str, left: set[str]) -> Iterator[str]:
    for label, build in sorted(_untold(ensure_table(catalog, pipeline, table), pipeline, left).items()):
        statement = statement_of(attempts.of_build(build))
        every = revisions.registered_of_interval(statement.attempt.pinned.id)
        wanted = [each for each in every if each.table == table]
        restore_tag(pipeline, ensure_table(catalog, pipeline, table), statement, wanted)
        yield f"{DATABASE}.{table} has the verdict of interval {label} again"


def _head_of(table: Table) -> int | None:
    head = table.current_snapshot()
    return head.snapshot_id if head is not None else None


def _being_registered(pipeline: Pipeline) -> set[str]:
    """Return the labels of the intervals that somebody registers now."""
    return {each.interval.label for each in begun_intervals(pipeline.name)[0]}


def _by_label(difference: Difference) -> dict[str, tuple[int, int]]:
    """Return how many files are missing and how many are unknown, by interval."""
    missing = [each.partition.rsplit("interval=", 1)[-1] for each in difference.missing.values()]
    # The interval is the last of the partition's values.
    unknown = [str(file.partition[len(file.partition) - 1]) for file in difference.unknown]
    return {label: (missing.count(label), unknown.count(label)) for label in {*missing, *unknown}}
