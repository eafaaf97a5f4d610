"""How many missing intervals a run builds beside the schedule's own runs; no service is needed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from include.airflow import tasks
from include.pipelines import load_pipeline
from tests.support.attempts import hour

MISSING = 200


@pytest.fixture(autouse=True)
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "missing_in_order", lambda pipeline: map(hour, range(MISSING)))
    monkeypatch.setattr(tasks, "rest_before", lambda pipeline, interval: None, raising=False)


def run_of(number: int) -> str:
    return f"missing__{hour(number)}".split("/")[0]


def built(
    requested: int | None, *, under_way: int = 1, known: Sequence[str] = (), run_type: str = "manual"
) -> list[str]:
    """The runs that a run triggers while so many runs of its DAG, with itself, are queued or running."""

    def get_dr_count(
        dag_id: str,
        logical_dates: Sequence[datetime] = (),
        run_ids: Sequence[str] = (),
        states: Sequence[str] = (),
    ) -> int:
        if run_ids:
            return len({*run_ids} & {*known})
        return 0 if logical_dates or set(states) != {"queued", "running"} else under_way

    run = SimpleNamespace(
        dag_id="interval__nest_cameras",
        run_type=run_type,
        logical_date=hour(24).from_time,
        data_interval_start=hour(24).from_time,
        data_interval_end=hour(24).to_time,
    )
    context: dict[str, Any] = {"dag_run": run, "params": {"build_missing": requested}}
    context["ti"] = SimpleNamespace(get_dr_count=get_dr_count)
    return [each["trigger_run_id"] for each in tasks.runs_of_missing(load_pipeline("nest_cameras"), context)]


@pytest.mark.parametrize(("under_way", "most"), [(1, 163), (12, 152), (164, 0), (168, 0)])
def test_four_of_the_runs_of_a_week_are_left_to_the_schedule_when_more_intervals_are_requested(
    under_way: int, most: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(built(2000, under_way=under_way)) == most
    assert capsys.readouterr().out.startswith(f"{most} of 2000 runs: ")


def test_as_many_are_built_as_requested_and_nothing_is_said_when_there_is_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs = built(163, under_way=1)
    assert len(runs) == 163
    assert built(3, under_way=1, known=runs[:2]) == runs[2:5]
    # That others had a run is no reason to build later.
    had = [run_of(n) for n in range(MISSING)]
    assert built(9, under_way=168, known=had) == []
    assert capsys.readouterr().out == ""


@pytest.fixture
def rest(monkeypatch: pytest.MonkeyPatch) -> str:
    """The run of an interval that a change of the schedule left; it is one of the missing ones."""
    left = hour(3)
    monkeypatch.setattr(tasks, "rest_before", lambda pipeline, interval: left if interval == hour(24) else None)
    return run_of(3)


def test_scheduled_run_also_triggers_the_rest_of_an_earlier_schedule_when_none_is_requested(rest: str) -> None:
    assert built(None, run_type="scheduled") == [rest]
    assert built(2, run_type="scheduled") == [rest, run_of(0), run_of(1)]
    # Once.
    assert built(4, run_type="scheduled") == [rest, *map(run_of, (0, 1, 2, 4))]
    assert built(None, run_type="scheduled", known=[rest]) == []
    assert built(4, run_type="scheduled", known=[rest]) == [run_of(n) for n in (0, 1, 2, 4)]
    assert built(None, run_type="scheduled", under_way=164) == []
    assert built(None, run_type="backfill") == built(None, run_type="manual") == []
