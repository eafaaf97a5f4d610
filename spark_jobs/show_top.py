"""Keeps a file with the largest keys of a view per window, live from the landed files.

spark-submit spark_jobs/show_top.py --pipeline NAME --since ISO --windows N --result FILE [--once]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from include.ledger.reference_versions import newest
from include.pipelines import load_pipeline
from spark_jobs.live.top import LiveTop, show_top
from spark_jobs.references.take import with_content
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--since", required=True)
    parser.add_argument("--windows", required=True, type=int)
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--once", action="store_true")
    arguments = parser.parse_args(argv)
    pipeline = load_pipeline(arguments.pipeline)
    spark = build_session(f"top {pipeline.name}", catalog=pipeline.joins_catalog)
    pipeline = with_content(spark, pipeline, newest(pipeline.name))
    top = LiveTop(pipeline, pipeline.top_report, arguments.windows, arguments.result, arguments.since)
    return show_top(spark, top, once=arguments.once)


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
