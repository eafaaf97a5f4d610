"""Runs a statement of SQL and returns its result as JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from include.errors import UsageError
from spark_jobs.spark.json_rows import row_json, row_of
from spark_jobs.spark.log import log_of

MOST_ROWS = 10_000


@dataclass(frozen=True)
class Result:
    """The result of a statement, as JSON values; decimals with more digits than a float has are decimals."""

    columns: list[str]
    rows: list[list[Any]]


def run_statement(spark: SparkSession, statement: str) -> Result:
    """Return the columns and the first 10,000 rows; log that there are more.

    Raises UsageError when the statement is not valid.
    """
    try:
        frame = spark.sql(statement).limit(MOST_ROWS + 1)
        rows = _json_rows(frame)
    except (AnalysisException, ParseException) as error:
        raise UsageError(str(error).strip().splitlines()[0], remedy="correct the query") from error
    if len(rows) > MOST_ROWS:
        log_of().warning(
            "only the first %s rows are shown, there are more: narrow the query, or read the table's files",
            f"{MOST_ROWS:,}",
        )
    return Result(frame.columns, rows[:MOST_ROWS])


def _json_rows(frame: DataFrame) -> list[list[Any]]:
    has_decimals = "decimal(" in frame.schema.simpleString()
    texts = frame.select(row_json(frame.columns)).collect()
    return [list(row_of(text, has_decimals=has_decimals).values()) for (text,) in texts]
