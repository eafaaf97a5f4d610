"""`/metrics`: what the pages show, in Prometheus's text format.

Everything is read again for each scrape, by the functions that the pages use. While the ledger is down there is one
sample, `tidemark_ledger_up` 0: old numbers would look like new ones. So it is while the ledger hangs: that is said
before Prometheus gives up (`scrape_timeout` in include/deploy/prometheus).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from include import kafka
from include.alerts.channels import ALERTS
from include.errors import TidemarkError
from include.ledger.archive.committed import first_commit
from include.ledger.completeness import completeness, partition_completeness
from include.ledger.connection import check_answers, reading
from include.ledger.intervals.states import IntervalState
from include.ledger.streams import launches, progress, writers
from include.ledger.streams.overview import RECENTLY, quarantined_by_reason
from include.ledger.streams.restarts import IN_A_ROW, failures_so_far
from include.ledger.totals import IntervalCount, interval_counts, key_counts, ledger_bytes
from include.monitor.lag import queries_of
from include.monitor.ledger_patience import ANSWER_SECONDS, READ_SECONDS, within
from include.monitor.missing import summarize_missing
from include.monitor.open_alerts import alerts_of
from include.monitor.streams.broker import broker_watch
from include.monitor.streams.gauges import (
    KEYS,
    OFFSETS,
    QUERY,
    STREAM,
    WAITS,
    Observed,
    gauges,
    samples_of_lag,
    samples_of_query,
    samples_of_stream,
    samples_of_waits,
)
from include.monitor.streams.state import stream_state
from include.pipelines.spec import Pipeline

_STATES = ("good", "open", "bad")


@dataclass(frozen=True)
class Scrape:
    """All that is exported."""

    pipelines: Sequence[Observed] = ()
    intervals: Sequence[IntervalCount] = ()
    open_alerts: Mapping[str, int] = field(default_factory=dict)
    """By pipeline, also of those whose declaration is refused or gone."""
    ledger_bytes: int = 0
    alerts: int | None = None
    """None while the broker does not answer."""
    is_ledger_up: bool = True


def metrics_text(pipelines: Iterable[Pipeline], may_read: Callable[[str], bool] | None = None) -> bytes:
    """Return the metrics of these pipelines; `may_read`: whose alerts are counted, by default theirs."""
    return as_text(read(pipelines, may_read))


def as_text(scrape: Scrape) -> bytes:
    """Return what was read in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Families(scrape))
    return generate_latest(registry)


def read(pipelines: Iterable[Pipeline], may_read: Callable[[str], bool] | None = None) -> Scrape:
    """Read everything that is exported."""
    declared = list(pipelines)
    broker_watch().watch(declared)
    try:
        check_answers(ANSWER_SECONDS)
        for each in declared:
            # The first look at a broker takes its time, which is not the ledger's.
            broker_watch().view(each)
        scrape = within(READ_SECONDS, lambda: _read_ledger(declared, may_read))
    except TidemarkError:
        # Also of a ledger whose tables are of another version of the code.
        return Scrape(is_ledger_up=False)
    return replace(scrape, alerts=_alerts(scrape.pipelines))


def _read_ledger(declared: Sequence[Pipeline], may_read: Callable[[str], bool] | None) -> Scrape:
    # All plain SQL uses one connection and one snapshot.
    with reading():
        observed = [_observe(each) for each in declared]
        names = [each.name for each in declared]
        raised = dict.fromkeys(names, 0) | Counter(each.pipeline for each in alerts_of(may_read or names.__contains__))
    counts = [each for each in interval_counts() if each.pipeline in names]
    return Scrape(observed, counts, raised, ledger_bytes())


def _observe(pipeline: Pipeline) -> Observed:
    state, broker = stream_state(pipeline), broker_watch().view(pipeline)
    return Observed(
        state,
        # The last lags of a broker that is down would look like current ones, and 0 of a log that was cut back like one
        # of which nothing waits.
        () if broker.error or broker.log_error else broker.lags,
        {query: told[-1] for query, told in progress.recent(pipeline.name, 1).items() if query in queries_of(pipeline)},
        quarantined_by_reason(pipeline.name),
        quarantined_by_reason(pipeline.name, RECENTLY),
        len(failures_so_far(pipeline.name, IN_A_ROW, is_led=_is_led_by_newest(pipeline.name))),
        summarize_missing(pipeline),
        completeness(pipeline.name),
        partition_completeness(pipeline.name),
        _keys(pipeline),
        pipeline.schedule.every,
        pipeline.schedule.registered_within,
        first_commit(pipeline.name),
    )


def _is_led_by_newest(pipeline: str) -> bool:
    """Return whether the newest launch's driver holds the lease, and not one that a person started."""
    newest, live = launches.last(pipeline), writers.live_writer(pipeline)
    return newest is not None and live is not None and launches.holds_lease(newest, live)


def _keys(pipeline: Pipeline) -> dict[str, tuple[int, int]]:
    limits = {view.name: view.max_keys for view in pipeline.views if view.is_total}
    counts = key_counts(pipeline.name) if limits else {}
    return {name: (counts[name], limit) for name, limit in limits.items() if name in counts}


def _alerts(observed: Sequence[Observed]) -> int | None:
    """Return how many alerts were ever sent; None while the broker is down: a scrape does not wait for it."""
    # One pipeline's error may be about its own topics.
    if all(each.state.lag.error for each in observed):
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
        """Yield every family, even without a sample: names do not come and go."""
        scrape = self._scrape
        said = "1: the ledger answers, and its tables are of this version of the code"
        yield GaugeMetricFamily("tidemark_ledger_up", said, value=float(scrape.is_ledger_up))
        size = GaugeMetricFamily("tidemark_ledger_bytes", "Size of the ledger's database")
        if scrape.is_ledger_up:
            size.add_metric([], scrape.ledger_bytes)
        yield size
        yield from _of_alerts(scrape)
        yield from gauges(STREAM, ("pipeline",), (samples_of_stream(each) for each in scrape.pipelines))
        yield from gauges(
            WAITS, ("pipeline", "query"), (waits for each in scrape.pipelines for waits in samples_of_waits(each))
        )
        yield from gauges(
            OFFSETS,
            ("pipeline", "query", "topic", "partition"),
            (samples_of_lag(lag) for each in scrape.pipelines for lag in each.lags),
        )
        yield from gauges(
            QUERY,
            ("pipeline", "query"),
            (
                samples_of_query(each.state.pipeline, told, is_current=each.is_current(told))
                for each in scrape.pipelines
                for told in each.queries.values()
            ),
        )
        yield from gauges(
            KEYS,
            ("pipeline", "view"),
            (
                ((each.state.pipeline, view), dict(zip(KEYS, counted, strict=True)))
                for each in scrape.pipelines
                for view, counted in each.keys.items()
            ),
        )
        yield from _by_kind(scrape)
        yield from _of_intervals(scrape)
        yield from _of_completeness(scrape)


def _of_alerts(scrape: Scrape) -> Iterator[Metric]:
    sent = CounterMetricFamily("tidemark_alerts", "Messages about alerts sent to the operators, ends included")
    if scrape.alerts is not None:
        sent.add_metric([], scrape.alerts)
    raised = GaugeMetricFamily("tidemark_open_alerts", "Alerts that are open", labels=("pipeline",))
    for pipeline, count in scrape.open_alerts.items():
        raised.add_metric((pipeline,), count)
    yield from (sent, raised)


def _by_kind(scrape: Scrape) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        "tidemark_stream_state", "1 for the state of the stream's sentence", labels=("pipeline", "state")
    )
    reasons = CounterMetricFamily(
        "tidemark_quarantined_records", "Records that came into quarantine", labels=("pipeline", "reason")
    )
    recent = GaugeMetricFamily(
        "tidemark_quarantined_recently",
        "Records that came into quarantine in this hour of the clock and in the one before",
        labels=("pipeline", "reason"),
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
        for reason in each.recent_reasons:
            recent.add_metric((name, reason.reason), reason.records)
        for query, told in each.queries.items():
            if not each.is_current(told):
                continue
            for part, seconds in told.parts.items():
                parts.add_metric((name, query, part), seconds)
    yield from (state, reasons, recent, parts)


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
    """Yield until when everything is registered; no sample if nothing is."""
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
