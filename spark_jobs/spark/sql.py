"""Runs a statement of SQL and returns its result as JSON values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import (
    AnalysisException,
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    IllegalArgumentException,
    NumberFormatException,
    ParseException,
    SparkNoSuchElementException,
    SparkRuntimeException,
    UnsupportedOperationException,
)
from pyspark.sql import DataFrame, SparkSession

from include.catalog import DATABASE
from include.errors import UsageError, one_line
from spark_jobs.spark.failures import translate
from spark_jobs.spark.json_rows import row_json, row_of
from spark_jobs.spark.log import log_of
from spark_jobs.spark.thrown import chain_of

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

_MOSTLY_WRONG = (
    IllegalArgumentException,
    SparkNoSuchElementException,
    SparkRuntimeException,
    UnsupportedOperationException,
)
"""What it throws for other failures, too."""

_ONLY_SHOWS = ("Show", "Describe", "Explain", "SetCommand", "SetCatalog", "Refresh", "CreateViewCommand")
"""Beginnings of the names of commands that change no table."""

_UNTOLD = {
    "UnresolvedExecuteImmediate": "EXECUTE IMMEDIATE would run what only its run tells",
    "CompoundBody": "BEGIN … END would run more than one statement",
    "InsertIntoDir": "INSERT OVERWRITE DIRECTORY would replace files that nothing knows of",
    "PlanWithUnresolvedIdentifier": "IDENTIFIER(…) of an expression would name what only its run tells",
}
"""Kinds of statements, and of what names their targets, that are refused whatever they would change, with why."""

_VERBS = {"InsertIntoStatement": "INSERT", "OverwriteByExpression": "INSERT"}
"""Kinds of statements that may begin with another word, as WITH."""

_NAME = re.compile(r"'Unresolved\w+ \[([^]]*)\]")
"""What each class of an unresolved name writes."""


@dataclass(frozen=True)
class Result:
    """The result of a statement, as JSON values; decimals with more digits than a float has are decimals."""

    columns: list[str]
    rows: list[list[Any]]


def run_statement(spark: SparkSession, statement: str) -> Result:
    """Return the columns and the first 10,000 rows; log that there are more.

    Raises UsageError when the statement is not valid, would change a table of the catalog, or fails on a value, as a
    division by zero does.
    """
    frame, rows = _begin(spark, statement)
    if len(rows) > MOST_ROWS:
        log_of().warning(
            "only the first %s rows are shown, there are more: --json gives them all, or narrow the query",
            f"{MOST_ROWS:,}",
        )
    return Result(frame.columns, rows[:MOST_ROWS])


def run_whole(spark: SparkSession, statement: str) -> tuple[list[str], Iterable[list[Any]]]:
    """Return the columns and all rows, read a partition at a time where they are many. Raises as `run_statement`."""
    frame, rows = _begin(spark, statement)
    return frame.columns, rows if len(rows) <= MOST_ROWS else _all_rows(frame)


def _begin(spark: SparkSession, statement: str) -> tuple[DataFrame, list[list[Any]]]:
    """Return the statement's result, and as many rows as show whether there are more than are shown."""
    with _wrong_is_refused():
        _check_leaves_catalog(spark, statement)
        frame = spark.sql(statement)
        return frame, list(_json_rows(frame.limit(MOST_ROWS + 1)))


@contextmanager
def _wrong_is_refused() -> Iterator[None]:
    try:
        yield
    except (*_WRONG, *_MOSTLY_WRONG) as error:
        if not isinstance(error, _WRONG) and translate(error) is not None:
            raise
        raise UsageError(str(error).strip().splitlines()[0], remedy="correct the query") from error


def _check_leaves_catalog(spark: SparkSession, statement: str) -> None:
    """Raise UsageError for a statement that would change a table, or the database, of what was registered.

    Only what passed its expectations is registered: nothing else may put rows there, or take them away. Statements
    whose targets only their run tells, and files without a table, are refused, too.
    """
    for part in _parts(spark._jsparkSession.sessionState().sqlParser().parsePlan(statement)):
        kind = _kind(part)
        is_change = (_is_command(spark, part) or kind == "InsertIntoStatement") and not kind.startswith(_ONLY_SHOWS)
        target = _target(part) if is_change else None
        for each in (kind, _kind(target)):
            if each in _UNTOLD:
                raise UsageError(_UNTOLD[each], remedy="say the statement itself, on a table of a database of yours")
        if not is_change:
            continue
        name = _name(target)
        # The catalog does not tell names apart by case. Without a database, a name is of the current one.
        databases = {each.lower() for each in (name if _kind(target) == "UnresolvedNamespace" else name[:-1])}
        if DATABASE in databases or spark.catalog.currentDatabase() == DATABASE:
            verb = _VERBS.get(kind) or statement.split(maxsplit=1)[0].upper()
            raise UsageError(
                f"{verb} would change {DATABASE}.*, which only publications do",
                remedy="run the interval again, or ./tidemark doctor",
            )


def _parts(plan: Any) -> Iterator[Any]:
    """Yield what a parsed statement consists of: that behind WITH, and each INSERT of several."""
    if _kind(plan) in ("UnresolvedWith", "Union"):
        for number in range(plan.children().size()):
            yield from _parts(plan.children().apply(number))
    else:
        yield plan


def _is_command(spark: SparkSession, plan: Any) -> bool:
    name = "org.apache.spark.sql.catalyst.plans.logical.Command"
    return bool(spark._jvm.java.lang.Class.forName(name).isInstance(plan))  # type: ignore[union-attr]


def _kind(plan: Any) -> str:
    return "" if plan is None else str(plan.getClass().getSimpleName())


def _target(plan: Any) -> Any:
    """Return what names the target of a command; None when there is no such part."""
    if _kind(plan) in _VERBS:
        return plan.table()
    target = plan
    while target is plan or _kind(target) == "SubqueryAlias":
        if target.children().isEmpty():
            return None
        target = target.children().head()
    return target


def _name(target: Any) -> list[str]:
    """Return the parts of a name; none when it is not one."""
    found = None if target is None else _NAME.match(target.simpleString(25))
    return found[1].split(", ") if found else []


def _all_rows(frame: DataFrame) -> Iterator[list[Any]]:
    try:
        yield from _json_rows(frame, at_once=False)
    except Py4JJavaError as error:
        # Here, PySpark does not give it the class that it has elsewhere.
        conditions = [each for each in chain_of(error) if each.condition]
        if not conditions or translate(error) is not None:
            raise
        raise UsageError(one_line(conditions[-1].message), remedy="correct the query") from error


def _json_rows(frame: DataFrame, *, at_once: bool = True) -> Iterator[list[Any]]:
    has_decimals = "decimal(" in frame.schema.simpleString()
    # A result may have several columns of one name, of which a row of JSON would keep the last.
    numbered = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    as_json = numbered.select(row_json(numbered.columns))
    for (text,) in as_json.collect() if at_once else as_json.toLocalIterator():
        yield list(row_of(text, has_decimals=has_decimals).values())
