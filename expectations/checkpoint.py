"""The mechanics of Great Expectations: a checkpoint over one revision's rows, and what it found.

Great Expectations is imported here and in the suites only; importing it costs seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import isfinite
from typing import Any, Literal

import great_expectations as gx
from great_expectations import expectations as gxe
from great_expectations.checkpoint.actions import ActionContext, ValidationAction
from great_expectations.checkpoint.checkpoint import CheckpointResult
from great_expectations.data_context.store import ValidationResultsStore
from great_expectations.expectations.expectation import Expectation
from great_expectations.expectations.metadata_types import FailureSeverity
from pydantic.v1 import PrivateAttr
from pyspark.sql import DataFrame

from expectations.bounds import COLUMN, WORDS, expectations_of_bounds
from expectations.examples import examples_of
from expectations.sentences import arguments_of, columns_of, in_words, observation
from expectations.suite_files import check_columns, check_sets, suite_file
from expectations.usual import UNKNOWN_BOUNDS, Usual, UsualBounds
from include.errors import UsageError
from include.ledger.intervals.findings import ExpectationKey, ExpectationResult, Severity
from include.pipelines.spec import IDENTITY, Pipeline
from include.pipelines.spec.names import check_kind, check_tuple

_COUNTED = {"result_format": "SUMMARY", "partial_unexpected_count": 0}
"""Values that do not meet an expectation are counted, not shown: looking for them reads the table once more per
expectation, to the end where there are none."""

WhenPassed = Callable[[Sequence[ExpectationResult]], None]
"""Called with the results of a checkpoint's expectations when it passed."""


class OnResult(ValidationAction):
    """Runs a function with the result of the whole checkpoint."""

    type: Literal["tidemark_on_result"] = "tidemark_on_result"
    _function: Callable[[CheckpointResult], None] = PrivateAttr(default=lambda _: None)

    def then(self, function: Callable[[CheckpointResult], None]) -> OnResult:
        """Set the function, and return the action."""
        self._function = function
        return self

    def run(self, checkpoint_result: CheckpointResult, action_context: ActionContext | None = None) -> dict[str, Any]:
        """Run the function; the checkpoint calls this after its validations."""
        self._function(checkpoint_result)
        return {}


class _KeepsNothing(ValidationResultsStore):
    """Results are in the verdict. The store would write them as JSON, and fail at values that have no form in it."""

    def set(self, *_: Any, **__: Any) -> bool:
        return True


def checkpoint_passed(result: CheckpointResult, accepted: Collection[ExpectationKey] = (), table: str = "") -> bool:
    """Return whether everything passed: an empty result, a missing one or an exception is a failure.

    Expectations of severity `info` need not be met, nor accepted ones of severity `warn`; both must have been checked.
    """
    runs = list(result.run_results.values())
    return bool(runs) and all(_run_passed(each, accepted, table) for each in runs)


def _run_passed(run: Any, accepted: Collection[ExpectationKey], table: str) -> bool:
    missed = [each for each in run.results if _raised(each) or not each.success]
    return (
        bool(run.results)
        and all(_is_let_pass(each, accepted, table) for each in missed)
        and bool(run.success or missed)
    )


def _is_let_pass(result: Any, accepted: Collection[ExpectationKey], table: str) -> bool:
    severity = _severity(result)
    return severity == "info" or (severity == "warn" and _result(table, result).key in accepted)


_SEVERITIES: Mapping[FailureSeverity, Severity] = {
    FailureSeverity.CRITICAL: "fail",
    FailureSeverity.WARNING: "warn",
    FailureSeverity.INFO: "info",
}


def _severity(result: Any) -> Severity:
    """Return the severity: `fail` for an expectation that raised an error or declares no severity."""
    if _raised(result):
        return "fail"
    declared = getattr(result.expectation_config, "severity", None) or FailureSeverity.CRITICAL
    return _SEVERITIES[FailureSeverity(declared)]


def _raised(result: Any) -> bool:
    info = result.exception_info or {}
    if "raised_exception" in info:
        return bool(info["raised_exception"])
    return any(isinstance(each, dict) and each.get("raised_exception") for each in info.values())


_ERROR = re.compile(r"^(?:[\w$]+\.)*([A-Z]\w*(?:Error|Exception))\b(?:: (\[[A-Z_.]+\]))?", re.MULTILINE)
"""The line of a traceback with an error's class, and Spark's name of it."""


def _error_of(result: Any) -> str:
    """Return the class of the first error that a check raised. Its text is left out: it may quote values of rows."""
    info = result.exception_info or {}
    each = [info, *info.values()] if "raised_exception" not in info else [info]
    traces = [str(one["exception_traceback"]) for one in each if isinstance(one, dict) and "exception_traceback" in one]
    found = next((match for trace in traces if (match := _ERROR.search(trace))), None)
    return " ".join(filter(None, found.groups())) if found else "an unknown error"


def expectations_of(
    pipeline: Pipeline, table: str, rows: int, usual: UsualBounds = UNKNOWN_BOUNDS, *, may_be_empty: bool = False
) -> list[Expectation]:
    """Return the table's expectations: the ledger's number of rows, unique identities, then the pipeline's own.

    An empty frame or a column of nulls would pass most expectations, so the row count comes first. Usual bounds come
    last. Of a table without rows, only how many rows it has is expected; its suite expects nothing of one that
    `may_be_empty`.
    Raises UsageError when there is no suite file of the pipeline, or it does not name the table.
    """
    own = _suite(pipeline, table) if rows else [] if may_be_empty else _row_counts(pipeline, table)
    words = f"the table has exactly the {rows} rows that the ledger counts"
    shared: list[Expectation] = [gxe.ExpectTableRowCountToEqual(value=rows, meta={WORDS: words})]
    if table != pipeline.table:
        return [*shared, *own]
    shared += [gxe.ExpectColumnValuesToNotBeNull(column=name) for name in IDENTITY]
    shared.append(gxe.ExpectCompoundColumnsToBeUnique(column_list=list(IDENTITY)))
    return [*shared, *own, *expectations_of_bounds(usual, rows)]


def counts_rows(pipeline: Pipeline, table: str) -> bool:
    """Return whether the table's suite expects a number of rows, by which it is judged when it has none, too."""
    return bool(_row_counts(pipeline, table))


def _row_counts(pipeline: Pipeline, table: str) -> list[Expectation]:
    kinds = gxe.ExpectTableRowCountToBeBetween | gxe.ExpectTableRowCountToEqual
    return [each for each in _suite(pipeline, table) if isinstance(each, kinds)]


def check_suites(pipeline: Pipeline) -> None:
    """Raise UsageError when there is no suite file, or it lacks a table, or names a column that its table lacks.

    Also for sets of values with a null, and for suites, or a declaration of what is usual, of another kind.
    """
    declared, file = suite_file(pipeline), f"expectations/{pipeline.name}.py"
    check_kind(declared.SUITES, f"SUITES of {file}", Mapping, 'SUITES = {"TABLE": [EXPECTATION, …]}')
    check_kind(getattr(declared, "USUAL", None), f"USUAL of {file}", Usual | None)
    for table in pipeline.tables:
        suite = _suite(pipeline, table)
        check_tuple(suite, f"the suite of {table} in {file}", Expectation)
        check_columns(pipeline, table, suite)
        check_sets(pipeline, table, suite)


def _suite(pipeline: Pipeline, table: str) -> Sequence[Expectation]:
    suites: Mapping[str, Sequence[Expectation]] = suite_file(pipeline).SUITES
    if table not in suites:
        raise UsageError(
            f"expectations/{pipeline.name}.py has no suite of the table {table}",
            remedy=f'add to its SUITES "{table}": [], with what must hold of the table\'s rows',
            pipeline=pipeline.name,
        )
    return suites[table]


def run_checkpoint(
    table: str,
    expectations: Sequence[Expectation],
    frame: DataFrame,
    on_pass: WhenPassed,
    *,
    accepted: Collection[ExpectationKey] = (),
    named_by: Sequence[str] = (),
) -> tuple[bool, list[ExpectationResult]]:
    """Validate a table's rows; `on_pass` runs inside the checkpoint's action when all passed.

    Warnings that a person `accepted` need not be met. Rows that do not meet an expectation are shown with the columns
    `named_by`.
    """
    found: list[ExpectationResult] = []

    def complete(result: CheckpointResult) -> None:
        found.extend(_with_examples(table, result, frame, named_by))
        if checkpoint_passed(result, accepted, table):
            on_pass(found)

    action = OnResult(name="register").then(complete)
    result = _run(table, expectations, frame, _COUNTED, action)
    return checkpoint_passed(result, accepted, table), found


def _with_examples(
    table: str, first: CheckpointResult, frame: DataFrame, named_by: Sequence[str]
) -> list[ExpectationResult]:
    """Return the results with the first rows that do not meet them, by a second run of the missed expectations.

    Naming rows costs a job per expectation, even for those that are met.
    """
    raw = [each for run in first.run_results.values() for each in run.results]
    missed = [each.expectation_config.to_domain_obj() for each in raw if not each.success and not _raised(each)]
    if not (missed and named_by):
        return [_result(table, each) for each in raw]
    shown = {"result_format": "SUMMARY", "unexpected_index_column_names": list(named_by)}
    again = _run(table, missed, frame, shown).run_results.values()
    examples = {_identity(each): examples_of(each.result or {}) for run in again for each in run.results}
    return [replace(_result(table, each), examples=examples.get(_identity(each), ())) for each in raw]


def _identity(result: Any) -> tuple[str, str]:
    arguments = {name: value for name, value in result.expectation_config.kwargs.items() if name != "batch_id"}
    return result.expectation_config.type, json.dumps(arguments, sort_keys=True, default=str)


def _run(
    table: str, expectations: Sequence[Expectation], frame: DataFrame, shown: dict[str, Any], *actions: OnResult
) -> CheckpointResult:
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False, "metric_calculations": False}
    context.stores[context.validation_results_store_name] = _KeepsNothing(
        store_name=context.validation_results_store_name
    )
    source = context.data_sources.add_or_update_spark("lake", persist=False)
    batch = source.add_dataframe_asset(table).add_batch_definition_whole_dataframe("revision")
    # Copied, because an expectation belongs to only one suite.
    suite = context.suites.add(gx.ExpectationSuite(name=table, expectations=[copy(each) for each in expectations]))
    validation = context.validation_definitions.add(gx.ValidationDefinition(name=table, data=batch, suite=suite))
    checkpoint = gx.Checkpoint(
        name=table, validation_definitions=[validation], actions=list(actions), result_format=shown
    )
    return checkpoint.run(batch_parameters={"dataframe": frame})


def _result(table: str, result: Any) -> ExpectationResult:
    config = result.expectation_config
    details, meta = result.result or {}, config.meta or {}
    # The configuration lacks what the expectation's class declares.
    expectation = config.to_domain_obj()
    arguments = arguments_of(expectation)
    words = meta.get(WORDS) or " ".join((expectation.description or "").split()) or in_words(config.type, arguments)
    checked = details.get("element_count")
    return ExpectationResult(
        table,
        config.type,
        str(meta.get(COLUMN) or columns_of(arguments)),
        str(words),
        bool(result.success) and not _raised(result),
        f"the check itself failed: {_error_of(result)}" if _raised(result) else observation(details),
        int(details.get("unexpected_count") or 0),
        *_measured(arguments, details),
        None if checked is None else checked - (details.get("missing_count") or 0),
        severity=_severity(result),
    )


def _measured(arguments: dict[str, Any], details: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Return the measured value of an expectation, and the smallest and the largest value with which it is met.

    An expectation over rows measures the share of them that met it, unless there is no value to look at.
    """
    if "unexpected_percent" in details:
        percent = details["unexpected_percent"]
        share = None if percent is None else 1 - percent / 100
        return _number(share), float(arguments.get("mostly", 1.0)), 1.0
    exactly = arguments.get("value")
    low, high = (exactly if exactly is not None else arguments.get(name) for name in ("min_value", "max_value"))
    return _number(details.get("observed_value")), _number(low), _number(high)


def _number(value: Any) -> float | None:
    # The ledger's JSON has no NaN.
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if is_number else None
