"""Running totals against the sum of the intervals' parts: classes of keys, without services."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.reconciliation import Reconciliation, ReconciliationCounts
from spark_jobs.reconciliation.totals import SIDES, Context, _side_by_side, classify

Sides = dict[str, dict[str, tuple[int, Any]]]


def classified(
    spark: Any, sides: Sides, *, behind: bool = False, other_code: bool = False, weight: str = "BIGINT"
) -> Reconciliation:
    """Classes of keys of a total with two measures; `sides` gives side → key → both measures."""
    declared = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
    view = replace(declared, measures=("hits", "weight"), columns=f"{declared.columns}, weight {weight}")
    assert not sides.keys() - set(SIDES)
    frames = {
        side: spark.createDataFrame(
            [(key, *measures) for key, measures in sides.get(side, {}).items()],
            f"key STRING, hits BIGINT, weight {weight}",
        )
        for side in SIDES
    }
    return classify(_side_by_side(view, frames), view, Context(behind, other_code, "hits-0 offset 7"))


@pytest.mark.spark
def test_key_falls_into_its_class_when_the_sides_hold_its_values(spark: Any) -> None:
    found = classified(
        spark,
        {
            "speed": {"matched": (5, 50), "newer": (6, 60), "ahead": (2, 20), "theirs": (4, 40), "replays": (3, 30)},
            "proved": {"matched": (2, 20), "newer": (2, 20), "theirs": (4, 40), "replays": (3, 30)},
            "batch": {"matched": (3, 30), "newer": (3, 30), "ahead": (5, 50), "replays": (1, 10)},
            "inside": {"matched": (3, 30), "newer": (3, 30), "ahead": (2, 20), "replays": (1, 10)},
            "rest": {"newer": (1, 10)},
            "beyond": {"ahead": (3, 30)},
            "delivered": {"replays": (1, 10)},
        },
    )
    assert found.counts == ReconciliationCounts(matched=1, pending=2)
    assert {each.where: each.cls for each in found.differences} == {
        "newer": "pending",
        "ahead": "pending",
        "replays": "quarantined",
    }
    newer = next(each for each in found.differences if each.where == "newer")
    assert newer.what == "zip_totals against isp-hits-zip-totals"
    assert "hits: speed view 6; other registered intervals 2, of which 0 by replays, this interval 3" in newer.evidence
    assert "rows of no such interval 1" in newer.evidence


@pytest.mark.spark
def test_key_is_unexplained_when_any_side_differs_whichever_interval_has_it(spark: Any) -> None:
    found = classified(
        spark,
        {
            "speed": {"of nothing": (1, 1), "doubled": (4, 4), "weight": (5, 6), "unlanded": (1, 1), "batch": (1, 1)},
            "proved": {"lost": (1, 1), "doubled": (5, 5), "weight": (5, 5)},
            "batch": {"unlanded": (0, 0), "batch": (2, 2)},
            "inside": {"unlanded": (1, 1), "batch": (1, 1)},
        },
    )
    assert found.counts == ReconciliationCounts(unexplained=6)
    assert {each.where for each in found.differences} == {
        *("of nothing", "lost", "doubled", "weight", "unlanded", "batch"),
    }


@pytest.mark.spark
def test_decimals_are_compared_to_the_last_digit_when_sides_are_added(spark: Any) -> None:
    one = Decimal("1.00000045")
    two, less = 2 * one, 2 * one - Decimal("0.00000001")
    found = classified(
        spark,
        {
            "speed": {"matched": (2, two), "replays": (1, one), "speed": (2, less), "batch": (1, one)},
            "proved": {"matched": (1, one), "replays": (2, two), "speed": (1, one)},
            "delivered": {"replays": (1, one)},
            "batch": {"matched": (1, one), "speed": (1, one), "batch": (2, less)},
            "inside": {"matched": (1, one), "speed": (1, one), "batch": (1, one)},
            "beyond": {"batch": (1, one)},
        },
        weight="DECIMAL(28,8)",
    )
    assert found.counts == ReconciliationCounts(matched=1, unexplained=2)
    assert {each.where: each.cls for each in found.differences if each.cls == "unexplained"} == {
        "speed": "unexplained",
        "batch": "unexplained",
    }


@pytest.mark.spark
def test_total_is_pending_when_it_is_above_an_archive_that_is_behind(spark: Any) -> None:
    assert classified(spark, {"speed": {"k": (1, 1)}}, behind=True).counts.pending == 1
    assert classified(spark, {"proved": {"k": (1, 1)}}, behind=True).counts.unexplained == 1


@pytest.mark.spark
def test_difference_is_of_class_code_only_when_other_code_had_a_part(spark: Any) -> None:
    differing: Sides = {"speed": {"k": (3, 3), "l": (1, 1)}, "proved": {"l": (2, 2)}, "older": {"k": (4, 4)}}
    found = classified(spark, differing)
    assert {each.where: each.cls for each in found.differences} == {"k": "code", "l": "unexplained"}
    assert {each.cls for each in classified(spark, differing, other_code=True).differences} == {"code"}
    assert not classified(spark, {"speed": {"k": (4, 4)}, "older": {"k": (4, 4)}}, other_code=True).differences
