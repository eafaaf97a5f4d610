"""What the declaration of a view refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline

VIEW = load_pipeline("nest_cameras").views[0]


@pytest.mark.parametrize("kind", ["DOUBLE", "float", "STRING"])
def test_measure_is_refused_when_its_sum_depends_on_the_order_of_its_parts(kind: str) -> None:
    with pytest.raises(UsageError, match=f"measure count of the view hourly_counts is {kind.upper()}: .*DECIMAL"):
        replace(VIEW, columns=VIEW.columns.replace("count BIGINT", f"count {kind}"))


def test_measure_that_no_column_declares_is_refused() -> None:
    with pytest.raises(UsageError, match="measure sum of the view hourly_counts is not among its columns"):
        replace(VIEW, measures=("sum",))


@pytest.mark.parametrize("kind", ["INT", "decimal(19, 2)", "BIGINT NOT NULL"])
def test_measure_that_is_summed_exactly_is_accepted(kind: str) -> None:
    declared = replace(VIEW, columns=VIEW.columns.replace("count BIGINT", f"count {kind}"))
    assert declared.measures == ("count",)
