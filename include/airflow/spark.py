"""SparkSubmitOperator for Tidemark's jobs: configuration at run time, exit codes in words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from include.airflow.tasks import task_failure
from include.errors import TidemarkError, ValidationFailed, error_class
from include.intervals.steps import AttemptJob, judge_validation, submit
from include.settings import Settings
from include.spark import driver_folders
from include.spark.submission import JOBS, SparkSubmission


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
        self.take(submit(self.job, self.pipeline, int(self.attempt)))
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

    def take(self, resolved: SparkSubmission) -> None:
        """Take over what is submitted: arguments, configuration, and an environment without secrets."""
        self.application_args = list(resolved.arguments)
        self.conf = resolved.conf
        self.env_vars = without_secrets(resolved.env)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of Tidemark that are secret, or not known.

    On YARN and Kubernetes the stock hook turns each variable into an argument, and logs it. A driver on this host
    inherits the secrets from the worker that starts it; one elsewhere gets them as the cluster hands out secrets.
    """
    shown = {f"TIDEMARK_{name.upper()}" for name, each in Settings.model_fields.items() if not _is_secret(each)}
    shown.add(driver_folders.VARIABLE)
    return {name: value for name, value in environment.items() if not name.startswith("TIDEMARK_") or name in shown}


def _is_secret(setting: FieldInfo) -> bool:
    return SecretStr in (setting.annotation, *get_args(setting.annotation))


def _validation(attempt: int) -> str:
    """Write the report of a failed validation; what it says in one line."""
    try:
        judge_validation(attempt)
    except TidemarkError as error:
        return str(error)
    return ""
