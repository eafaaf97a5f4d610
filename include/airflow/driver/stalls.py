"""Whether a driver is stalled: what waits for its queries, as Kafka has it."""

from __future__ import annotations

from typing import Any

from include.airflow.driver import liveness
from include.airflow.progress import Progress
from include.errors import UsageError
from include.ledger.streams import writers
from include.monitor.lag import lag_of, queries_that_run
from include.pipelines import load_pipeline, pipeline_names


def look_at_progress(pipeline: str, progress: Progress, now: float, launch: str) -> dict[str, Any] | None:
    """Return the event of a stream with a stalled query; None for a stream that works.

    An output that waits does not count: its database comes back without another driver. Nor does a view that was
    deployed since the driver was started: the next one begins it. Of a pipeline that is no longer declared, or whose
    declaration is refused, nobody knows what waits: its driver is left to the ledger, and to `./tidemark doctor`. While
    a command holds the lease, an erasure for example, nothing is to be committed.
    """
    if pipeline not in pipeline_names() or liveness.is_command(writers.live_writer(pipeline), launch):
        return None
    try:
        declared = load_pipeline(pipeline)
    except UsageError:
        return None
    watched = {*queries_that_run(declared)} - {each.name for each in declared.outputs}
    query = progress.stalled((each for each in lag_of(declared) if each.query in watched), now)
    return None if query is None else {"event": "stalled", "query": query}
