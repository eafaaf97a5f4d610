"""SQL over a pipeline as it is now: its views live in memory, its archive, and the catalog.

python spark_jobs/open_shell.py --pipeline NAME [--json]

Statements come from standard input, each ended by `;` or by the end of its line on a terminal.
"""

from __future__ import annotations

import argparse
import sys

from pyspark.sql import SparkSession

from include.cli.output import clean, print_json, print_table
from include.errors import UsageError
from include.pipelines import load_line_pipeline, load_pipeline
from include.pipelines.spec import Pipeline
from spark_jobs.lines.tables import LineTables
from spark_jobs.live.tables import LiveTables
from spark_jobs.run_sql import Result, run
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.log import log_of
from spark_jobs.spark.session import build_session

PROMPT = "tidemark> "


def main(argv: list[str]) -> int:
    """Arguments to exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    lines = load_line_pipeline(arguments.pipeline)
    pipeline = lines or load_pipeline(arguments.pipeline)
    spark = build_session(f"shell {pipeline.name}", catalog=True)
    tables = LineTables(spark, lines) if lines else LiveTables(spark, pipeline)
    tables.start()
    if sys.stdin.isatty():
        return _converse(spark, pipeline, tables)
    for statement in filter(None, (text.strip() for text in sys.stdin.read().split(";"))):
        tables.refresh()
        _show(run(spark, statement), as_json=arguments.json)
    return 0


def _converse(spark: SparkSession, pipeline: Pipeline, tables: LiveTables | LineTables) -> int:
    """Read statements from the terminal until its end; a wrong one is told and the next one read."""
    print(f"{pipeline.name}: {', '.join(tables.names)} are live, lake.* is what was registered; Ctrl-D ends")
    while True:
        try:
            statement = input(PROMPT).strip().rstrip(";")
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not statement:
            continue
        try:
            tables.refresh()
            _show(run(spark, statement), as_json=False)
        except UsageError as error:
            log_of().error("%s", error)


def _show(found: Result, *, as_json: bool) -> None:
    if as_json:
        print_json([dict(zip(found.columns, row, strict=True)) for row in found.rows])
    else:
        print_table([clean(name) for name in found.columns], found.rows)
        print(f"{len(found.rows)} rows")


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
