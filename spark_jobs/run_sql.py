"""Runs one SQL query over the catalog and the served views.

spark-submit spark_jobs/run_sql.py --query FILE --result FILE
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from include.monitor import exact_json
from spark_jobs.live.served_views import name_served_views
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session
from spark_jobs.spark.sql import run_statement


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    arguments = parser.parse_args(argv)
    spark = build_session("sql", catalog=True)
    name_served_views(spark)
    result = run_statement(spark, arguments.query.read_text())
    arguments.result.write_text(exact_json.dumps(asdict(result)))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
