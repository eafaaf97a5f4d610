"""Addresses of the web pages that a person is sent to."""

from __future__ import annotations

import os

from include import lake
from include.services.process import running
from include.settings import settings
from include.times import Interval


def airflow_address() -> str:
    """Return the address of the embedded Airflow that runs, else of Airflow's own setting; empty when none is known.

    Where neither is there, it is that at which the embedded one ran.
    """
    state = settings().service_state("airflow")
    embedded = str(state.get("address", ""))
    # A shell may export the setting for another Airflow.
    known = embedded if running(state) else os.environ.get("AIRFLOW__API__BASE_URL") or embedded
    return known.rstrip("/")


def interval_page(pipeline: str, interval: Interval) -> str:
    """Return the address of an interval's page in Airflow; the file of its report without Airflow."""
    if address := airflow_address():
        return f"{address}/tidemark/intervals/{pipeline}/{interval.label}"
    return lake.uri("reports", pipeline, f"{interval.label}.html").removeprefix("file://")


def stream_page(pipeline: str) -> str:
    """Return the address of a pipeline's page in Airflow; empty without Airflow."""
    return f"{address}/tidemark/pipelines/{pipeline}" if (address := airflow_address()) else ""
