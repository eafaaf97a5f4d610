"""Builds and reconciles one interval: its revisions, its counts, its report's data.

spark-submit spark_jobs/build_interval.py --pipeline NAME --attempt ID
"""

from __future__ import annotations

import argparse
import sys

from include.ledger.intervals import load_attempt
from include.pipelines import load_pipeline
from spark_jobs.entry import run_entry
from spark_jobs.interval_build import build
from spark_jobs.session import build_session


def main(argv: list[str]) -> int:
    """Arguments to exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    attempt = load_attempt(arguments.attempt)
    build(build_session(f"build {pipeline.name}"), pipeline, attempt)
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
