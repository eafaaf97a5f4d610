"""Addresses of the web pages that a person is sent to."""

from __future__ import annotations

import os

from include import lake
from include.settings import settings
from include.times import Interval


def airflow_address() -> str:
    """Return Airflow's address: from its own setting, else the embedded one's; empty when neither is known."""
    known = os.environ.get("AIRFLOW__API__BASE_URL") or settings().service_state("airflow").get("address", "")
    return str(known).rstrip("/")


def interval_page(pipeline: str, interval: Interval) -> str:
    """Return the address of an interval's page in Airflow; the file of its report without Airflow."""
    if address := airflow_address():
        return f"{address}/tidemark/intervals/{pipeline}/{interval.label}"
    return lake.uri("reports", pipeline, f"{interval.label}.html").removeprefix("file://")


def stream_page(pipeline: str) -> str:
    """Return the address of a pipeline's page in Airflow; empty without Airflow."""
    return f"{address}/tidemark/pipelines/{pipeline}" if (address := airflow_address()) else ""
