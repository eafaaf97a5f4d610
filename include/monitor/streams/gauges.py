"""The gauges of `/metrics`: what is read of a pipeline, the gauges' names, and the samples made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from prometheus_client.core import GaugeMetricFamily, Metric

from include.ledger.completeness import Completeness, PartitionCompleteness
from include.ledger.streams.overview import ReasonCount
from include.ledger.streams.progress import QueryProgress
from include.monitor.lag import Lag
from include.monitor.missing import MissingSummary
from include.monitor.streams.state import StreamState

STREAM = {
    "tidemark_stream_live": "1: a driver holds the lease",
    "tidemark_stream_fencing_token": "Fencing token of the last driver",
    "tidemark_stream_generation": "Generation of the stream",
    "tidemark_stream_failures_in_a_row": "Starts by Airflow that failed within an hour, one after the other",
    "tidemark_last_commit_timestamp_seconds": "When the archive's last micro-batch was committed",
    "tidemark_first_commit_timestamp_seconds": "When the archive's first micro-batch was committed",
    "tidemark_lag_seconds": "How long the longest waiting record waits for the archive; 0 when none waits",
    "tidemark_broker_up": "1: the broker can be seen",
    "tidemark_broker_seen_timestamp_seconds": "When the broker was last seen",
    "tidemark_records_last_hour": "Records committed in the last hour",
    "tidemark_quarantined_last_hour": "Records that came into quarantine in the last hour",
    "tidemark_interval_seconds": "Length of the pipeline's intervals",
    "tidemark_registered_within_seconds": "How long after its end an interval is to be registered",
}
"""Gauges with the label `pipeline`."""

WAITS = {"tidemark_query_lag_seconds": "How long the longest waiting record waits for the query; 0 when none waits"}
"""Gauges with the labels `pipeline` and `query`, by the broker; `QUERY` is by what Spark reports."""

REPORTED_AT = "tidemark_query_progress_timestamp_seconds"

QUERY = {
    "tidemark_query_input_rows_per_second": "Records that arrived per second",
    "tidemark_query_processed_rows_per_second": "Records that were processed per second",
    "tidemark_query_batch_seconds": "Duration of the last micro-batch",
    "tidemark_query_watermark_delay_seconds": "From the watermark to the last micro-batch",
    "tidemark_query_state_rows": "Rows in the state store",
    "tidemark_query_state_bytes": "Memory that these take",
    REPORTED_AT: "When the query last reported its progress",
}
"""Gauges with the labels `pipeline` and `query`."""

KEYS = {
    "tidemark_view_keys": "Keys of a view without a window",
    "tidemark_view_keys_limit": "Keys that it is declared to have at most",
}
"""Gauges with the labels `pipeline` and `view`."""

OFFSETS = {
    "tidemark_committed_offset": "Next offset to be committed",
    "tidemark_end_offset": "End offset of the topic partition's committed records",
    "tidemark_lag_offsets": "Offsets before that end that are not committed yet",
}
"""Gauges with the labels `pipeline`, `query`, `topic` and `partition`."""


@dataclass(frozen=True)
class Observed:
    """A pipeline's part of a scrape."""

    state: StreamState
    lags: Sequence[Lag]
    queries: Mapping[str, QueryProgress]
    """The last progress of each declared query."""
    reasons: Sequence[ReasonCount]
    recent_reasons: Sequence[ReasonCount]
    """Those of this hour of the clock and of the one before."""
    failures: int
    missing: MissingSummary
    complete: Completeness
    partitions: Sequence[PartitionCompleteness]
    keys: Mapping[str, tuple[int, int]]
    """For views without a window: their keys, and the limit."""
    interval: timedelta
    """Length of the schedule's intervals."""
    registered_within: timedelta
    """How long after its end an interval is to be registered."""
    first_commit: datetime | None
    """When the archive's first micro-batch was committed."""

    def is_current(self, told: QueryProgress) -> bool:
        """Return whether the driver that holds the lease reported it."""
        return told.is_current(self.state.held_since)


Samples = tuple[Sequence[str], Mapping[str, float | None]]
"""Values of the labels, and of the gauges by their names; None stands for no sample."""


def gauges(described: Mapping[str, str], labels: Sequence[str], samples: Iterable[Samples]) -> Iterator[Metric]:
    """Yield the families of described gauges with their samples, even those without any."""
    families = {name: GaugeMetricFamily(name, text, labels=labels) for name, text in described.items()}
    for values, measured in samples:
        for name, value in measured.items():
            if value is not None:
                families[name].add_metric(values, value)
    yield from families.values()


def samples_of_stream(each: Observed) -> Samples:
    """Return the values of `STREAM`."""
    state = each.state
    # Nothing waits: 0. The broker was never seen: unknown.
    behind = 0.0 if state.lag.offsets == 0 and not state.lag.error else state.lag.seconds
    values = (
        float(bool(state.holder)),
        state.token,
        state.generation,
        each.failures,
        state.committed_at.timestamp() if state.committed_at else None,
        each.first_commit.timestamp() if each.first_commit else None,
        behind,
        float(not state.lag.error),
        state.lag.seen_at.timestamp() if state.lag.seen_at else None,
        state.records,
        state.quarantined,
        each.interval.total_seconds(),
        each.registered_within.total_seconds(),
    )
    return (state.pipeline,), dict(zip(STREAM, values, strict=True))


def samples_of_waits(each: Observed) -> Iterator[Samples]:
    """Yield the values of `WAITS`; while the broker is away, records that waited are known to wait still."""
    for lag in each.state.lag.queries:
        waits = 0.0 if lag.offsets == 0 and not each.state.lag.error else lag.seconds
        yield (each.state.pipeline, lag.query), dict.fromkeys(WAITS, waits)


def samples_of_lag(lag: Lag) -> Samples:
    """Return the values of `OFFSETS`."""
    labels = (lag.pipeline, lag.query, lag.topic, str(lag.partition))
    return labels, dict(zip(OFFSETS, (lag.committed, lag.end, lag.lag), strict=True))


def samples_of_query(pipeline: str, told: QueryProgress, *, is_current: bool) -> Samples:
    """Return the values of `QUERY`; of what an earlier driver reported only when that was."""
    values = (
        told.input_rate,
        told.processing_rate,
        told.seconds,
        (told.at - told.watermark).total_seconds() if told.watermark else None,
        told.state_rows,
        told.state_bytes,
        told.at.timestamp(),
    )
    measured = dict(zip(QUERY, values, strict=True))
    return (pipeline, told.query), measured if is_current else {REPORTED_AT: measured[REPORTED_AT]}
