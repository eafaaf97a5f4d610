"""Runs a statement of SQL and returns its result as JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    ParseException,
)
from pyspark.sql import DataFrame, SparkSession

from include.errors import UsageError
from spark_jobs.spark.json_rows import row_json, row_of
from spark_jobs.spark.log import log_of

MOST_ROWS = 10_000

_WRONG = (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    ParseException,
)
"""What Spark throws for a statement that is not valid, or not for the data that it meets."""


@dataclass(frozen=True)
class Result:
    """The result of a statement, as JSON values; decimals with more digits than a float has are decimals."""

    columns: list[str]
    rows: list[list[Any]]


def run_statement(spark: SparkSession, statement: str) -> Result:
    """Return the columns and the first 10,000 rows; log that there are more.

    Raises UsageError when the statement is not valid, or fails on a value, as a division by zero does.
    """
    try:
        frame = spark.sql(statement).limit(MOST_ROWS + 1)
        rows = _json_rows(frame)
    except _WRONG as error:
        raise UsageError(str(error).strip().splitlines()[0], remedy="correct the query") from error
    if len(rows) > MOST_ROWS:
        log_of().warning(
            "only the first %s rows are shown, there are more: narrow the query, or read the table's files",
            f"{MOST_ROWS:,}",
        )
    return Result(frame.columns, rows[:MOST_ROWS])


def _json_rows(frame: DataFrame) -> list[list[Any]]:
    has_decimals = "decimal(" in frame.schema.simpleString()
    # A result may have several columns of one name, of which a row of JSON would keep the last.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    texts = numbered.select(row_json(numbered.columns)).collect()
    return [list(row_of(text, has_decimals=has_decimals).values()) for (text,) in texts]
