"""Runs one SQL query over the catalog and the served views.

The result is a line of JSON for its columns, and one for each row.

spark-submit spark_jobs/run_sql.py --query FILE --result FILE [--whole]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import astuple
from itertools import chain
from pathlib import Path

from include.monitor import exact_json
from spark_jobs.live.served_views import name_served_views
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session
from spark_jobs.spark.sql import run_statement, run_whole


def main(argv: list[str]) -> int:
    """Run with these arguments and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--whole", action="store_true", help="all rows, not only the first ones")
    arguments = parser.parse_args(argv)
    spark = build_session("sql", catalog=True)
    name_served_views(spark)
    query = arguments.query.read_text()
    columns, rows = run_whole(spark, query) if arguments.whole else astuple(run_statement(spark, query))
    with arguments.result.open("w") as lines:
        for values in chain([columns], rows):
            lines.write(f"{exact_json.dumps(values)}\n")
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
