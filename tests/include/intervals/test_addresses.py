"""Where links to pages lead, with more than one Airflow known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from include.intervals.reporting.addresses import airflow_address
from include.processes import ProcessIdentity
from include.services.process import write_state

OTHER = "https://airflow.example.net/"


@pytest.fixture(autouse=True)
def _no_setting(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW__API__BASE_URL", raising=False)


def write_airflow(*, runs: bool) -> None:
    identity = str(ProcessIdentity.of(os.getpid())) if runs else ""
    write_state("airflow", address="http://127.0.0.1:15001", pid=os.getpid() if runs else None, process=identity)


def test_links_lead_to_the_embedded_airflow_when_it_runs_and_the_shell_names_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", OTHER)
    write_airflow(runs=True)
    assert airflow_address() == "http://127.0.0.1:15001"


def test_links_lead_to_the_airflow_of_the_setting_when_no_embedded_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert airflow_address() == ""
    write_airflow(runs=False)
    assert airflow_address() == "http://127.0.0.1:15001"
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", OTHER)
    assert airflow_address() == OTHER.rstrip("/")
