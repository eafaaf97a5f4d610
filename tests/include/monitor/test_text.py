"""Values as texts of a page."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from include.monitor.text import cell, markdown_list, number, plain


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1234567, "1,234,567"),
        (2**63 - 1, "9,223,372,036,854,775,807"),
        (-(2**63), "-9,223,372,036,854,775,808"),
        (10**40, "more than 10³⁸"),
        (-(10**40), "less than −10³⁸"),
        # A median, a spread and a rate.
        (1_234_567.0, "1,234,567"),
        (123_456.5, "123,456"),
        (12_345.678, "12,345.7"),
        (0.00012, "0.00012"),
        (-1_234_567.8, "-1,234,568"),
        (math.nan, "nan"),
        (None, "–"),
    ],
)
def test_number_has_all_digits_before_its_point_when_it_is_large(value: Any, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize("value", [1234567, -5 * 10**18, 2**63 - 1, True, None, Decimal("1234567.5"), "a,b"])
def test_identifier_is_written_as_it_is_searched_for_when_it_is_a_whole_number(value: Any) -> None:
    assert plain(value) == (str(value) if type(value) is int else cell(value))
    # Python refuses to print it.
    assert plain(10**5000) == cell(10**5000) == "more than 10³⁸"


def test_nothing_becomes_markdown_when_a_line_is_an_entry() -> None:
    lines = ["plan: `rm`, *all* of <b>it</b>", "", "two\nlines \u202e", "# no heading"]
    assert markdown_list(lines).splitlines() == [
        "- `plan: 'rm', *all* of <b>it</b>`",
        "- `two lines`",
        "- `# no heading`",
    ]
