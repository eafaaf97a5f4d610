"""Makes the catalog agree with the ledger: registered revisions, no unknown partitions, declared columns.

    spark-submit spark_jobs/repair_catalog.py --plan FILE

The plan is a JSON list of {pipeline, table, partition, repair}; what was registered since stays.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from include.errors import UsageError
from include.ledger.intervals import revisions
from include.pipelines import load_pipeline
from spark_jobs.archive.storage import check_storage
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.register import finish_registrations
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, changes: Sequence[dict[str, str]]) -> None:
    """Make the changes. Raises UsageError for a table that the pipeline does not have."""
    for change in changes:
        pipeline, table, partition = load_pipeline(change["pipeline"]), change["table"], change["partition"]
        if table not in pipeline.tables:
            raise UsageError(f"unknown table {table!r}", pipeline=pipeline.name)
        check_storage(pipeline)
        catalog = Catalog(spark, pipeline)
        catalog.create_tables()
        finish_registrations(pipeline, catalog)
        if change["repair"] == "follow the declaration":
            catalog.follow_declaration(table)
            continue
        registered = revisions.registered(table, partition)
        if registered:
            catalog.point_at(registered[0])
        elif change["repair"] == "drop from the catalog":
            catalog.drop_partition(table, partition)


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plan", required=True, type=Path)
    arguments = parser.parse_args(argv)
    run(build_session("repair catalog", catalog=True), json.loads(arguments.plan.read_text()))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
