"""Changes by which the catalog agrees with the ledger again, but for intervals that are being published."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from include.catalog.changes import CatalogChange
from include.catalog.declared import check_storage
from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError, UsageError
from include.ledger.held_locks import Check
from include.ledger.intervals import locks, pins, revisions
from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.times import Interval
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.delta import put_left_out
from spark_jobs.publication.register import finish_registrations, giving_way, point_at_registered
from spark_jobs.publication.unregistered import make_anew
from spark_jobs.spark.log import log_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def repair(spark: SparkSession, changes: Sequence[CatalogChange]) -> None:
    """Make the changes; those of an interval that is being published are logged.

    Raises UsageError for a table that its pipeline does not have. What fails for one pipeline is raised once the others
    are repaired, ServiceUnreachable at once.
    """
    failed: list[TidemarkError] = []
    for name in dict.fromkeys(each.pipeline for each in changes):
        try:
            _repair_pipeline(spark, name, [each for each in changes if each.pipeline == name])
        except ServiceUnreachable:
            raise
        except TidemarkError as error:
            log_of(name).warning("%s is left as it is: %s", name, error.message)
            failed.append(error)
    if failed:
        raise failed[0]


def _repair_pipeline(spark: SparkSession, name: str, changes: Sequence[CatalogChange]) -> None:
    pipeline = load_pipeline(name)
    if unknown := {each.table for each in changes}.difference(pipeline.tables):
        raise UsageError(f"unknown table {min(unknown)!r}", pipeline=name)
    anew = check_storage(pipeline)
    catalog = Catalog(spark, pipeline)
    if anew:
        make_anew(catalog)
    catalog.create_tables()
    finish_registrations(pipeline, catalog)
    _repair_tables(catalog, changes)
    put_left_out(spark, pipeline)


def _repair_tables(catalog: Catalog, changes: Sequence[CatalogChange]) -> None:
    pipeline, by_interval = catalog.pipeline, defaultdict(list)
    for change in changes:
        if change.repair == "follow the declaration":
            catalog.follow_declaration(change.table)
        elif change.repair != "put into Delta":
            by_interval[_interval_of(pipeline, change.partition)].append(change)
    for interval, together in by_interval.items():
        try:
            with _publishing(pipeline, interval) as check:
                _repair_partitions(catalog, interval, together, check)
        except AnotherWriter as error:
            for each in together:
                log_of(pipeline.name).warning("%s %s is left: %s", each.table, each.partition, error.message)


def _interval_of(pipeline: Pipeline, partition: str) -> Interval | None:
    parts = dict(part.split("=", 1) for part in partition.split("/") if "=" in part)
    return pipeline.schedule.labelled(parts.get("interval", ""))


def _publishing(pipeline: Pipeline, interval: Interval | None) -> AbstractContextManager[Check]:
    """Hold the lock on publishing the partitions' interval: a publication changes the catalog before the ledger.

    No publication changes a partition that names no interval. Raises AnotherWriter at once.
    """
    return locks.publishing(pipeline.name, interval, locks.NO_WAIT) if interval else nullcontext(lambda: None)


def _repair_partitions(
    catalog: Catalog, interval: Interval | None, changes: Sequence[CatalogChange], check: Check
) -> None:
    """Repair partitions of one interval; rows may have moved between them."""
    registered: list[BuiltRevision] = []
    unknown: list[CatalogChange] = []
    for change in changes:
        # Another pipeline's stay registered when the table is dropped; pointed at, readers would add up both.
        found = revisions.registered(change.table, change.partition, pipeline=change.pipeline)
        registered += found[:1]
        if not found and change.repair == "drop from the catalog":
            unknown.append(change)
    pinned = pins.find_interval(catalog.pipeline.name, interval.from_time) if interval else None
    with giving_way(catalog, pinned, registered) if pinned else nullcontext():
        for change in unknown:
            check()
            catalog.drop_partition(change.table, change.partition)
        point_at_registered(catalog, registered, check)
        check()
