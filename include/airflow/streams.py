"""Streams under Airflow: a driver launched detached, watched by a trigger, adopted by the next run.

A long task would die with the API server and leave its driver behind; a driver that belongs to no
task lives on through restarts of Airflow, and the ledger knows where it is.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context, TaskInstanceState
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from include.airflow import backoff
from include.airflow.driver import launching, liveness, logs
from include.airflow.driver.deployments import Deployments
from include.airflow.driver.stalls import look_at_progress
from include.airflow.interval_run.links import STREAM_LINKS, push_links
from include.airflow.notifier import send_alert, stream_key
from include.airflow.on_cluster import applications
from include.airflow.on_cluster.applications import ApplicationLog
from include.airflow.on_cluster.handing_over import HandedOver, check_master, has_connection, take_submission
from include.airflow.progress import Progress, patience_after
from include.airflow.tasks import take_step
from include.errors import ServiceUnreachable, TidemarkError, error_class
from include.ledger.connection import SILENT_SECONDS, STATEMENT_SECONDS
from include.ledger.database import engine
from include.ledger.streams import launches, restarts, writers
from include.spark import yarn
from include.spark.driver_lines import DriverLines
from include.spark.submission import JOBS, SparkSubmission

_LOOK_AT_PROGRESS = 15.0
"""Seconds between two looks at what waits for the queries, each of which asks Kafka, and at the driver's log."""

_ANSWER_WITHIN = 10.0
"""Seconds in which Airflow is to tell a task that ends: it gives `on_kill` 30, and its own requests are repeated."""

_UNANSWERED = STATEMENT_SECONDS + SILENT_SECONDS
"""Seconds after which a look at the driver counts as without an answer: PostgreSQL ends each statement before that."""

T = TypeVar("T")


async def _asked(look: Callable[..., T], *arguments: object) -> T:
    """Look in a thread. Raises ServiceUnreachable, also when there is no answer: a server that hangs gives none."""
    try:
        # In Python 3.11, `wait_for` loses a cancellation that comes with the answer: nobody would stop the driver.
        async with asyncio.timeout(_UNANSWERED):
            return await asyncio.to_thread(look, *arguments)
    except TimeoutError as error:
        engine().dispose()  # another server, at another address, may have replaced the one that hangs
        unanswered = f"a look at the driver has no answer after {_UNANSWERED:.0f} s"
        raise ServiceUnreachable(unanswered, remedy="./tidemark status") from error


class StreamTrigger(BaseTrigger):
    """Watches a driver through the ledger; fires when it finished, died, never came up, stalls or is replaced."""

    def __init__(self, pipeline: str, launch: str, poll_seconds: float = 2.0) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.launch = launch
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return class path and arguments."""
        arguments = {"pipeline": self.pipeline, "launch": self.launch, "poll_seconds": self.poll_seconds}
        return f"{type(self).__module__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at the driver until there is something to report."""
        deployments, looked = Deployments(self.pipeline), time.monotonic()
        progress: Progress | None = None
        log: logs.FollowedLog | ApplicationLog | None = None
        while True:
            try:
                event = await _asked(liveness.look_at, self.pipeline, self.launch)
                if event is None and time.monotonic() - looked > _LOOK_AT_PROGRESS:
                    looked = time.monotonic()
                    if log is None:
                        log = await _asked(logs.log_of, self.launch)
                    for line in await _asked(log.new_lines):
                        self.log.info("driver: %s", line)
                    if progress is None:
                        stalls = await _asked(restarts.stalls_in_a_row, self.pipeline, self.launch)
                        progress = Progress(patience_after(stalls))
                    event = await _asked(look_at_progress, self.pipeline, progress, looked, self.launch)
                    # A driver that a person started is theirs to replace.
                    if event is None and self.launch:
                        event = await _asked(deployments.event)
            except ServiceUnreachable as error:
                # The driver survives without Kafka and PostgreSQL for a while, and reports itself when it does not.
                self.log.warning("cannot look at the driver now: %s", error)
                event = None
            if event is not None:
                yield TriggerEvent(event)
                return
            await asyncio.sleep(self.poll_seconds)

    async def on_kill(self) -> None:
        """Stop the driver: a person ended the task. (A restarting triggerer only cleans up.)

        One whose task Airflow has no more goes on, for the next run to adopt: `airflow db clean` deletes rows by their
        age, whatever their state, and so those of the stream that has run longest. So does one whose task still waits:
        another triggerer took it over while this one was away. When Airflow does not tell, the driver is stopped.
        """
        try:
            why = await asyncio.wait_for(asyncio.to_thread(_why_it_goes_on, self.task_instance), _ANSWER_WITHIN)
        except Exception as error:  # whatever it is, the task ends now, and its driver must not outlive it
            self.log.warning("Airflow does not tell what became of the task: %r", error)
            why = ""
        if why:
            self.log.info("%s: its driver goes on", why)
            return
        await asyncio.to_thread(launching.stop_driver, self.pipeline, self.launch)


def _why_it_goes_on(task: Any) -> str:
    """Return why nobody has ended the task, by its state in Airflow; empty when a person ended or cleared it."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if task is None:
        return ""
    states = RuntimeTaskInstance.get_task_states(task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id])
    of_run = states.get(task.run_id, {})
    if task.task_id not in of_run:
        return "the task was deleted from Airflow's database"
    return "another triggerer watches the task" if of_run[task.task_id] == TaskInstanceState.DEFERRED else ""


class StreamOperator(SparkSubmitOperator):
    """Makes sure that the pipeline's driver runs, then waits for its end without a worker slot."""

    operator_extra_links = STREAM_LINKS

    def __init__(self, *, pipeline: str, **kwargs: Any) -> None:
        super().__init__(application=str(JOBS / "stream.py"), name=f"stream {pipeline}", durable=False, **kwargs)
        self.pipeline = pipeline
        self._watched: str | None = None

    def execute(self, context: Context) -> None:
        """Adopt the live driver, or note the intent and launch one; then defer."""
        try:
            self._watched = launch = self._adopt_or_launch()
        except TidemarkError as error:
            # Of a driver that may live, or before the ledger could be asked: no launch is noted, so nobody counts it.
            if error.retryable:
                raise AirflowException(str(error)) from None
            raise self._paused(f"{error} — ") from None
        noted = launches.find(launch)
        context["ti"].xcom_push(key="log", value=noted.log if noted else "")
        push_links(context, self)
        self.defer(
            trigger=StreamTrigger(self.pipeline, launch), method_name="execute_complete", kwargs={"launch": launch}
        )

    def on_kill(self) -> None:
        """Stop the driver: the task was ended before it was deferred. Raises AirflowException, ServiceUnreachable.

        Airflow goes on with the task after this until it kills it: it would launch a driver that nobody watches.
        """
        if self._watched is not None:
            launching.stop_driver(self.pipeline, self._watched, patience=10)
        elif self._hook is not None:
            # Not by the hook, which asks the command `yarn`: it need not be here.
            application, self._hook._yarn_application_id = self._hook._yarn_application_id, None
            self._hook.on_kill()
            if application:
                yarn.kill(yarn.resource_manager(), application)
            newest = launches.last(self.pipeline)
            if newest is not None and newest.is_on_yarn and newest.exit_code is None and not newest.application:
                # The next try would wait for it as for a driver that starts.
                launches.note_end(newest.id, 0)
        raise AirflowException("the task was ended before it watched its driver")

    def _adopt_or_launch(self) -> str:
        """Return the launch to watch; empty for a driver that a person started.

        Raises Airflow's exceptions of `_failure` when there is none to adopt, and none can be submitted.
        """
        live = writers.live_writer(self.pipeline)
        if live is not None:
            self.log.info("adopting the driver that runs already: %s, fencing token %s", live.holder, live.token)
            its_launch = launches.launch_of(self.pipeline, live)
            return its_launch.id if its_launch is not None else ""
        newest = launches.last(self.pipeline)
        if newest is not None and newest.exit_code is None:
            if liveness.look_at(self.pipeline, newest.id) is None:
                self.log.info("adopting a driver that is starting: %s", newest.application or f"pid {newest.pid}")
                return newest.id
            if (process := liveness.process_of(newest)) is not None:
                self.log.info("the driver before holds no lease: stopping pid %s first", process.pid)
                launching.stop_driver(self.pipeline, newest.id, patience=10)
            elif applications.is_alive(newest):
                self.log.info("the driver before holds no lease: killing %s first", newest.application)
                applications.kill(newest)
        launch = uuid.uuid4().hex
        try:
            return self._launch(launch)
        except AirflowException:
            # A person ended the task; or `spark-submit` failed, whose launch is noted.
            raise
        except TidemarkError as error:
            launching.note_unsubmitted(self.pipeline, launch, error)
            refused = str(error)
        except Exception as error:  # whatever it is, it counts: else it is tried again at once, and nobody is notified
            launching.note_unsubmitted(self.pipeline, launch, error)
            raise
        # Out of the block: Airflow would log the errors that led to it, too, and their texts may hold a secret.
        raise self._failure(refused)

    def _launch(self, launch: str) -> str:
        """Launch a driver where the connection says, by this id, and return the id."""
        self._hook = self._get_hook()
        if has_connection(self._hook):
            # Without it the driver is started here, as the settings alone say.
            check_master(self._hook)
        if self._hook._is_yarn_cluster_mode:
            launched = applications.launch(self.pipeline, self._hand_over, launch)
            self.log.info("handed the driver over to YARN: %s, %s", launched.application, launched.log)
        else:
            # Before it is launched: a person may end the task at any moment.
            self._watched = launch
            launched = launching.launch_driver(self.pipeline, launch)
            self.log.info("launched the driver: pid %s, log %s", launched.pid, launched.log_place)
        return launched.id

    def _hand_over(self, resolved: SparkSubmission) -> str:
        """Return the id of the application that the connection's `spark-submit` has created, without waiting for it."""
        take_submission(self, resolved)
        self._hook = hook = self._get_hook()
        hook._log = HandedOver(hook.log, DriverLines())
        hook.submit(self.application)
        if hook._yarn_application_id is None:
            raise TidemarkError("spark-submit handed nothing over to YARN", remedy="look at the lines above")
        return str(hook._yarn_application_id)

    def execute_complete(self, context: Context, event: dict[str, Any], launch: str) -> None:
        """Succeed when the driver was stopped or is replaced; fail, with the end of its log, when it failed or died."""
        if event == {"event": "finished", "exit_code": 0}:
            self.log.info("the driver was asked to stop and finished its micro-batch")
            return
        if event["event"] == "released":
            self.log.info("the driver that was started by hand is gone; the next run starts one")
            return
        if event["event"] == "replaced":
            self.log.info(
                "other code was deployed, which continues where the driver is: %s", ", ".join(event["changed"])
            )
            take_step(launches.note_reason, launch, "replaced: other code was deployed")
            take_step(launching.stop_driver, self.pipeline, launch)
            self.log.info("the driver has finished its micro-batch; the next run starts one of the new code")
            return
        noted = launches.find(launch)
        lines = logs.tail(noted)
        for line in lines:
            self.log.error("driver: %s", line)
        what = self._words(event) + f"; its log: {(noted and noted.log_place) or 'unknown'}"
        what += f"; last line: {lines[-1]}" if lines else ""
        what += f"; it cannot be read: {why}" if (why := logs.unreadable_log(noted)) else ""
        if event["event"] == "stalled":
            stalled = f"{what}; it is stopped and started again"
            send_alert(context, self.pipeline, stalled, key=stream_key(self.pipeline), query=event["query"])
            moved = take_step(restarts.has_committed, self.pipeline, event["query"], launch)
            stalled = "stalled" if moved else restarts.STALLED_AT_START
            take_step(launches.note_reason, launch, f"{stalled}: the query {event['query']} committed nothing")
            take_step(launching.stop_driver, self.pipeline, launch)
            raise AirflowException(what)
        raise self._failure(what)

    def _words(self, event: dict[str, Any]) -> str:
        driver = f"the driver of {self.pipeline}"
        if event["event"] == "stalled":
            return f"{driver} is stalled: input waits for its query {event['query']}, and nothing is committed"
        if "exit_code" not in event:
            return f"{driver} died, or never took its lease"
        code = event["exit_code"]
        return f"{driver} finished with exit code {code} ({error_class(code).meaning})"

    def _failure(self, what: str) -> AirflowException:
        """Return an error that is retried or, if no restart helps, one that fails the run and so pauses the DAG."""
        failures = take_step(restarts.failures_in_a_row, self.pipeline, restarts.IN_A_ROW)
        given_up = f"{what} — {len(failures)} failures in a row, "
        return self._paused(given_up) if backoff.is_hopeless(failures) else AirflowException(what)

    def _paused(self, what: str) -> AirflowFailException:
        """Return the error that fails the run: the DAG allows no failed one, so Airflow pauses it."""
        return AirflowFailException(
            f"{what}no restart mends this: the DAG is paused; do what the line says, then unpause "
            f"stream__{self.pipeline}"
        )
