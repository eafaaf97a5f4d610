"""SQL or Python over a pipeline as it is now: statements from standard input, their results on standard output."""

from __future__ import annotations

import code
import runpy
import sys
import tempfile
from typing import Any, Protocol

import pandas as pd
from pyspark.sql import SparkSession

from include.cli.output import clean, print_json_rows, print_table
from include.errors import TidemarkError
from include.ledger import reading
from include.ledger.reference_versions import newest
from include.pipelines import load_line_pipeline, load_pipeline
from spark_jobs.lines.line_tables import LineTables
from spark_jobs.live.memory_tables import MemoryTables
from spark_jobs.live.served_views import name_served_views
from spark_jobs.references.take import with_content
from spark_jobs.spark.log import log_of
from spark_jobs.spark.session import build_session
from spark_jobs.spark.sql import Result, run_statement, run_whole

PROMPT = "tidemark> "


class Tables(Protocol):
    """The temporary tables that statements query."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tables."""

    def start(self) -> None:
        """Start the queries that fill the tables."""

    def refresh(self) -> None:
        """Bring the tables up to date."""


def run_shell(name: str, *, as_json: bool, in_python: bool = False) -> int:
    """Run the statements of standard input over the tables of a pipeline, or of one that reads lines."""
    lines = load_line_pipeline(name)
    pipeline = lines or load_pipeline(name)
    spark = build_session(f"shell {pipeline.name}", catalog=True)
    name_served_views(spark)
    pipeline = with_content(spark, pipeline, newest(pipeline.name))
    tables: Tables = LineTables(spark, pipeline) if lines else MemoryTables(spark, pipeline)
    tables.start()
    if in_python:
        _run_python({"spark": spark, "pipeline": pipeline, "refresh": tables.refresh, "ledger": ledger}, tables.names)
        return 0
    if sys.stdin.isatty():
        _converse(spark, pipeline.name, tables)
        return 0
    for statement in filter(None, (text.strip() for text in sys.stdin.read().split(";"))):
        tables.refresh()
        if as_json:
            print_json_rows(*run_whole(spark, statement))
        else:
            _show(run_statement(spark, statement))
    return 0


def ledger(statement: str) -> pd.DataFrame:
    """Return the result of a query of the ledger. Raises UsageError when it is not valid or would change something."""
    answer = reading.query(statement)
    return pd.DataFrame(answer.rows, columns=list(answer.columns))


def _run_python(names: dict[str, Any], tables: tuple[str, ...]) -> None:
    """Run the program on standard input, or a prompt at a terminal, with these names at hand."""
    names["refresh"]()
    if not sys.stdin.isatty():
        with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
            program.write(sys.stdin.read())
            program.flush()
            runpy.run_path(program.name, names, "__main__")
        return
    banner = (
        f"{names['pipeline'].name}: spark.table() of {', '.join(tables)}, as refresh() brings them to now; "
        "lake.* is what was registered, live.* both layers in one; ledger(SELECT) gives a pandas frame; Ctrl-D ends"
    )
    code.interact(banner=banner, local=names, exitmsg="")


def _converse(spark: SparkSession, pipeline: str, tables: Tables) -> None:
    """Read statements from the terminal until its end; an error is reported, and the next statement read."""
    print(f"{pipeline}: {', '.join(tables.names)} are live, lake.* is what was registered, live.* both; Ctrl-D ends")
    while True:
        try:
            statement = input(PROMPT).strip().rstrip(";")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not statement:
            continue
        try:
            tables.refresh()
            _show(run_statement(spark, statement))
        except TidemarkError as error:
            log_of().error("%s", error)


def _show(result: Result) -> None:
    print_table([clean(name) for name in result.columns], result.rows)
    print(f"{len(result.rows)} rows")
