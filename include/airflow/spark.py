"""SparkSubmitOperator for Tidemark's jobs: configuration at run time, exit codes in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from include.airflow.tasks import task_failure
from include.errors import TidemarkError, ValidationFailed, error_class
from include.intervals.steps import AttemptJob, judge_validation, submit
from include.spark.submission import JOBS


class JobOperator(SparkSubmitOperator):
    """Submits one of `spark_jobs/` for an attempt of an interval.

    What Spark needs is resolved when the task runs, so parsing a DAG needs neither jars nor services,
    and nothing of it is rendered or stored.
    """

    template_fields: Sequence[str] = ("attempt",)

    def __init__(self, *, job: AttemptJob, pipeline: str, attempt: Any, **kwargs: Any) -> None:
        super().__init__(application=str(JOBS / f"{job}.py"), name=f"{job} {pipeline}", durable=False, **kwargs)
        self.job: AttemptJob = job
        self.pipeline = pipeline
        self.attempt = attempt

    def execute(self, context: Context) -> None:
        """Submit, wait, and say what a failure means."""
        resolved = submit(self.job, self.pipeline, int(self.attempt))
        self.application_args = list(resolved.arguments)
        self.conf = resolved.conf
        self.env_vars = resolved.env
        try:
            super().execute(context)
        except AirflowException as error:
            named = re.search(r"Error code is: (\d+)", str(error))
            code = int(named[1]) if named else TidemarkError.exit_code
            failed = error_class(code)
            meaning = (issubclass(failed, ValidationFailed) and _validation(int(self.attempt))) or failed.meaning
            raise task_failure(
                failed, f"{self.job} of {self.pipeline} ended with exit code {code}: {meaning}"
            ) from None


def _validation(attempt: int) -> str:
    """Write the report of a failed validation; what it says in one line."""
    try:
        judge_validation(attempt)
    except TidemarkError as error:
        return str(error)
    return ""
