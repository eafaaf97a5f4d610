"""Runs a statement of SQL and returns its result as JSON values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.errors import UsageError

MOST_ROWS = 10_000


@dataclass(frozen=True)
class Result:
    """The result of a statement, as JSON values."""

    columns: list[str]
    rows: list[list[Any]]


def run_statement(spark: SparkSession, statement: str) -> Result:
    """Return the columns and the first 10,000 rows. Raises UsageError when the statement is not valid."""
    try:
        frame = spark.sql(statement).limit(MOST_ROWS)
        return Result(frame.columns, [list(json.loads(row).values()) for row in _as_json(frame)])
    except (AnalysisException, ParseException) as error:
        raise UsageError(str(error).strip().splitlines()[0], remedy="correct the query") from error


def _as_json(frame: DataFrame) -> list[str]:
    whole = F.to_json(F.struct(*(F.col(f"`{name}`") for name in frame.columns)), {"ignoreNullFields": "false"})
    return [row[0] for row in frame.select(whole).collect()]
