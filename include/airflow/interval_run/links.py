"""Links from a task to the pages about what it works on."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperatorLink

from include.airflow.tasks import interval_of_run
from include.errors import TidemarkError
from include.intervals.reporting.addresses import interval_page, stream_page
from include.pipelines import load_pipeline

DATA_WAY = "/tidemark/pictures/data-way.svg"
"""The picture of the data's way, as the pages inside Airflow serve it: for the docs of DAGs."""


class IntervalLink(BaseOperatorLink):
    """The page of the interval that the run is for."""

    name = "Interval page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the page's address; empty when the run's parameters name no interval, or the ledger is away."""
        # `ti_key` is the running task instance, whatever its name says.
        pipeline = load_pipeline(pipeline_of(operator))
        try:
            return interval_page(pipeline.name, interval_of_run(pipeline, ti_key.get_template_context()))
        except TidemarkError:
            return ""


class StreamLink(BaseOperatorLink):
    """The page of the pipeline's stream."""

    name = "Stream page"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the page's address."""
        return stream_page(pipeline_of(operator))


class DriverLogLink(BaseOperatorLink):
    """The log of the stream's driver, on the page of the stream."""

    name = "Driver log"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return the address of the log's place on the page; empty where the page's address is not known."""
        return f"{page}#log" if (page := stream_page(pipeline_of(operator))) else ""


class SparkLink(BaseOperatorLink):
    """Spark's own pages of the stream's driver, if it serves them."""

    name = "Spark's own pages"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Return an address that leads to the driver running when it is opened, or to the reason why none does."""
        return f"{page}/spark" if (page := stream_page(pipeline_of(operator))) else ""


INTERVAL_LINKS = (IntervalLink(), StreamLink())
STREAM_LINKS = (StreamLink(), DriverLogLink(), SparkLink())


def pipeline_of(operator: Any) -> str:
    """Return the pipeline of a task: its own, else that of its DAG, `nest_cameras` of `interval__nest_cameras`."""
    return str(getattr(operator, "pipeline", "") or operator.dag_id.partition("__")[2])


def linked(task: Any) -> Any:
    """Give a task of an interval's DAG its links, and return it."""
    task.operator.operator_extra_links = INTERVAL_LINKS
    return task


def push_links(context: Any, operator: Any) -> None:
    """Show a task's links while it runs; Airflow itself shows them when it has ended."""
    instance = context["ti"]
    for link in operator.operator_extra_links:
        instance.xcom_push(key=link.xcom_key, value=link.get_link(operator, ti_key=instance))
