"""Reports over explicit offset ranges; nothing is registered, and the ledger is only read.

spark-submit spark_jobs/report_ranges.py --pipeline NAME --ranges TOPIC:PARTITION:FROM-UNTIL,… --source kafka|archive
    --result FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from include.intervals.reporting.asked_ranges import parse_ranges
from include.ledger.intervals.states import Source
from include.ledger.reference_versions import newest
from include.pipelines import load_pipeline
from include.pipelines.spec.references import check_references
from spark_jobs.archive.files import while_files_stay
from spark_jobs.intervals.range_report import report_over
from spark_jobs.references.take import with_content
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--ranges", required=True)
    parser.add_argument("--source", required=True, type=Source)
    parser.add_argument("--result", required=True, type=Path)
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    ranges = parse_ranges(arguments.ranges, pipeline.name)
    check_references(pipeline.references, pipeline.name)
    spark = build_session(f"report {pipeline.name}", catalog=pipeline.joins_catalog)
    pipeline = with_content(spark, pipeline, newest(pipeline.name))
    with while_files_stay(pipeline.name):
        report = report_over(spark, pipeline, ranges, arguments.source)
    arguments.result.write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
