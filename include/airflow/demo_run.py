"""The demo: services, records, stream, interval and table of a pipeline, run through Airflow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from include import kafka, lake
from include.airflow.api import AirflowApi
from include.airflow.driver import logs
from include.errors import ServiceUnreachable, TidemarkError, UsageError, error_class
from include.kafka.sources import describe_source, source_topic_partitions
from include.lake import object_store
from include.ledger import lineage
from include.ledger.archive.micro_batches import positions
from include.ledger.streams import launches
from include.pipelines.spec import Avro, Pipeline
from include.producing.generate import check_producible, produce, topic_of
from include.services import airflow, supervisor
from include.settings import settings
from include.spark.jars import ensure_fetched
from include.times import describe_duration
from include.waiting import wait_for

EVENTS = 20_000
BAD_FRACTION = 0.01

SPAN = timedelta(hours=3)
"""Time over which event times are spread, at least."""

PATIENCE = 1200
"""Seconds that the stream, and then the interval, may take on a slow machine; a run that fails is reported at once."""

_LOOKED_AT = 5
"""How many of the stream's newest launches are searched for a failed one."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo shows at its end."""

    airflow: str
    user: str
    password: str
    verdict: dict[str, Any]
    """The interval's verdict; its `registered` names the revisions."""


def run_demo(pipeline: Pipeline, progress: Callable[[str], None], *, topic: str = "") -> DemoResult:
    """Run the pipeline's stream and its last complete interval through Airflow and wait for the table.

    Messages go to `topic`, by default the first that the pipeline names. Raises UsageError before anything is started
    when none can be produced, or others have records there; ServiceUnreachable when a part does not come up; and what a
    run failed with.
    """
    check_producible(pipeline, topic)
    _check_broker(topic_of(pipeline, topic))
    _prepare_lake(progress)
    supervisor.up(["kafka", "postgres", *needed_by(pipeline), "airflow"], progress)
    # Two intervals back from now, the last complete one lies whole in the span.
    span = max(SPAN, 2 * pipeline.schedule.every)
    progress(f"producing {EVENTS} messages over the last {describe_duration(span)}")
    produce(pipeline, events=EVENTS, bad_fraction=BAD_FRACTION, span=span, topic=topic)
    address = supervisor.status()["airflow"].address
    api = AirflowApi(address, airflow.USER, airflow.password())
    stream, interval = f"stream__{pipeline.name}", f"interval__{pipeline.name}"
    _wait("Airflow to read the DAGs", lambda: {stream, interval} <= api.dag_ids(), 120, _import_errors(api))
    before = {run["dag_run_id"] for run in api.runs(interval)}
    trouble = _trouble_of_stream(pipeline, api, stream, progress)
    progress(f"unpausing {stream} and {interval}: Airflow starts the Spark stream")
    api.set_paused(stream, False)
    _wait("the stream to catch up with the topic", lambda: _caught_up(pipeline), PATIENCE, trouble)
    # Unpausing schedules the last complete interval by itself, the first time.
    api.set_paused(interval, False)
    if before:
        api.trigger(interval)
    progress(f"the stream has caught up; {interval} runs for the last complete interval")
    run = _wait_for_run(api, pipeline.name, before, progress)
    verdict = lineage.verdict_of_run(pipeline.name, f"airflow {run}")
    return DemoResult(address, airflow.USER, airflow.password(), verdict)


def _check_broker(topic: str) -> None:
    """Raise UsageError when the broker is not the embedded one and its topic has records: of these, all may be real."""
    if not (address := settings().kafka_bootstrap):
        return
    every = kafka.topic_partitions_of(kafka.describe_topics([topic]).values())
    if any(low < end for low, end in kafka.offset_bounds(every).values()):
        raise UsageError(
            f"the topic {topic} at {address} has records, and the demo would add {EVENTS:,} that are made up",
            remedy="unset TIDEMARK_KAFKA_BOOTSTRAP: the demo then starts the embedded broker; if this home has read "
            "from that one, set a TIDEMARK_HOME of its own, too",
        )


def _prepare_lake(progress: Callable[[str], None]) -> None:
    """Fetch what a lake in a bucket needs. Raises ServiceUnreachable when there is no such bucket, or it refuses."""
    if not object_store.is_bucket_uri(lake.root()):
        return
    if not lake.root_is_available():
        raise ServiceUnreachable(
            f"the lake {lake.root()}: the bucket does not exist", remedy="create it, or correct TIDEMARK_LAKE"
        )
    ensure_fetched("s3", progress)


def needed_by(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the services that only some pipelines need."""
    return ("registry",) if isinstance(pipeline.decoder, Avro) else ()


def _wait(what: str, ready: Callable[[], bool], seconds: float, trouble: Callable[[], str] = lambda: "") -> None:
    def look() -> str:
        return "ready" if ready() else trouble()

    state = wait_for(look, seconds=seconds) or f"not within {seconds:.0f} s"
    if state != "ready":
        raise ServiceUnreachable(f"waited for {what}: {state}", remedy="./tidemark status; see the logs in Airflow")


def _import_errors(api: AirflowApi) -> Callable[[], str]:
    return lambda: "; ".join(e["stack_trace"].strip().splitlines()[-1] for e in api.import_errors())


def _caught_up(pipeline: Pipeline) -> bool:
    ends = kafka.offset_bounds(source_topic_partitions(pipeline.source, describe_source(pipeline.source)))
    queries = ("archive", *(view.name for view in pipeline.views))
    return all(positions(pipeline.name, query).get(tp, 0) >= end for query in queries for tp, (_, end) in ends.items())


def _trouble_of_stream(
    pipeline: Pipeline, api: AirflowApi, dag: str, progress: Callable[[str], None]
) -> Callable[[], str]:
    """Return a function that reports why drivers failed, and raises what they failed with when the newest run did.

    What failed before this call is left out: a stopped stream has a failed run too.
    """
    old = {run["dag_run_id"] for run in api.runs(dag) if run["state"] == "failed"}
    before = frozenset(launch.id for launch in launches.recent(pipeline.name, _LOOKED_AT))
    told = set(before)

    def look() -> str:
        tell_failures(pipeline, told, progress)
        newest = api.runs(dag)[:1]
        failed = [run["dag_run_id"] for run in newest if run["state"] == "failed" and run["dag_run_id"] not in old]
        if failed:
            since = (each for each in launches.recent(pipeline.name, _LOOKED_AT) if each.id not in before)
            codes = [launch.exit_code for launch in since if launch.exit_code]
            raise error_class(codes[0] if codes else ServiceUnreachable.exit_code)(
                f"run {failed[0]} of {dag} failed", remedy="./tidemark status; see the logs in Airflow"
            )
        return ""

    return look


def tell_failures(pipeline: Pipeline, told: set[str], progress: Callable[[str], None]) -> None:
    """Report why drivers of the stream failed that are not in `told`, and add them: Airflow starts the next one."""
    for launch in reversed(launches.recent(pipeline.name, _LOOKED_AT)):
        if launch.exit_code and launch.id not in told:
            told.add(launch.id)
            last = "".join(logs.tail(launch)[-1:])
            what = f"ended with exit code {launch.exit_code}" if launch.was_submitted else launch.ended_for
            progress(f"  the stream's driver {what}: {last or launch.log}")


def _wait_for_run(api: AirflowApi, pipeline: str, before: set[str], progress: Callable[[str], None]) -> str:
    dag, told = f"interval__{pipeline}", dict[str, str]()

    def state() -> dict[str, Any]:
        runs = [run for run in api.runs(dag) if run["dag_run_id"] not in before]
        if not runs:
            return {}
        run = runs[-1]
        for name, each in api.tasks(dag, run["dag_run_id"]).items():
            if each in ("running", "success", "failed") and told.get(name) != each:
                told[name] = each
                progress(f"  {name}: {each}")
        return run if run["state"] in ("success", "failed") else {}

    run = wait_for(state, seconds=PATIENCE)
    if not run:
        raise ServiceUnreachable(f"no run of {dag} ended within {PATIENCE} s", remedy="look at it in Airflow")
    if run["state"] == "failed":
        failed = [name for name, each in told.items() if each == "failed"]
        code = lineage.exit_code_of_run(pipeline, f"airflow {run['dag_run_id']}")
        raise error_class(code or TidemarkError.exit_code)(
            f"{dag} {run['dag_run_id']} failed in {', '.join(failed)}", remedy=f"its log is in {api.address}"
        )
    return str(run["dag_run_id"])
