"""The gauges of `/metrics`: their names, what each measures, and how they become families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

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
    "tidemark_open_alerts": "Alerts that are open",
    "tidemark_interval_seconds": "Length of the pipeline's intervals",
    "tidemark_registered_within_seconds": "How long after its end an interval is to be registered",
}
"""Gauges with the label `pipeline`."""

QUERY = {
    "tidemark_query_input_rows_per_second": "Records that arrived per second",
    "tidemark_query_processed_rows_per_second": "Records that were processed per second",
    "tidemark_query_batch_seconds": "Duration of the last micro-batch",
    "tidemark_query_watermark_delay_seconds": "From the watermark to the last micro-batch",
    "tidemark_query_state_rows": "Rows in the state store",
    "tidemark_query_state_bytes": "Memory that these take",
    "tidemark_query_progress_timestamp_seconds": "When the query last reported its progress",
}
"""Gauges with the labels `pipeline` and `query`."""

KEYS = {
    "tidemark_view_keys": "Keys of a view without a window",
    "tidemark_view_keys_limit": "Keys that it is declared to have at most",
}
"""Gauges with the labels `pipeline` and `view`."""

OFFSETS = {
    "tidemark_committed_offset": "Next offset to be committed",
    "tidemark_end_offset": "End offset of the topic partition",
    "tidemark_lag_offsets": "Offsets that are not committed yet",
}
"""Gauges with the labels `pipeline`, `query`, `topic` and `partition`."""

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
