"""The order in which Airflow starts tasks of intervals; its scheduler, API server and DAG processor need it."""

from __future__ import annotations

from typing import Any, ClassVar

from airflow.plugins_manager import AirflowPlugin

from include.airflow.interval_run.order import LiveFirst


class TidemarkOrder(AirflowPlugin):
    """The weights of tasks."""

    name = "tidemark_order"
    priority_weight_strategies: ClassVar[list[Any]] = [LiveFirst]
