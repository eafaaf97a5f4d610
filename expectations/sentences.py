"""Expectations as sentences, as verdicts and pages show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_NOT_ARGUMENTS = frozenset(
    {"id", "meta", "notes", "description", "severity", "rendered_content", "result_format", "catch_exceptions"}
    | {"windows", "batch_id", "condition_parser", "library_metadata"}
)
"""Fields of expectations that decide nothing about their result."""

_SAID = frozenset({"column", "column_A", "column_B", "column_list", "mostly", "row_condition", "ignore_row_if"})
"""Arguments that a sentence has elsewhere than in brackets, and one that all expectations of several columns have."""

_OF_BOUNDS = frozenset({"min_value", "max_value", "strict_min", "strict_max"})


def arguments_of(expectation: Any) -> dict[str, Any]:
    """Return the arguments of an expectation, those too that its class declares."""
    names = [name for name in expectation.__fields__ if name not in _NOT_ARGUMENTS]
    return {name: value for name in names if (value := getattr(expectation, name)) is not None}


def observation(details: Mapping[str, Any]) -> str:
    """Return what a check observed, from the details of its result; empty where it tells nothing."""
    if details.get("observed_value") is not None:
        return str(details["observed_value"])
    if "unexpected_percent" in details:
        percent = details["unexpected_percent"]
        return "no value to look at" if percent is None else f"{_share(percent)} % unexpected"
    # Of a column's distinct values.
    counts = ((details.get(f"{word}_count"), word) for word in ("missing", "unexpected"))
    return ", ".join(f"{count} {word}" for count, word in counts if count is not None)


def _share(percent: float) -> str:
    """Return a share in percent, rounded neither to none nor to all."""
    if 0 < percent < 0.0001:
        return "< 0.0001"
    return "> 99.9" if 99.9 < percent < 100 else f"{percent:.3g}"


def columns_of(arguments: Mapping[str, Any]) -> str:
    """Return the columns that an expectation names, with commas between them; empty for one of the whole table."""
    pair = [arguments[name] for name in ("column_A", "column_B") if name in arguments]
    return str(arguments.get("column") or ", ".join(arguments.get("column_list", pair)))


def in_words(kind: str, arguments: Mapping[str, Any]) -> str:
    """Return an expectation as a sentence, e.g. `device_id is never null`, and of which rows if not of all."""
    share, condition = float(arguments.get("mostly", 1.0)), arguments.get("row_condition")
    where = getattr(condition, "pass_through_filter", None) or repr(condition)
    return (
        _of_rows(kind, arguments)
        + ("" if share >= 1 else f" for at least {share * 100:.6g} % of rows")
        + ("" if condition is None else f" where {where}")
    )


def _of_rows(kind: str, arguments: Mapping[str, Any]) -> str:
    columns, bounds = columns_of(arguments), _bounds(arguments)
    match kind:
        case "expect_table_row_count_to_equal":
            return f"the table has exactly {arguments['value']} rows"
        case "expect_table_row_count_to_be_between" if bounds:
            return f"the number of rows is {bounds}"
        case "expect_column_values_to_not_be_null":
            return f"{columns} is {'never' if arguments.get('mostly', 1.0) == 1 else 'not'} null"
        case "expect_compound_columns_to_be_unique":
            return f"no two rows share the same {columns}"
        case "expect_column_value_lengths_to_be_between":
            return f"the length of {columns} is {bounds}"
        case "expect_column_values_to_be_between":
            return f"{columns} is {bounds}"
        case "expect_column_values_to_be_in_set":
            return f"{columns} is one of {_of_set(arguments['value_set'])}"
        case "expect_column_values_to_match_regex":
            return f"{columns} matches {arguments['regex']}"
        case "expect_column_pair_values_a_to_be_greater_than_b":
            than = "at least" if arguments.get("or_equal") else "greater than"
            return f"{arguments['column_A']} is {than} {arguments['column_B']}"
        case "expect_column_proportion_of_non_null_values_to_be_between":
            return f"the share of rows with {columns} is {bounds}"
        case "unexpected_rows_expectation":
            return f"no row is found by {' '.join(str(arguments['unexpected_rows_query']).split())}"
    return _in_general(kind, columns, bounds, arguments)


def _bounds(arguments: Mapping[str, Any]) -> str:
    """Return how a value is bounded; empty where it is not."""
    low, high = arguments.get("min_value"), arguments.get("max_value")
    strict = arguments.get("strict_min"), arguments.get("strict_max")
    if None not in (low, high) and not any(strict):
        return f"between {low} and {high}"
    at_least, at_most = "greater than" if strict[0] else "at least", "less than" if strict[1] else "at most"
    return " and ".join(f"{than} {each}" for than, each in ((at_least, low), (at_most, high)) if each is not None)


def _in_general(kind: str, columns: str, bounds: str, arguments: Mapping[str, Any]) -> str:
    """Return a sentence for an expectation of any kind, with all of its arguments."""
    sentence, said = kind.removeprefix("expect_").replace("_", " "), _SAID
    if bounds and kind.endswith("_to_be_between"):
        what = sentence.removesuffix(" to be between").removeprefix("column ")
        sentence, said = f"the {what}{f' of {columns}' if columns else ''} is {bounds}", _SAID | _OF_BOUNDS
        columns = ""
    further = [f"{name}={_text(name, value)}" for name, value in arguments.items() if name not in said]
    inner = ", ".join(filter(None, [columns, *further]))
    return sentence + (f" ({inner})" if inner else "")


def _of_set(values: Iterable[Any]) -> str:
    """Return the values of a set with commas between them, in order: a Python set has another one in each process."""
    return ", ".join(sorted(map(str, values)))


def _text(name: str, value: Any) -> str:
    return f"{{{_of_set(value)}}}" if name.endswith("_set") else str(value)
