"""Lag of a pipeline's queries: the ledger's committed positions against Kafka's end offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from include import kafka
from include.errors import OffsetsLost, TidemarkError
from include.kafka.sources import check_topics_read, describe_source, source_topic_partitions
from include.kafka.truncation import check_ends
from include.ledger.archive.committed import ARCHIVE, FLAGS, begun_queries, committed_offsets, read_topics
from include.monitor.missing import MissingSummary
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline

STALLED_AFTER = timedelta(minutes=10)
"""How long a query of a live driver may commit nothing while input waits for it."""


@dataclass(frozen=True)
class Lag:
    """Lag of one query in one topic partition."""

    pipeline: str
    query: str
    """`archive`, `flags`, or the name of a speed view or an output."""
    topic: str
    partition: int
    committed: int
    """Next offset that the query will commit; before its first commit the first offset in Kafka."""
    end: int
    """End offset for read_committed readers."""

    @property
    def lag(self) -> int:
        """Number of offsets from `committed` to `end`, at least 0."""
        return max(0, self.end - self.committed)


def lag_of(pipeline: Pipeline) -> list[Lag]:
    """Return the lag of every query in every topic partition; nothing for a topic that does not exist yet.

    Raise ServiceUnreachable when Kafka does not answer.
    """
    bounds = kafka.offset_bounds(source_topic_partitions(pipeline.source, describe_source(pipeline.source)))
    lags: list[Lag] = []
    positions = committed_offsets(pipeline.name)
    for query in queries_of(pipeline):
        committed = positions.get(query, {})
        lags += [
            Lag(pipeline.name, query, tp.topic, tp.partition, committed.get(tp, low), end)
            for tp, (low, end) in sorted(bounds.items())
        ]
    return lags


def log_error(pipeline: Pipeline, lags: Iterable[Lag]) -> TidemarkError | None:
    """Return why lags tell nothing: a log was cut back or lost unread records, or a topic is another one or gone.

    None if all is well. As the stream's start finds it (`check_retention`), but in plain SQL. Raise ServiceUnreachable
    when the ledger does not answer.
    """
    read = read_topics(pipeline.name)
    reached: dict[TopicPartition, int] = {}
    for each in lags:
        tp = TopicPartition(each.topic, each.partition)
        reached[tp] = max(each.committed, reached.get(tp, 0))
    try:
        check_topics_read(pipeline.name, pipeline.source, read, describe_source(pipeline.source), archived=())
        bounds = kafka.offset_bounds(reached, "read_uncommitted")
        check_ends(pipeline.name, reached, {tp: end for tp, (_, end) in bounds.items()})
    except OffsetsLost as error:
        return error
    except TidemarkError:
        # A service that is away tells of itself, and a start of the stream of a source that does not fit.
        return None
    return unread_loss(pipeline, committed_offsets(pipeline.name).get(ARCHIVE, {}), bounds)


def unread_loss(
    pipeline: Pipeline, archived: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, tuple[int, int]]
) -> OffsetsLost | None:
    """Return that offsets from the archive's positions on were removed: not all of its lag waits.

    None if none was, and for a pipeline whose stream accepts such a loss when it starts.
    """
    if not pipeline.source.fail_on_data_loss:
        return None
    lost = [
        OffsetRange(tp, at, bounds[tp][0]) for tp, at in sorted(archived.items()) if tp in bounds and at < bounds[tp][0]
    ]
    return kafka.unread_error(pipeline.name, lost) if lost else None


def open_transactions(lags: Iterable[Lag]) -> dict[TopicPartition, tuple[int, int]]:
    """Return where open transactions are, with the end for read_committed readers and the log's end.

    Raise ServiceUnreachable when Kafka does not answer.
    """
    # In this order: what is appended in between holds nobody back.
    ends = kafka.end_offsets({TopicPartition(each.topic, each.partition) for each in lags}, "read_uncommitted")
    stable = kafka.end_offsets(ends, "read_committed")
    return {tp: (stable[tp], end) for tp, end in ends.items() if stable[tp] < end}


def queries_of(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the names of the pipeline's queries; the archive's is the first, outputs are the last."""
    views, outputs = (tuple(each.name for each in declared) for declared in (pipeline.views, pipeline.outputs))
    return (ARCHIVE, *views, *((FLAGS,) if pipeline.flags else ()), *outputs)


def queries_that_run(pipeline: Pipeline) -> tuple[str, ...]:
    """Return those of its queries that a driver has begun, and its outputs; all of them before a first start.

    What was deployed since the driver was started is begun by the next one.
    """
    begun, outputs = begun_queries(pipeline.name), {each.name for each in pipeline.outputs}
    return tuple(each for each in queries_of(pipeline) if not begun or each in begun or each in outputs)


def total_lag(pipeline: Pipeline) -> int:
    """Return the sum of the lags of all queries, in offsets. Raise ServiceUnreachable when Kafka does not answer."""
    return sum(each.lag for each in lag_of(pipeline))


def archive_lag(pipeline: Pipeline) -> int:
    """Return how many offsets are not archived yet. Raise ServiceUnreachable when Kafka does not answer."""
    return sum(each.lag for each in lag_of(pipeline) if each.query == ARCHIVE)


def still_behind(pipeline: Pipeline, ends: Iterable[Lag]) -> int:
    """Return how many offsets before these ends are not committed yet, by the ledger alone."""
    positions = committed_offsets(pipeline.name)
    return sum(
        max(0, each.end - positions.get(each.query, {}).get(TopicPartition(each.topic, each.partition), each.committed))
        for each in ends
    )


def as_metrics(lags: Iterable[Lag], missing: Iterable[MissingSummary] = ()) -> str:
    """Return lags and missing intervals in Prometheus's text format, which node_exporter can also read from a file."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()
    labels = ("pipeline", "query", "topic", "partition")
    gauges = {
        "committed": Gauge("tidemark_committed_offset", "Next offset to be committed", labels, registry=registry),
        "end": Gauge(
            "tidemark_end_offset", "End offset of the topic partition's committed records", labels, registry=registry
        ),
        "lag": Gauge(
            "tidemark_lag_offsets", "Offsets before that end that are not committed yet", labels, registry=registry
        ),
    }
    for each in lags:
        for name, gauge in gauges.items():
            gauge.labels(each.pipeline, each.query, each.topic, each.partition).set(getattr(each, name))
    intervals = Gauge("tidemark_missing_intervals", "Intervals never built", ("pipeline",), registry=registry)
    offsets = Gauge("tidemark_missing_offsets", "Offsets of intervals never built", ("pipeline",), registry=registry)
    for summary in missing:
        intervals.labels(summary.pipeline).set(summary.count)
        offsets.labels(summary.pipeline).set(summary.offsets)
    return generate_latest(registry).decode()
