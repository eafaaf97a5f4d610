"""Runs one SQL query over the catalog.

spark-submit spark_jobs/run_sql.py --query FILE --result FILE
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession

from include.errors import UsageError
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session

MOST_ROWS = 10_000


@dataclass(frozen=True)
class Result:
    """What a query found, as JSON values."""

    columns: list[str]
    rows: list[list[Any]]


def run(spark: SparkSession, query: str) -> Result:
    """Columns and the first 10,000 rows as JSON values. Raises UsageError when the query is not valid."""
    try:
        frame = spark.sql(query).limit(MOST_ROWS)
        return Result(frame.columns, [list(json.loads(row).values()) for row in _as_json(frame)])
    except (AnalysisException, ParseException) as error:
        raise UsageError(str(error).strip().splitlines()[0], remedy="correct the query") from error


def _as_json(frame: object) -> list[str]:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as F

    assert isinstance(frame, DataFrame)
    whole = F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)), {"ignoreNullFields": "false"})
    return [row[0] for row in frame.select(whole).collect()]


def main(argv: list[str]) -> int:
    """Arguments to exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", required=True, type=Path)
    parser.add_argument("--result", required=True, type=Path)
    arguments = parser.parse_args(argv)
    found = run(build_session("sql", catalog=True), arguments.query.read_text())
    arguments.result.write_text(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
