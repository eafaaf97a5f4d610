"""The modules of `expectations/`: a suite file for each pipeline, beside Tidemark's own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from include.errors import UsageError
from include.pipelines.spec import KAFKA_COLUMNS, Pipeline
from include.pipelines.spec.ddl import Field, fields_of
from include.pipelines.spec.names import OWN_PREFIX


def suite_file(pipeline: Pipeline) -> ModuleType:
    """Return the pipeline's suite file. Raises UsageError when it is not there, or declares no `SUITES`."""
    name = f"expectations.{pipeline.name}"
    found = None
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        # What the file itself imports may be missing, too.
        if error.name != name:
            raise
    if not hasattr(found, "SUITES"):
        raise UsageError(
            f"expectations/{pipeline.name}.py {'declares no SUITES' if found else 'is not there'}",
            remedy=f"write expectations/{pipeline.name}.py with SUITES = {{"
            + ", ".join(f'"{table}": []' for table in pipeline.tables)
            + "}, and what must hold of each table's rows",
            pipeline=pipeline.name,
        )
    assert found is not None
    return found


def columns_of(pipeline: Pipeline, table: str) -> tuple[Field, ...]:
    """Return the columns that a table's suite may name: its own, and `event_time` or a window's two ends.

    They are those of the validated rows (`spark_jobs/publication/validate.py`), without partition columns.
    """
    if table == pipeline.table:
        return fields_of(f"{pipeline.archive_columns}, {KAFKA_COLUMNS}, event_time TIMESTAMP")
    view = next(view for view in pipeline.views if pipeline.view_table(view) == table)
    ends = "" if view.is_total else ", window_start TIMESTAMP, window_end TIMESTAMP"
    return fields_of(f"{view.columns}{ends}")


def check_columns(pipeline: Pipeline, table: str, suite: Sequence[Any]) -> None:
    """Raise UsageError when an expectation of a table's suite is about a column that the table does not have."""
    columns = columns_of(pipeline, table)
    for expectation in suite:
        for name in _looked_at(expectation):
            if not _is_among(columns, name):
                raise UsageError(
                    f"expectations/{pipeline.name}.py: {table} has no column {name}, "
                    f"which {type(expectation).__name__} names",
                    remedy=f"one of: {', '.join(each.name for each in columns)}",
                    pipeline=pipeline.name,
                )


def check_sets(pipeline: Pipeline, table: str, suite: Sequence[Any]) -> None:
    """Raise UsageError when an expectation has None among a set of values: to SQL, every value may be in it then."""
    for expectation in suite:
        given = getattr(expectation, "value_set", None) or ()
        if not isinstance(given, dict) and any(each is None for each in given):
            raise UsageError(
                f"expectations/{pipeline.name}.py: {type(expectation).__name__} of {table} has None in its set of "
                "values; to SQL every value may be one of these then",
                remedy="leave None out: nulls are not looked at; ExpectColumnValuesToNotBeNull refuses them",
                pipeline=pipeline.name,
            )


_ARGUMENTS = ("column", "column_A", "column_B", "column_list")


def _looked_at(expectation: Any) -> Iterator[str]:
    """Yield the names of the columns whose values an expectation looks at.

    Other expectations have arguments of these names, too: those that ask whether a column is there, and a deployment's
    own.
    """
    for argument in set(_ARGUMENTS).intersection(getattr(expectation, "domain_keys", ())):
        given = getattr(expectation, argument, None)
        for name in given if isinstance(given, list | tuple) else [given]:
            # A parameter, too, may stand in the place of a name.
            if isinstance(name, str) and not name.startswith(OWN_PREFIX):
                yield name


def _is_among(columns: Sequence[Field], path: str) -> bool:
    """Return whether a dotted path leads to a column or a struct's field; upper and lower case are the same to Spark.

    Great Expectations finds nothing inside of arrays and maps.
    """
    found = Field("", "STRUCT", tuple(columns))
    for part in path.replace("`", "").casefold().split("."):
        inner = next((each for each in found.inner if each.name.casefold() == part), None)
        if inner is None or found.kind != "STRUCT":
            return False
        found = inner
    return True
