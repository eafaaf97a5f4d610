"""Which rows of two revisions are compared with each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline

pytestmark = pytest.mark.spark

COLUMNS = (
    "zip_code STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, at TIMESTAMP, fee DECIMAL(12,4), "
    "place STRUCT<since: TIMESTAMP, floor: INT>, count BIGINT"
)
AT = "timestamp_micros(1795152600000000 + n) AS at,"


Found = dict[str, Any]


@pytest.fixture
def compared(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Found]:
    """Compares the rows of two statements as the former and the present ones of a view with these columns."""
    from spark_jobs.intervals import revision_comparison

    pipeline = load_pipeline("nest_cameras")
    [declared] = pipeline.views
    view = replace(declared, columns=COLUMNS, key=("zip_code", "window", "at", "fee", "place"))
    pipeline = replace(pipeline, views=(view,))
    monkeypatch.setattr(revision_comparison, "damaged_files", lambda *file, deep: ())

    def revision(name: str, rows: str) -> BuiltRevision:
        location = (tmp_path / name).as_uri()
        spark.sql(rows).coalesce(1).write.parquet(location)
        [file] = (tmp_path / name).glob("*.parquet")
        label = "interval=2026-11-20T05"
        return BuiltRevision(pipeline.view_table(view), label, name, location, 3, name, {file.name: {}})

    def compare(before: str, now: str) -> Found:
        both = revision("before", before), revision("now", now)
        return revision_comparison._compare(spark, pipeline, both[0].table, both, revision_comparison.EXAMPLES)

    return compare


def rows(last: int, at: str = AT, fee: str = "DECIMAL(12,4)", floor: str = ", 'floor', INT(NULL)") -> str:
    hour = "named_struct('start', TIMESTAMP'2026-11-20 05:00:00', 'end', TIMESTAMP'2026-11-20 06:00:00')"
    place = f"named_struct('since', TIMESTAMP'2026-11-20 05:00:00'{floor})"
    return (
        f"SELECT '75001' AS zip_code, {hour} AS window, {at} CAST(1.5 AS {fee}) AS fee, {place} AS place, "
        f"CASE WHEN n = 2 THEN {last}L ELSE n END AS count FROM (SELECT explode(array(1L, 2L, 3L)) AS n)"
    )


def counts(found: Found) -> tuple[int, int, int]:
    return found["added"], found["removed"], found["changed"]


def test_rows_of_a_view_are_told_apart_when_their_keys_differ_by_microseconds(
    compared: Callable[[str, str], Found],
) -> None:
    found = compared(rows(2), rows(9))
    assert counts(found) == (0, 0, 1)
    [example] = found["examples"]
    assert (example["change"], "00.000002Z" in example["key"]) == ("changed", True)


def test_rows_are_removed_and_others_added_when_the_key_has_gained_a_column(
    compared: Callable[[str, str], Found],
) -> None:
    found = compared(rows(2, at=""), rows(2))
    assert counts(found) == (3, 3, 0)
    of_the_former = {each["change"] for each in found["examples"] if '"at":null' in each["key"]}
    assert of_the_former == {"removed"}


def test_only_rows_with_other_values_are_changed_when_a_decimal_of_the_key_was_widened(
    compared: Callable[[str, str], Found],
) -> None:
    found = compared(rows(2, fee="DECIMAL(10,2)"), rows(9))
    assert counts(found) == (0, 0, 1)
    [example] = found["examples"]
    assert '"fee":1.5000' in example["key"]


def test_only_rows_with_other_values_are_changed_when_a_struct_of_the_key_has_gained_a_field(
    compared: Callable[[str, str], Found],
) -> None:
    assert counts(compared(rows(2, floor=""), rows(9))) == (0, 0, 1)
