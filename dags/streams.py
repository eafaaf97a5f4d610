"""One continuous DAG per pipeline: its Spark stream, launched detached and watched."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import DAG

from include.airflow.backoff import ALERT_AFTER, GIVE_UP_AFTER, RETRIES, StreamBackoff
from include.airflow.dag_files import make_dags
from include.airflow.interval_run.links import DATA_WAY
from include.airflow.notifier import ALERTS, AlertNotifier, ended_key
from include.airflow.streams import StreamOperator
from include.monitor.lag import STALLED_AFTER
from include.pipelines import declarations
from include.pipelines.spec import Pipeline

DOC = """
### Stream of {name}

![The stream lands a topic and keeps its views; scheduled intervals prove both; the ledger records every step]({picture})

**What**: {description}. One Spark application: the archive query lands the topic, each speed view keeps its compacted topic.

**When**: always. A run lasts as long as its driver; the next run begins when it ends.

**Reads** {topics}. **Writes** landing files, quarantine, {views}; commits every micro-batch in the ledger.

**A failure** means that the driver died, stopped with an error, could not be submitted, or is stalled: input waits for a query that has committed
nothing for {stalled}. The log of the task ends with the driver's last lines. It is started again after 5 seconds, with each
further failure in a row later, at most after 5 minutes; whatever it had not committed is read again, nothing is doubled. The
{alert_after}rd failure in a row, and every stall, leaves an alert in the Kafka topic `{alerts}`.

- *offsets lost, topic recreated* (exit code 4), *wrong settings* (64), *a record cannot be decoded* (2): a restart does not help.
  After {give_up_after} in a row the run fails, the DAG is paused, and the alert says what to do; then unpause it.
- *another writer* (5): a driver started elsewhere holds the pipeline. Stop one: `./tidemark stream {name} --stop`.
- *service unreachable* (6): `./tidemark status`.

**Deployed code**: a driver keeps the code that it was started with, and its page says so. {new_code}

**To stop it**: pause the DAG, then mark the running task as failed, or `./tidemark stream {name} --stop`. Only the latter
ends a driver whose task was marked in the seconds before Airflow's triggerer watched it.
A restart of Airflow does not stop the driver: the next run adopts it.
"""

RESTARTS = (
    "When the new code can continue from its position, this driver ends after its micro-batch, and the next run starts "
    "another."
)
STAYS = "`./tidemark stream {name} --stop` ends this driver after its micro-batch, and the next run starts another."


def stream_dag(pipeline: Pipeline) -> DAG:
    """Return the DAG `stream__<pipeline>`."""
    with DAG(
        f"stream__{pipeline.name}",
        description=f"Stream: {pipeline.description}",
        schedule="@continuous",
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        # A run fails only when a restart cannot help, or when a person ends it: then no run follows by itself.
        max_consecutive_failed_dag_runs=1,
        is_paused_upon_creation=True,
        auto_register=False,
        tags=["tidemark", "stream", pipeline.name],
        doc_md=DOC.format(
            name=pipeline.name,
            picture=DATA_WAY,
            description=pipeline.description,
            topics=str(pipeline.source),
            views=", ".join(view.speed.topic for view in pipeline.views) or "no speed view",
            new_code=RESTARTS if pipeline.restarts_on_new_code else STAYS.format(name=pipeline.name),
            alerts=ALERTS,
            alert_after=ALERT_AFTER,
            give_up_after=GIVE_UP_AFTER,
            stalled=f"{STALLED_AFTER.total_seconds() / 60:.0f} minutes",
        ),
    ) as dag:
        StreamOperator(
            task_id="stream",
            pipeline=pipeline.name,
            # Before all that waits for a task slot or for the triggerer: a stream that nobody watches is not started again.
            priority_weight=100,
            retries=RETRIES,
            retry_policy=StreamBackoff(pipeline.name),
            # Used while the ledger cannot be asked how often the stream failed.
            retry_delay=timedelta(seconds=30),
            on_failure_callback=AlertNotifier(pipeline.name, ended_key(pipeline.name)),
        )
    return dag


made = make_dags(stream_dag, declarations().pipelines)
globals().update(made.dags)
