"""The task `build_interval`: one driver builds, reconciles, validates and registers.

The tasks behind it judge what the driver left in the ledger. `publish` starts a driver of its own only when it is
cleared or retried alone, or was approved.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import Context

from include.airflow.interval_run.form import Wishes
from include.airflow.interval_run.links import push_links
from include.airflow.interval_run.step_log import log_step
from include.airflow.spark import JobOperator
from include.airflow.tasks import take_step
from include.errors import ValidationFailed
from include.intervals.steps import submit_both
from include.ledger.intervals.attempts import load_attempt, went_on_since_build
from include.ledger.intervals.builds import is_published
from include.ledger.intervals.pinned import run_has_published
from include.spark.cluster import DeployMode
from include.spark.submission import SparkSubmission

TASK = "build_interval"


class BuildOperator(JobOperator):
    """Builds and reconciles an interval, and publishes it in the same driver when everything is explained."""

    def __init__(self, *, pipeline: str, attempt: Any, **kwargs: Any) -> None:
        super().__init__(job="build_interval", pipeline=pipeline, attempt=attempt, **kwargs)
        self.new_references = False

    def execute(self, context: Context) -> None:
        """Submit and wait. A checkpoint that did not pass fails `publish`, not this task: the build is complete.

        A run reads references anew once: cleared after that, it builds with the content that it has published.
        """
        push_links(context, self)
        self.check_attempt(context)
        wished = Wishes.of_run(context["params"]).new_references
        self.new_references = wished and not take_step(run_has_published, self.number)
        if self.new_references != wished:
            self.log.info("this run has published with new references: it keeps their content")
        code = self.run_job(context)
        if code and code != take_step(validated_code, self.number):
            raise self.failure(code)
        log_step(self.job, self.number)

    def resolve(self, mode: DeployMode) -> SparkSubmission:
        """Return the application that takes both steps, with the references that the run's form asks for."""
        return submit_both(self.pipeline, self.number, new_references=self.new_references, mode=mode)


def code_of_build(attempt: int) -> int | None:
    """Return the exit code of publishing the attempt's latest build, where the driver of `build_interval` did that.

    None when it did not, and when the attempt has ended since, or another driver of it has begun: `publish` was cleared
    or is retried, and publishes anew, for example after an approval or a change of the suite, with a catalog that needs
    mending, or where that driver died before it was done.
    """
    code = take_step(validated_code, attempt)
    return None if take_step(went_on_since_build, attempt) else code


def validated_code(attempt: int) -> int | None:
    """Return 0 when the attempt's latest build is published, 2 when its checkpoint did not pass, else None."""
    spec = load_attempt(attempt)
    if spec.build is not None and is_published(spec.build):
        return 0
    validation = spec.findings.validation
    return ValidationFailed.exit_code if validation is not None and not validation.success else None
