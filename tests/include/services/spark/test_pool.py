"""Airflow's pool of Spark drivers when it has fewer slots than a driver takes, or is gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.doctor import examine
from include.doctor.finding import Finding
from include.pipelines import load_pipeline
from include.services import airflow
from include.services.process import ServiceStatus
from include.services.spark import pool
from include.services.spark.allowance import cores
from tests.conftest import SetSettings
from tests.support.json_server import answering

POOL = "/api/v2/pools/tidemark_spark"
MANY = cores() + 6


class Airflow:
    """What answers for Airflow: a pool with some slots, or none."""

    slots: int | None = None
    paused: Collection[str] = ()
    """DAGs; one that is not named here is not paused."""
    address = ""

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, object]:
        if path == "/auth/token":
            return 201, {"access_token": "token"}
        if path.startswith("/api/v2/dags/"):
            return 200, {"is_paused": path.rsplit("/", 1)[-1] in self.paused}
        if method == "POST" and self.slots is None:
            self.slots = int(body["slots"])
            return 201, body
        if method == "POST":
            return 409, {}
        return (200, {"slots": self.slots}) if self.slots is not None and path == POOL else (404, {})


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings) -> Iterator[Airflow]:
    set_settings(TIDEMARK_HOME=str(tmp_path))
    declared = load_pipeline("isp_hits")
    pipelines = (declared, replace(declared, name="nightly", spark_slots=MANY))
    monkeypatch.setattr(pool, "declarations", lambda: SimpleNamespace(loaded=pipelines))
    there = Airflow()

    with answering(there.answer) as there.address:
        yield there


def test_pool_has_a_slot_for_each_core_that_a_container_may_use_when_it_is_made(
    served: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "cores", lambda: MANY + 2)
    airflow.ensure_pool(served.address)
    assert served.slots == MANY + 2


def test_pool_has_slots_for_the_largest_driver_when_it_is_made(
    served: Airflow, capsys: pytest.CaptureFixture[str]
) -> None:
    airflow.ensure_pool(served.address)
    assert served.slots == MANY
    assert airflow.lack_of_slots(served.address) is None
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("slots", [0, 2, -1])
def test_pipeline_is_named_when_the_pool_has_fewer_slots_than_its_driver_takes(
    served: Airflow, slots: int, capsys: pytest.CaptureFixture[str]
) -> None:
    served.slots = slots
    airflow.ensure_pool(served.address)
    # An operator's number stays.
    assert served.slots == slots
    lack, said = airflow.lack_of_slots(served.address), capsys.readouterr().err
    if slots < 0:
        assert (lack, said) == (None, "")
        return
    assert lack is not None
    what, remedy = lack
    named = f"isp_hits 1, nightly {MANY}" if slots == 0 else f"nightly {MANY}"
    assert what.endswith(f"tidemark_spark has {slots} slots, and intervals wait for ever for more: {named}")
    assert f"give it {MANY} slots" in remedy
    assert said == f"tidemark: {what} — {remedy}\n"


def test_doctor_names_the_pool_when_it_was_deleted_while_airflow_runs(
    served: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "read_state", lambda name: {"pid": 1})
    missing = "Airflow has no pool tidemark_spark: every interval waits for it"
    assert list(examine._services({"airflow": ServiceStatus(served.address, True, 1)})) == [
        Finding(True, f"airflow at {served.address}"),
        Finding(False, missing, "./tidemark up airflow makes it"),
    ]
    # One that does not run has no pool, either.
    ended = examine._services({"airflow": ServiceStatus(served.address, False, 1)})
    assert [each.what for each in ended] == [f"airflow at {served.address}"]


def test_doctor_notes_the_watch_when_it_is_still_paused(served: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "read_state", lambda name: {"pid": 1})
    served.slots, served.paused = MANY, ("watch", "stream__isp_hits")
    running, note = examine._services({"airflow": ServiceStatus(served.address, True, 1)})
    assert (running.what, note.ok, note.notice) == (f"airflow at {served.address}", True, True)
    assert note.what.startswith("Airflow's DAG watch is paused: nobody is told of overdue intervals")
    assert note.remedy == "./tidemark airflow dags unpause watch"


def test_it_is_said_when_airflow_does_not_answer(served: Airflow) -> None:
    lack = airflow.lack_of_slots("http://127.0.0.1:9")
    assert lack is not None
    assert lack[0].startswith("Airflow at http://127.0.0.1:9 did not show the pool tidemark_spark")
    assert airflow.paused_of("http://127.0.0.1:9", ["watch"]) == []
