"""`/metrics`: what the pages show, in Prometheus's text format.

Everything is read anew for each scrape, by the functions that the pages use. While the ledger is away there is one
sample, `tidemark_ledger_up` 0: old numbers would look like new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from include import kafka
from include.errors import ServiceUnreachable, TidemarkError
from include.ledger.completeness import Completeness, PartitionCompleteness, completeness, partition_completeness
from include.ledger.intervals.states import IntervalState
from include.ledger.streams import progress
from include.ledger.streams.overview import ReasonCount, quarantined_by_reason
from include.ledger.streams.progress import QueryProgress
from include.ledger.streams.restarts import failures_in_a_row
from include.ledger.totals import IntervalCount, interval_counts, ledger_bytes
from include.monitor.lag import Lag
from include.monitor.missing import MissingSummary, summarize_missing
from include.monitor.streams.broker import broker_watch
from include.monitor.streams.state import StreamState, stream_state
from include.pipelines.spec import Pipeline

ALERTS = "tidemark-alerts"
"""Topic of the alerts (include/airflow/notifier.py)."""

_AN_HOUR = timedelta(hours=1)

_STATES = ("good", "open", "bad")

STREAM = {
    "tidemark_stream_live": "1: a driver holds the lease",
    "tidemark_stream_fencing_token": "Fencing token of the last driver",
    "tidemark_stream_generation": "Generation of the stream",
    "tidemark_stream_failures_in_a_row": "Starts by Airflow that failed within an hour, one after the other",
    "tidemark_last_commit_timestamp_seconds": "When the archive's last micro-batch was committed",
    "tidemark_lag_seconds": "How long the longest waiting record waits for the archive; 0 when none waits",
    "tidemark_broker_up": "1: the broker can be seen",
    "tidemark_broker_seen_timestamp_seconds": "When the broker was last seen",
    "tidemark_records_last_hour": "Records committed in the last hour",
    "tidemark_quarantined_last_hour": "Records that came into quarantine in the last hour",
}
"""Gauges with the label `pipeline`."""

QUERY = {
    "tidemark_query_input_rows_per_second": "Records that arrived per second",
    "tidemark_query_processed_rows_per_second": "Records that were worked off per second",
    "tidemark_query_batch_seconds": "Duration of the last micro-batch",
    "tidemark_query_watermark_delay_seconds": "From the watermark to the last micro-batch",
    "tidemark_query_state_rows": "Rows in the state store",
    "tidemark_query_state_bytes": "Memory that these take",
    "tidemark_query_progress_timestamp_seconds": "When the query last told of itself",
}
"""Gauges with the labels `pipeline` and `query`."""

OFFSETS = {
    "tidemark_committed_offset": "Next offset to be committed",
    "tidemark_end_offset": "End offset of the topic partition",
    "tidemark_lag_offsets": "Offsets that are not committed yet",
}
"""Gauges with the labels `pipeline`, `query`, `topic` and `partition`."""


@dataclass(frozen=True)
class Observed:
    """A pipeline's part of a scrape."""

    state: StreamState
    lags: Sequence[Lag]
    queries: Mapping[str, QueryProgress]
    """The last progress of each."""
    reasons: Sequence[ReasonCount]
    failures: int
    missing: MissingSummary
    complete: Completeness
    partitions: Sequence[PartitionCompleteness]


@dataclass(frozen=True)
class Scrape:
    """All that is exported."""

    pipelines: Sequence[Observed] = ()
    intervals: Sequence[IntervalCount] = ()
    ledger_bytes: int = 0
    alerts: int | None = None
    """None: the broker does not say."""
    is_ledger_up: bool = True


def metrics_text(pipelines: Iterable[Pipeline]) -> bytes:
    """Return the metrics of these pipelines."""
    return as_text(read(pipelines))


def as_text(scrape: Scrape) -> bytes:
    """Return what was read in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Families(scrape))
    return generate_latest(registry)


def read(pipelines: Iterable[Pipeline]) -> Scrape:
    """Read everything that is exported."""
    declared = list(pipelines)
    broker_watch().watch(declared)
    try:
        observed = [_observe(each) for each in declared]
        names = {each.state.pipeline for each in observed}
        counts = [each for each in interval_counts() if each.pipeline in names]
        return Scrape(observed, counts, ledger_bytes(), _alerts(observed))
    except ServiceUnreachable:
        return Scrape(is_ledger_up=False)


def _observe(pipeline: Pipeline) -> Observed:
    state = stream_state(pipeline)
    return Observed(
        state,
        broker_watch().view(pipeline).lags,
        {query: told[-1] for query, told in progress.recent(pipeline.name, 1).items()},
        quarantined_by_reason(pipeline.name),
        len(failures_in_a_row(pipeline.name, _AN_HOUR)),
        summarize_missing(pipeline),
        completeness(pipeline.name),
        partition_completeness(pipeline.name),
    )


def _alerts(observed: Sequence[Observed]) -> int | None:
    """Return how many alerts were ever sent; None while the broker is away: a scrape does not wait for it."""
    if not observed or any(each.state.lag.error for each in observed):
        return None
    try:
        topics = kafka.describe_topics([ALERTS])
        bounds = kafka.offset_bounds(kafka.topic_partitions_of(topics.values()))
    except TidemarkError:
        return None
    return sum(end for _, end in bounds.values())


class _Families(Collector):
    """The families of one scrape."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterator[Metric]:
        """Yield every family, also one without a sample: names do not come and go."""
        scrape = self._scrape
        up = GaugeMetricFamily("tidemark_ledger_up", "1: the ledger answers", value=float(scrape.is_ledger_up))
        yield up
        size = GaugeMetricFamily("tidemark_ledger_bytes", "Size of the ledger's database")
        if scrape.is_ledger_up:
            size.add_metric([], scrape.ledger_bytes)
        yield size
        alerts = CounterMetricFamily("tidemark_alerts", "Alerts sent to the operators")
        if scrape.alerts is not None:
            alerts.add_metric([], scrape.alerts)
        yield alerts
        yield from _gauges(STREAM, ("pipeline",), (_of_stream(each) for each in scrape.pipelines))
        yield from _gauges(
            OFFSETS,
            ("pipeline", "query", "topic", "partition"),
            (_of_lag(lag) for each in scrape.pipelines for lag in each.lags),
        )
        yield from _gauges(
            QUERY,
            ("pipeline", "query"),
            (_of_query(each.state.pipeline, told) for each in scrape.pipelines for told in each.queries.values()),
        )
        yield from _by_kind(scrape)
        yield from _of_intervals(scrape)
        yield from _of_completeness(scrape)


_Samples = tuple[Sequence[str], Mapping[str, float | None]]
"""Values of the labels, and of the gauges by their names; None: no sample."""


def _gauges(described: Mapping[str, str], labels: Sequence[str], samples: Iterable[_Samples]) -> Iterator[Metric]:
    families = {name: GaugeMetricFamily(name, text, labels=labels) for name, text in described.items()}
    for values, measured in samples:
        for name, value in measured.items():
            if value is not None:
                families[name].add_metric(values, value)
    yield from families.values()


def _of_stream(each: Observed) -> _Samples:
    state = each.state
    # Nothing waits: 0. The broker was never seen: unknown.
    behind = 0.0 if state.lag.offsets == 0 and not state.lag.error else state.lag.seconds
    values = (
        float(bool(state.holder)),
        state.token,
        state.generation,
        each.failures,
        state.committed_at.timestamp() if state.committed_at else None,
        behind,
        float(not state.lag.error),
        state.lag.seen_at.timestamp() if state.lag.seen_at else None,
        state.records,
        state.quarantined,
    )
    return (state.pipeline,), dict(zip(STREAM, values, strict=True))


def _of_lag(lag: Lag) -> _Samples:
    labels = (lag.pipeline, lag.query, lag.topic, str(lag.partition))
    return labels, dict(zip(OFFSETS, (lag.committed, lag.end, lag.lag), strict=True))


def _of_query(pipeline: str, told: QueryProgress) -> _Samples:
    values = (
        told.input_rate,
        told.processing_rate,
        told.seconds,
        (told.at - told.watermark).total_seconds() if told.watermark else None,
        told.state_rows,
        told.state_bytes,
        told.at.timestamp(),
    )
    return (pipeline, told.query), dict(zip(QUERY, values, strict=True))


def _by_kind(scrape: Scrape) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "tidemark_stream_state", "1 for the state of the stream's sentence", labels=("pipeline", "state")
    )
    reasons = CounterMetricFamily(
        "tidemark_quarantined_records", "Records that came into quarantine", labels=("pipeline", "reason")
    )
    parts = GaugeMetricFamily(
        "tidemark_query_part_seconds", "The last micro-batch by part", labels=("pipeline", "query", "part")
    )
    for each in scrape.pipelines:
        name = each.state.pipeline
        for one in _STATES:
            state.add_metric((name, one), float(each.state.tone == one))
        for reason in each.reasons:
            reasons.add_metric((name, reason.reason), reason.records)
        for query, told in each.queries.items():
            for part, seconds in told.parts.items():
                parts.add_metric((name, query, part), seconds)
    yield from (state, reasons, parts)


def _of_intervals(scrape: Scrape) -> Iterator[Metric]:
    counts = GaugeMetricFamily("tidemark_intervals", "Pinned intervals by state", labels=("pipeline", "state"))
    last = GaugeMetricFamily(
        "tidemark_last_registered_interval_end_timestamp_seconds",
        "End of the last registered interval",
        labels=("pipeline",),
    )
    for each in scrape.intervals:
        counts.add_metric((each.pipeline, each.state), each.count)
        if each.state == IntervalState.REGISTERED:
            last.add_metric((each.pipeline,), each.last_end.timestamp())
    missing = GaugeMetricFamily("tidemark_missing_intervals", "Intervals never built", labels=("pipeline",))
    offsets = GaugeMetricFamily("tidemark_missing_offsets", "Offsets of intervals never built", labels=("pipeline",))
    for one in scrape.pipelines:
        missing.add_metric((one.state.pipeline,), one.missing.count)
        offsets.add_metric((one.state.pipeline,), one.missing.offsets)
    yield from (counts, last, missing, offsets)


def _of_completeness(scrape: Scrape) -> Iterator[Metric]:
    """Yield until when everything is registered; without a sample where nothing is."""
    until = GaugeMetricFamily(
        "tidemark_complete_until_timestamp_seconds", "Until when the tables are complete", labels=("pipeline",)
    )
    partitions = GaugeMetricFamily(
        "tidemark_partition_complete_until_timestamp_seconds",
        "The same per topic partition",
        labels=("pipeline", "topic", "partition"),
    )
    for each in scrape.pipelines:
        if each.complete.complete_until:
            until.add_metric((each.state.pipeline,), each.complete.complete_until.timestamp())
        for one in each.partitions:
            if one.complete_until:
                labels = (each.state.pipeline, one.topic_partition.topic, str(one.topic_partition.partition))
                partitions.add_metric(labels, one.complete_until.timestamp())
    yield from (until, partitions)
