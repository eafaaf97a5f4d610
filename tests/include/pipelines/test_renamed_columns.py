"""Declarations of renamed columns that contradict themselves are refused where they stand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive

COLUMNS = "device STRING, pace INT, at TIMESTAMP"


def archive(**declared: Any) -> Archive:
    return Archive(rows="rows", columns=COLUMNS, event_time="at", **declared)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"renamed": {"speed": "pace"}}, "'speed' is not declared"),
        ({"renamed": {"pace": "device"}}, "device is declared, too"),
        ({"renamed": {"pace": "Pace"}}, "Pace is declared, too"),
        ({"renamed": {"pace": ()}}, "not said what"),
        ({"renamed": {"pace": "a.b"}}, "'a.b' is no column"),
        ({"renamed": {"Pace": "speed"}}, "'Pace' is declared as pace — write pace"),
        ({"renamed": {"pace": "speed", "device": ("name", "speed")}}, "the former name speed stands twice"),
        ({"renamed": {"pace": "speed", "device": "Speed"}}, "the former name speed stands twice"),
        ({"renamed": {"pace": ("speed", "SPEED")}}, "the former name speed stands twice"),
        ({"renamed": {"pace": "speed"}, "delta": True}, "Delta"),
        ({"renamed": {"pace": "speed"}, "file_format": "orc"}, "not Parquet"),
    ],
)
def test_rename_is_refused_when_it_contradicts_what_is_declared(declared: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told) as refused:
        archive(**declared)
    assert refused.value.exit_code == 64


@pytest.mark.parametrize("declared", [{"delta": True}, {"file_format": "orc"}])
def test_archive_stays_as_it_is_when_its_columns_were_renamed(declared: dict[str, Any]) -> None:
    """Both names are taken then: the new one is declared, and files have the former one."""
    with pytest.raises(UsageError) as refused:
        archive(renamed={"pace": "speed"}, **declared)
    assert "once columns were renamed, keep Parquet, without Delta" in refused.value.remedy


def test_former_names_are_listed_newest_first_when_there_are_several() -> None:
    assert archive(renamed={"pace": ("speed", "velocity"), "at": "time"}).formerly == {
        "pace": ("speed", "velocity"),
        "at": ("time",),
    }


def test_each_table_has_its_own_former_names_when_a_view_renames_a_column() -> None:
    declared = load_pipeline("nest_cameras")
    view = replace(declared.views[0], renamed={"count": "n"})
    renamed = replace(declared, views=(view,))
    assert renamed.formerly(renamed.view_table(view)) == {"count": ("n",)}
    assert renamed.formerly(renamed.table) == {}
