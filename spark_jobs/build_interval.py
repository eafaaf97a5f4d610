"""Builds and reconciles one interval: its revisions, its counts, its report's data.

    spark-submit spark_jobs/build_interval.py --pipeline NAME --attempt ID [--publish] [--new-references]

With `--publish`, a reconciled build is validated and registered as well (`spark_jobs/publish.py`), in the same driver.
"""

from __future__ import annotations

import argparse
import sys

from expectations.checkpoint import check_suites
from include.ledger.connection import await_ledger
from include.ledger.intervals.attempts import attempt_of, load_attempt
from include.pipelines import load_pipeline
from include.versions import suite_version
from spark_jobs.decoding.records import check_transforms
from spark_jobs.intervals.build import build
from spark_jobs.publish import publish_run, publishing_session
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.log import log_of
from spark_jobs.spark.session import build_session


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--attempt", required=True, type=int)
    parser.add_argument("--publish", action="store_true", help="publish too if nothing is unexplained")
    parser.add_argument("--new-references", action="store_true", help="use the current content of the references")
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    # Publishing would find it only after everything was built.
    check_suites(pipeline)
    # Read now, like the suite itself: its file may change until the build is published.
    suite_version(pipeline.name)
    check_transforms(pipeline)
    await_ledger()
    attempt = attempt_of(pipeline.name, arguments.attempt)
    if not arguments.publish:
        spark = build_session(f"build {pipeline.name}", catalog=pipeline.joins_catalog)
        build(IntervalRun(spark, pipeline, attempt), new_references=arguments.new_references)
        return 0
    run = IntervalRun(publishing_session(f"interval {pipeline.name}"), pipeline, attempt)
    build(run, new_references=arguments.new_references)
    findings = load_attempt(attempt.id).findings.build
    if findings is not None and not findings.reconciliation.unexplained:
        # Validation must read the files, not cached rows from which they were written.
        run.spark.catalog.clearCache()
        log_of(pipeline.name).info("validating and registering")
        publish_run(run)
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
