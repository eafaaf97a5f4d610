"""SparkSubmitOperator for Tidemark's jobs: configuration at run time, exit codes in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from airflow.providers.apache.spark.hooks import spark_submit
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException

from include.airflow.interval_run.links import INTERVAL_LINKS, push_links
from include.airflow.interval_run.step_log import log_step
from include.airflow.on_cluster.handing_over import HandedOver, MaskedYarn, OwnLines, check_master, take_submission
from include.airflow.tasks import attempt_of, result_of, take_step, task_failure
from include.errors import TidemarkError, ValidationFailed, error_class
from include.intervals.steps import AttemptJob, judge_validation, submit
from include.ledger.intervals.attempts import note_failure
from include.pipelines import load_pipeline
from include.spark import yarn
from include.spark.cluster import DeployMode
from include.spark.cluster_run import Followed
from include.spark.driver_lines import DriverLines
from include.spark.submission import JOBS, SPARK_POOL, SparkSubmission


class JobOperator(SparkSubmitOperator):
    """Submits one of `spark_jobs/` for an attempt of an interval.

    What Spark needs is resolved when the task runs, so parsing a DAG needs neither jars nor services,
    and nothing of it is rendered or stored.
    """

    template_fields: Sequence[str] = ("attempt",)
    operator_extra_links = INTERVAL_LINKS

    def __init__(self, *, job: AttemptJob, pipeline: str, attempt: Any, **kwargs: Any) -> None:
        # Five pipelines at a full hour must not start five drivers on two cores.
        kwargs = {"pool": SPARK_POOL, "pool_slots": load_pipeline(pipeline).spark_slots, **kwargs}
        super().__init__(application=str(JOBS / f"{job}.py"), name=f"{job} {pipeline}", durable=False, **kwargs)
        self.job: AttemptJob = job
        self.pipeline = pipeline
        self.attempt = attempt
        self._lines = DriverLines()
        self._code = 0

    @property
    def number(self) -> int:
        """Number of the attempt, as `pin_ranges` told it. Raises Airflow's exception when that began none."""
        return int(take_step(result_of, "pin_ranges", self.attempt, self.pipeline))

    def check_attempt(self, context: Context) -> None:
        """Raise Airflow's exception when the run did not begin the attempt: `pin_ranges` told none, or not this one.

        Before anything else: what a person did comes before how Airflow is set up.
        """
        take_step(attempt_of, self.pipeline, self.attempt, context)

    def execute(self, context: Context) -> None:
        """Submit, wait, and log what the step found, or raise what its failure means."""
        push_links(context, self)
        self.check_attempt(context)
        if code := self.run_job(context):
            raise self.failure(code)
        log_step(self.job, self.number)

    def run_job(self, context: Context) -> int:
        """Submit, wait, and return the driver's exit code."""
        hook = self._get_hook()
        take_step(check_master, hook)
        on_yarn = hook._is_yarn_cluster_mode
        self.take(self.resolve("cluster" if on_yarn else "client"))
        # A try whose worker died left its driver on the cluster: the next try waits for that one, and starts no second.
        self._yarn_track_via_rm_api = self.durable = on_yarn
        self._code = 0
        try:
            super().execute(context)
        except AirflowException as error:
            named = re.search(r"Error code is: (\d+)", str(error))
            if named is None and on_yarn:
                raise
            return self._lines.exit_code(int(named[1])) if named else TidemarkError.exit_code
        return self._code

    def resolve(self, mode: DeployMode) -> SparkSubmission:
        """Return what is submitted."""
        return submit(self.job, self.pipeline, self.number, mode)

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Return the state of an earlier try's application: one that YARN no longer knows has ended."""
        application = take_step(yarn.find, yarn.resource_manager(), str(external_id))
        return application.state if application is not None else "GONE"

    def is_job_succeeded(self, status: str) -> bool:
        """Return False: a cleared task is done again, even if its earlier application succeeded."""
        return False

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Log the driver's output, on whatever node it runs, until its end."""
        application = str(external_id)
        # Also for an application that an earlier try submitted, so that it is killed with this task.
        self._hook._yarn_application_id = application
        self.log.info("the driver is %s", yarn.page_of(yarn.resource_manager(), application))
        cluster = MaskedYarn()
        followed = Followed(cluster, application, self._lines, lambda line: self.log.info("%s", cluster.masked(line)))
        self._code = take_step(followed.end)

    def failure(self, code: int) -> AirflowException:
        """Return what the exit code means, after logging what the step left in the ledger."""
        failed = error_class(code)
        meaning = failed.meaning
        if issubclass(failed, ValidationFailed):
            log_step(self.job, self.number, failed=True)
            meaning = _validation(self.number) or meaning
        elif self._lines.own:
            # An alert is made of this text alone: the line names the offsets, and after “ — ” what to do.
            meaning += f"; last line: {self._lines.own}"
        note_failure(self.number, code)
        for line in self._lines.reasons(code):
            self.log.error("driver: %s", line)
        return task_failure(failed, f"{self.job} of {self.pipeline} ended with exit code {code}: {meaning}")

    def _get_hook(self) -> SparkSubmitHook:
        """Return the hook; in its log the driver's own lines are shown, others are for debugging only."""
        if not hasattr(spark_submit, "kube_client"):
            # Instead of Airflow's Kubernetes provider, which follows pods; without it the hook fails at k8s:// masters.
            spark_submit.kube_client = object()
        hook = super()._get_hook()
        if hook._connection["deploy_mode"] != "cluster":
            # The driver shares the worker's pod, so its environment is the process's and not options of a pod.
            hook._is_kubernetes = False
        self._lines = DriverLines()
        on_yarn = self._yarn_track_via_rm_api
        hook._log = (HandedOver if on_yarn else OwnLines)(hook.log, self._lines)
        if on_yarn:
            hook._yarn_rm_base_url = yarn.resource_manager()
        return hook

    def take(self, resolved: SparkSubmission) -> None:
        """Take over what is submitted: arguments, configuration, and an environment without secrets."""
        take_submission(self, resolved)


def _validation(attempt: int) -> str:
    """Write the report of a failed validation; return its message in one line."""
    try:
        judge_validation(attempt)
    except TidemarkError as error:
        return str(error)
    return ""
