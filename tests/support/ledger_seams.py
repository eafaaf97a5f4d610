"""Where the ledger's callers reach for Kafka, Spark or the metastore, the model's world takes their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import select

import include.doctor.repair
import include.doctor.tables
import include.housekeeping.run
import include.intervals.archive_wait
import include.intervals.pinning
import include.intervals.steps
import spark_jobs.publication.publish_build
import spark_jobs.publication.register
import spark_jobs.publication.repair
from include.catalog.changes import CatalogChange
from include.ledger import held_locks
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.validation.approvals import Question
from spark_jobs.reconciliation.interval_run import IntervalRun
from tests.support.ledger_world import MemoryCatalog, World


def put_in_place(patch: pytest.MonkeyPatch, world: World, reach: Callable[[str], None]) -> None:
    """Let the code see the world; `reach` is called at each crash point of a publication."""

    def replace(module: Any, **names: object) -> None:
        for name, value in names.items():
            patch.setattr(module, name, value)

    def loaded(_: str) -> Any:
        return world.pipeline

    replace(include.intervals.pinning, read_log=world.read_log)
    replace(include.intervals.archive_wait, _open_transactions=lambda until: [])
    replace(include.intervals.steps, load_pipeline=loaded, code_version=lambda name: str(world.code))
    replace(include.housekeeping.run.catalog, partitions=world.catalog_partitions)
    replace(include.doctor.tables, partitions=world.catalog_partitions)
    replace(
        include.doctor.repair,
        load_pipeline=loaded,
        change_catalog=partial(change_catalog, world),
        check_storage=lambda pipeline: None,
    )
    replace(
        spark_jobs.publication.repair,
        load_pipeline=loaded,
        Catalog=MemoryCatalog,
        check_storage=lambda pipeline: None,
    )
    replace(
        spark_jobs.publication.publish_build,
        Catalog=MemoryCatalog,
        check_storage=lambda pipeline: None,
        validate=lambda *arguments: validate(world, *arguments),
    )
    replace(spark_jobs.publication.register, crash_point=reach)
    # A job that finds an interval taken is refused at once: only one thread runs at a time, and would wait for itself.
    replace(held_locks, _take=lambda connection, lock, patience, waiting_for: bool(connection.scalar(select(lock))))


def change_catalog(world: World, changes: Sequence[CatalogChange], _: str) -> int:
    """Do what the Spark application does."""
    spark_jobs.publication.repair.repair(world, changes)  # type: ignore[arg-type]
    return 0


def validate(
    world: World,
    run: IntervalRun,
    built: list[BuiltRevision],
    on_pass: Callable[[Validation], None],
    approved: Question | None,
) -> Validation:
    """Stands for the checkpoint: it passes a build that has every row, unless the suite refuses it."""
    complete = world.is_complete(run.pinned, built)
    success = complete and world.suite_passes
    result = ExpectationResult(world.pipeline.table, "rows", "", "as many rows as records", success, "", 0)
    validation = Validation(success, "model", (result,))
    if success:
        on_pass(validation)
    return validation
