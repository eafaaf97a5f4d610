"""Changes by which the catalog agrees with the ledger again, but for intervals that are being published."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from include.catalog.changes import CatalogChange
from include.catalog.declared import check_storage
from include.errors import AnotherWriter, UsageError
from include.ledger.held_locks import Check
from include.ledger.intervals import locks, revisions
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.register import finish_registrations
from spark_jobs.spark.log import log_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def repair(spark: SparkSession, changes: Sequence[CatalogChange]) -> None:
    """Make the changes; those of an interval that is being published are logged.

    Raises UsageError for a table that the pipeline does not have.
    """
    for change in changes:
        pipeline, table, partition = load_pipeline(change.pipeline), change.table, change.partition
        if table not in pipeline.tables:
            raise UsageError(f"unknown table {table!r}", pipeline=pipeline.name)
        check_storage(pipeline)
        catalog = Catalog(spark, pipeline)
        catalog.create_tables()
        finish_registrations(pipeline, catalog)
        if change.repair == "follow the declaration":
            catalog.follow_declaration(table)
            continue
        try:
            with _publishing(pipeline, partition) as check:
                _repair(catalog, change, check)
        except AnotherWriter as error:
            log_of(pipeline.name).warning("%s %s is left: %s", table, partition, error.message)


def _publishing(pipeline: Pipeline, partition: str) -> AbstractContextManager[Check]:
    """Hold the lock on publishing the partition's interval: a publication changes the catalog before the ledger.

    No publication changes a partition that names no interval. Raises AnotherWriter at once.
    """
    parts = dict(part.split("=", 1) for part in partition.split("/") if "=" in part)
    interval = pipeline.schedule.labelled(parts.get("interval", ""))
    return locks.publishing(pipeline.name, interval, locks.AT_ONCE) if interval else nullcontext(lambda: None)


def _repair(catalog: Catalog, change: CatalogChange, check: Check) -> None:
    registered = revisions.registered(change.table, change.partition)
    check()
    if registered:
        catalog.point_at(registered[0])
    elif change.repair == "drop from the catalog":
        catalog.drop_partition(change.table, change.partition)
