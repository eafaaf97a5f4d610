"""Validates an attempt's revisions and registers what passed.

    spark-submit spark_jobs/publish.py --pipeline NAME --attempt ID

Exit code 2 when a checkpoint did not pass: nothing was registered, the catalog is as it was.
"""

from __future__ import annotations

import argparse
import sys

from include import delta_tables
from include.ledger.intervals import load_attempt
from include.pipelines import load_pipeline
from spark_jobs.delta_publication import publish_delta
from spark_jobs.entry import run_entry
from spark_jobs.publication import publish
from spark_jobs.session import build_session


def main(argv: list[str]) -> int:
    """Arguments to exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    attempt = load_attempt(arguments.attempt)
    spark = build_session(f"publish {pipeline.name}", catalog=True)
    publish(spark, pipeline, attempt)
    if delta_tables.is_kept(pipeline):
        publish_delta(spark, pipeline, attempt)
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
