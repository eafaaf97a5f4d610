"""Expectations as sentences, as verdicts and pages show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def columns_of(arguments: Mapping[str, Any]) -> str:
    """Return the columns that an expectation names, with commas between them; empty for one of the whole table."""
    pair = [arguments[name] for name in ("column_A", "column_B") if name in arguments]
    return str(arguments.get("column") or ", ".join(arguments.get("column_list", pair)))


def in_words(kind: str, arguments: Mapping[str, Any]) -> str:
    """Return an expectation as a sentence, e.g. `device_id is never null`, and of how many rows if not of all."""
    share = float(arguments.get("mostly", 1.0))
    return _of_rows(kind, arguments) + ("" if share >= 1 else f" for at least {share * 100:.6g} % of rows")


def _of_rows(kind: str, arguments: Mapping[str, Any]) -> str:
    columns = columns_of(arguments)
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
            return f"{columns} is {'never' if arguments.get('mostly', 1.0) == 1 else 'not'} null"
        case "expect_compound_columns_to_be_unique":
            return f"no two rows share the same {columns}"
        case "expect_column_value_lengths_to_be_between":
            return f"the length of {columns} is {bounds}"
        case "expect_column_values_to_be_between":
            return f"{columns} is {bounds}"
        case "expect_column_values_to_be_in_set":
            return f"{columns} is one of {', '.join(map(str, arguments['value_set']))}"
        case "expect_column_values_to_match_regex":
            return f"{columns} matches {arguments['regex']}"
        case "expect_column_pair_values_a_to_be_greater_than_b":
            than = "at least" if arguments.get("or_equal") else "greater than"
            return f"{arguments['column_A']} is {than} {arguments['column_B']}"
        case "expect_column_proportion_of_non_null_values_to_be_between":
            return f"the share of rows with {columns} is {bounds}"
    return kind.removeprefix("expect_").replace("_", " ") + (f" ({columns})" if columns else "")
