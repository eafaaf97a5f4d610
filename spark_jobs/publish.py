"""Validates an attempt's revisions and registers what passed.

    spark-submit spark_jobs/publish.py --pipeline NAME --attempt ID

Exit code 2 when a checkpoint did not pass: nothing was registered, the catalog is as it was.
"""

from __future__ import annotations

import argparse
import sys
import threading
from importlib import import_module
from typing import TYPE_CHECKING

from include.ledger.connection import await_ledger
from include.ledger.intervals.attempts import attempt_of
from include.pipelines import load_pipeline
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    await_ledger()
    attempt = attempt_of(pipeline.name, arguments.attempt)
    publish_run(IntervalRun(publishing_session(f"publish {pipeline.name}"), pipeline, attempt))
    return 0


def publish_run(run: IntervalRun) -> None:
    """Validate and register, in a session of `publishing_session`. Raises as `publish` does."""
    from spark_jobs.publication.publish_build import publish

    publish(run)


def publishing_session(name: str) -> SparkSession:
    """Return a session, and import Great Expectations meanwhile, which takes as long as starting Spark's JVM."""
    importing = threading.Thread(target=import_module, args=("expectations.checkpoint",), daemon=True)
    importing.start()
    try:
        return build_session(name, catalog=True)
    finally:
        importing.join()


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
