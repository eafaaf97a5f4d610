"""The mechanics of Great Expectations: a checkpoint over one revision's rows, and what it found.

Great Expectations is imported here and in the suites only; importing it costs seconds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Literal

import great_expectations as gx
from great_expectations import expectations as gxe
from great_expectations.checkpoint.actions import ActionContext, ValidationAction
from great_expectations.checkpoint.checkpoint import CheckpointResult
from great_expectations.expectations.expectation import Expectation
from pydantic.v1 import PrivateAttr
from pyspark.sql import DataFrame

from include.ledger.intervals.findings import ExpectationResult
from include.pipelines.spec import IDENTITY, Pipeline

WhenPassed = Callable[[Sequence[ExpectationResult]], None]
"""Called with what a checkpoint's expectations found, when it passed."""


class OnPass(ValidationAction):
    """Runs a function when, and only when, the whole checkpoint passed."""

    type: Literal["tidemark_on_pass"] = "tidemark_on_pass"
    _function: Callable[[CheckpointResult], None] = PrivateAttr(default=lambda _: None)

    def then(self, function: Callable[[CheckpointResult], None]) -> OnPass:
        """Set the function; returns the action."""
        self._function = function
        return self

    def run(self, checkpoint_result: CheckpointResult, action_context: ActionContext | None = None) -> dict[str, Any]:
        """Called by the checkpoint after its validations."""
        passed = checkpoint_passed(checkpoint_result)
        if passed:
            self._function(checkpoint_result)
        return {"registered": passed}


def checkpoint_passed(result: CheckpointResult) -> bool:
    """Whether everything passed: an empty result, a missing one or an exception is a failure."""
    runs = list(result.run_results.values())
    return bool(
        runs
        and result.success
        and all(run.success and run.results and all(r.success and not _raised(r) for r in run.results) for run in runs)
    )


def _raised(result: Any) -> bool:
    info = result.exception_info or {}
    if "raised_exception" in info:
        return bool(info["raised_exception"])
    return any(isinstance(each, dict) and each.get("raised_exception") for each in info.values())


def expectations_of(pipeline: Pipeline, table: str, rows: int) -> list[Expectation]:
    """The table's expectations: rows as the ledger counts them, identity once, then the pipeline's own.

    An empty frame or a column of nulls would pass most expectations, so the row count comes first.
    """
    own = importlib.import_module(f"expectations.{pipeline.name}").SUITES
    shared: list[Expectation] = [gxe.ExpectTableRowCountToEqual(value=rows)]
    if table == pipeline.table:
        shared += [gxe.ExpectColumnValuesToNotBeNull(column=name) for name in IDENTITY]
        shared.append(gxe.ExpectCompoundColumnsToBeUnique(column_list=list(IDENTITY)))
    return [*shared, *own[table]]


def run_checkpoint(
    pipeline: Pipeline, table: str, rows: int, frame: DataFrame, on_pass: WhenPassed
) -> tuple[bool, list[ExpectationResult]]:
    """Validate a table's rows; `on_pass` runs inside the checkpoint's action when all passed."""
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    source = context.data_sources.add_or_update_spark("lake", persist=False)
    batch = source.add_dataframe_asset(table).add_batch_definition_whole_dataframe("revision")
    suite = context.suites.add(gx.ExpectationSuite(name=table, expectations=expectations_of(pipeline, table, rows)))
    validation = context.validation_definitions.add(gx.ValidationDefinition(name=table, data=batch, suite=suite))
    checkpoint = gx.Checkpoint(
        name=table,
        validation_definitions=[validation],
        actions=[OnPass(name="register").then(lambda passed: on_pass(_results(table, passed)))],
        result_format={"result_format": "SUMMARY"},
    )
    result = checkpoint.run(batch_parameters={"dataframe": frame})
    return checkpoint_passed(result), _results(table, result)


def _results(table: str, checkpoint: CheckpointResult) -> list[ExpectationResult]:
    return [_result(table, each) for run in checkpoint.run_results.values() for each in run.results]


def _result(table: str, result: Any) -> ExpectationResult:
    config = result.expectation_config
    details = result.result or {}
    column = config.kwargs.get("column") or ", ".join(config.kwargs.get("column_list", []))
    observed = details.get("observed_value")
    if observed is None and "unexpected_percent" in details:
        observed = f"{details['unexpected_percent'] or 0:.3g} % unexpected"
    if _raised(result):
        observed = "the check itself failed"
    return ExpectationResult(
        table,
        config.type,
        column,
        in_words(config.type, config.kwargs),
        bool(result.success) and not _raised(result),
        str(observed if observed is not None else ""),
        int(details.get("unexpected_count") or 0),
        *_measured(config.kwargs, details),
        details.get("element_count"),
    )


def _measured(arguments: dict[str, Any], details: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Return what an expectation measured, and the least and the greatest value with which it is met.

    An expectation over rows measures the share of them that met it.
    """
    if details.get("unexpected_percent") is not None:
        percent = details.get("unexpected_percent_nonmissing")
        share = 1 - (details["unexpected_percent"] if percent is None else percent) / 100
        return _number(share), float(arguments.get("mostly", 1.0)), 1.0
    exactly = arguments.get("value")
    low, high = (exactly if exactly is not None else arguments.get(name) for name in ("min_value", "max_value"))
    return _number(details.get("observed_value")), _number(low), _number(high)


def _number(value: Any) -> float | None:
    # The ledger's JSON knows no NaN.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if is_number else None


def in_words(kind: str, arguments: dict[str, Any]) -> str:
    """An expectation as a sentence, e.g. `values of device_id are never null`."""
    column = arguments.get("column", "")
    columns = ", ".join(arguments.get("column_list", []))
    low, high = arguments.get("min_value"), arguments.get("max_value")
    bounds = (
        f"between {low} and {high}"
        if None not in (low, high)
        else f"at least {low}"
        if high is None
        else f"at most {high}"
    )
    match kind:
        case "expect_table_row_count_to_equal":
            return f"the table has exactly the {arguments['value']} rows that the ledger counts"
        case "expect_column_values_to_not_be_null":
            return f"{column} is never null"
        case "expect_compound_columns_to_be_unique":
            return f"no two rows share the same {columns}"
        case "expect_column_value_lengths_to_be_between":
            return f"the length of {column} is {bounds}"
        case "expect_column_values_to_be_between":
            return f"{column} is {bounds}"
        case "expect_column_values_to_be_in_set":
            return f"{column} is one of {', '.join(map(str, arguments['value_set']))}"
        case "expect_column_values_to_match_regex":
            return f"{column} matches {arguments['regex']}"
        case "expect_column_proportion_of_non_null_values_to_be_between":
            return f"the share of rows with {column} is {bounds}"
    return kind.removeprefix("expect_").replace("_", " ") + (f" ({column})" if column else "")
