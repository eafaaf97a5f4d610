"""Compares a rerun's revisions with the registered ones row by row, before the catalog is pointed at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.erasure.names import names_being_erased
from include.lake.revision_files import damaged_files
from include.ledger.erasures.coordinates import were_erased_from
from include.ledger.intervals.findings import RevisionDifference
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import IDENTITY, Pipeline
from spark_jobs.archive.content_hash import row_hashes
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import table_schema
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.views.values import key_json

EXAMPLES = 5
"""How many changed rows are named per table partition."""


def compare_revisions(
    run: IntervalRun, registered: Sequence[BuiltRevision], built: Sequence[BuiltRevision]
) -> tuple[RevisionDifference, ...]:
    """Return an entry per table partition whose rows differ; none while nothing of the interval is registered.

    Counts are null when the registered files are gone or damaged. Rows are matched by their identity, in views by the
    key.
    """
    if not registered:
        return ()
    before = {(each.table, each.partition): each for each in registered}
    after = {(each.table, each.partition): each for each in built}
    differing = [
        (name, before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if (old := before.get(name)) is None or (new := after.get(name)) is None or old.content_hash != new.content_hash
    ]
    names = names_being_erased(run.pipeline)
    # Examples could name erased records, of its ranges or delivered by replays.
    named = 0 if were_erased_from(run.pinned) else EXAMPLES
    return tuple(
        RevisionDifference(
            table,
            partition if new else names.text(partition),
            old.revision if old else None,
            new.revision if new else None,
            **_compare(run.spark, run.pipeline, table, (old, new), named),
        )
        for (table, partition), old, new in differing
    )


def _key(pipeline: Pipeline, table: str) -> Column:
    """Return a row's key as JSON, in which no two keys are alike."""
    view = next((view for view in pipeline.views if pipeline.view_table(view) == table), None)
    return key_json(view) if view else F.to_json(F.struct(*IDENTITY))


def _compare(
    spark: SparkSession,
    pipeline: Pipeline,
    table: str,
    revisions: tuple[BuiltRevision | None, BuiltRevision | None],
    named: int,
) -> dict[str, Any]:
    """Return how many rows differ between two revisions, and the keys of at most so many `named` ones."""
    old, new = revisions
    if old is None or new is None:
        only = old or new
        assert only is not None
        return {
            "added": 0 if new is None else only.rows,
            "removed": 0 if old is None else only.rows,
            "changed": 0,
        }
    if any(damaged_files(old.location, old.files, deep=True)):
        # A rerun repairs that, so it must not fail because of it. Hashing costs less than the comparison, and only
        # partitions whose rows differ get here.
        return {"added": None, "removed": None, "changed": None}
    key, schema = _key(pipeline, table), table_schema(pipeline, table)
    formerly = pipeline.formerly(table)
    now, before = (_hashed(spark, key, schema, each, name, formerly) for each, name in ((new, "now"), (old, "before")))
    compared = now.join(before, "key", "full_outer")
    change = (
        F.when(F.col("before").isNull(), "added")
        .when(F.col("now").isNull(), "removed")
        .when(F.col("now") != F.col("before"), "changed")
    )
    changes = compared.select("key", change.alias("change")).where("change IS NOT NULL").persist()
    counts = {row["change"]: row["count"] for row in changes.groupBy("change").count().collect()}
    examples = tuple(
        {"change": row["change"], "key": row["key"]} for row in changes.orderBy("key").limit(named).collect()
    )
    changes.unpersist()
    return {**{name: counts.get(name, 0) for name in ("added", "removed", "changed")}, "examples": examples}


def _hashed(
    spark: SparkSession,
    key: Column,
    schema: StructType,
    revision: BuiltRevision,
    name: str,
    formerly: Mapping[str, Sequence[str]],
) -> DataFrame:
    """Return the rows by key, with a hash of all columns, both as today's declaration reads the files.

    A value of a narrower decimal is the same value, and a column or field that was added since is null.
    """
    rows = read_files(spark, [f"{revision.location}/{file}" for file in revision.files], schema, formerly)
    hash_1, hash_2 = row_hashes(rows.schema)
    return rows.select(key.alias("key"), F.struct(hash_1, hash_2).alias(name))
