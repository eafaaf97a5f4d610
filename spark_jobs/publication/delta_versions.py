"""Which version of a Delta table its view shows, and whether newer ones may have other rows than registered ones."""

from __future__ import annotations

import json
from collections.abc import Collection

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from include.catalog import DATABASE
from include.catalog.delta_view import COMMIT, VERSION
from include.iceberg.statement import INTERVAL
from include.lake.delta_log import OWN, commit_id, is_own
from include.pipelines.spec import Pipeline
from spark_jobs.archive.delta import location, table_id
from spark_jobs.archive.schema import archive_schema

RESTORED = "tidemark.restored"
"""Key that only the statements of commits with the rows of all intervals have."""

_TABLE = "tidemark.table"
"""Property of the view: Delta's id of the table."""

_HARMLESS = {"OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES"}
"""Operations that change no row, whoever runs them."""

_MEANWHILE = 100
"""Commits that may be added to the history while it is read."""


def pin_view(spark: SparkSession, pipeline: Pipeline, version: int) -> None:
    """Pin the view to the validated rows of a version; until then it shows those of the version before."""
    view = f"{DATABASE}.{pipeline.delta_view}"
    columns = ", ".join(f"`{name}`" for name in (*shown_columns(spark, pipeline, version), "interval"))
    said = {_TABLE: table_id(spark, pipeline), COMMIT: commit_id(location(pipeline), version), VERSION: version}
    properties = ", ".join(f"'{key}' = '{value}'" for key, value in said.items())
    rows = f"SELECT {columns} FROM {_version(pipeline, version)} WHERE interval IS NOT NULL"
    if not spark.catalog.tableExists(view):
        spark.sql(f"CREATE VIEW {view} TBLPROPERTIES ({properties}) AS {rows}")
        return
    # Spark replaces a view by dropping it: readers would find none, and after a kill there would be none.
    spark.sql(f"ALTER VIEW {view} AS {rows}")
    # Last: after a kill the version that is noted is an earlier one, since which only Tidemark has written.
    spark.sql(f"ALTER VIEW {view} SET TBLPROPERTIES ({properties})")


def shown_columns(spark: SparkSession, pipeline: Pipeline, version: int) -> list[str]:
    """Return the declared columns that a version of the table has, a renamed one by the newest name that is there.

    A column that the archive gained is added by an append: the table lacks it until then, or while it is not declared.
    """
    there = {name.lower() for name in spark.sql(f"SELECT * FROM {_version(pipeline, version)}").columns}
    formerly = pipeline.archive.formerly
    names = ((name, *formerly.get(name, ())) for name in archive_schema(pipeline).names)
    found = (next((name for name in each if name.lower() in there), "") for each in names)
    return [name for name in found if name]


def _version(pipeline: Pipeline, version: int) -> str:
    return f"delta.`{location(pipeline)}` VERSION AS OF {version}"


def pinned_version(spark: SparkSession, pipeline: Pipeline) -> int | None:
    """Return the version that the view shows; None where there is no view of this table, or it has no such version.

    A table that was put back from a copy has none, or another commit of the number. A view that earlier code pinned
    does not name the commit.
    """
    view = f"{DATABASE}.{pipeline.delta_view}"
    if not spark.catalog.tableExists(view):
        return None
    properties = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {view}").collect()}
    if properties.get(_TABLE) != table_id(spark, pipeline):
        return None
    version = int(properties[VERSION])
    commit = commit_id(location(pipeline), version)
    return version if commit is not None and properties.get(COMMIT, commit) == commit else None


def has_foreign_writes(
    spark: SparkSession, pipeline: Pipeline, after: int, until: int, put: Collection[str] | None = None
) -> bool:
    """Return whether a commit that is not Tidemark's may have changed rows in a version of `(after, until]`.

    `put`: the labels of intervals whose rows are still to be put there. Commits with the rows of others are then those
    of a ledger that is lost, and was restored from a copy with the view.
    """
    history = DeltaTable.forPath(spark, location(pipeline)).history(until - after + _MEANWHILE)
    ours = {
        row["version"]
        for row in history.select("version", "operation", "userMetadata").collect()
        if row["operation"] in _HARMLESS
        or (is_own(row["userMetadata"]) and (put is None or _has_rows_of_none_but(put, row["userMetadata"])))
    }
    return not ours.issuperset(range(after + 1, until + 1))


def _has_rows_of_none_but(labels: Collection[str], metadata: str) -> bool:
    """Return whether Tidemark's commit wrote registered rows of no other intervals than these."""
    said = json.loads(metadata) if metadata != OWN else {}
    return RESTORED not in said and said.get(INTERVAL) in (None, *labels)
