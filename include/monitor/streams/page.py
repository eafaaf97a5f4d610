"""What the two pages of streams show: all of them in a sentence each, and one with all that is known of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from include.doctor.watch import doctor_watch
from include.errors import TidemarkError, error_class
from include.ledger.archive import row_outputs
from include.ledger.archive.row_outputs import OutputState
from include.ledger.connection import reading
from include.ledger.streams import launches, progress, writers
from include.ledger.streams.event_gaps import EventGap, gaps_of
from include.ledger.streams.launches import Launch
from include.ledger.streams.overview import RECENTLY, ReasonCount, quarantined_by_reason
from include.ledger.streams.restarts import STARTING
from include.ledger.streams.writers import LiveWriter
from include.monitor.history.calendar import read_calendar
from include.monitor.history.doctor_look import Look
from include.monitor.lag import Lag, queries_of
from include.monitor.open_alerts import SHOWN, OpenAlert, alerts_of
from include.monitor.streams.broker import broker_watch
from include.monitor.streams.driver_log import DriverLog, driver_log
from include.monitor.streams.rates import QueryRates, query_rates
from include.monitor.streams.state import ORDER, StreamState, stream_state
from include.monitor.text import clean
from include.pipelines import pipeline_names
from include.pipelines.spec import Pipeline

RESTARTS = 10
"""How many launches are listed."""

MOST_TOPIC_PARTITIONS = 50
"""How many rows the table of lags has; those furthest behind."""

_FRESH = 1.5
"""Seconds for which a state is reused: ten open pages cost what one does."""

_RECENT = 30.0
"""Seconds for which the number of intervals that need attention is reused."""

_KEPT = 600.0
"""Seconds for which such a number is kept, in case the calendar is being read for somebody else."""


@dataclass(frozen=True)
class RefusedPipeline:
    """A pipeline that cannot run as it is declared."""

    pipeline: str
    error: str
    remedy: str


@dataclass(frozen=True)
class StreamsPage:
    """All streams, those with a problem first."""

    streams: tuple[StreamState, ...]
    alerts: tuple[OpenAlert, ...]
    """Open ones, oldest first."""
    alerts_left_out: int
    refused: tuple[RefusedPipeline, ...] = ()
    is_any_declared: bool = True
    intervals: int = 0
    """Intervals that need attention, by the intervals page; without those that still have time by their schedule."""


@dataclass(frozen=True)
class Restart:
    """A start of the driver by Airflow, and how it ended."""

    launched_at: datetime
    ended_at: datetime | None
    exit_code: int | None
    reason: str
    is_failure: bool


@dataclass(frozen=True)
class TopicPartitionLag:
    """How far a query is behind in one topic partition."""

    query: str
    topic: str
    partition: int
    committed: int
    end: int
    lag: int

    @classmethod
    def of(cls, lag: Lag) -> TopicPartitionLag:
        """Return what was measured, with its difference."""
        return cls(lag.query, lag.topic, lag.partition, lag.committed, lag.end, lag.lag)


@dataclass(frozen=True)
class StreamPage:
    """One stream."""

    state: StreamState
    alerts: tuple[OpenAlert, ...]
    """Open ones of the pipeline, oldest first."""
    alerts_left_out: int
    queries: tuple[QueryRates, ...]
    reasons: tuple[ReasonCount, ...]
    """Reasons of the records that came into quarantine in the last hour."""
    restarts: tuple[Restart, ...]
    """Newest first."""
    lags: tuple[TopicPartitionLag, ...]
    lags_left_out: int
    log: DriverLog
    event_gaps: tuple[EventGap, ...]
    """Gaps of the event streams that were followed into its topics."""
    doctor: Look
    """What the doctor found last."""
    views: tuple[str, ...]
    """Names of its live views."""
    outputs: tuple[OutputState, ...]
    """How far its outputs have sent rows."""
    tables: tuple[str, ...] = ()


def streams_page(
    pipelines: Sequence[Pipeline], refused: Mapping[str, TidemarkError], may_read: Callable[[str], bool]
) -> StreamsPage:
    """Return the page of all streams. Raise ServiceUnreachable when the ledger does not answer.

    `refused`: why pipelines cannot run, by name. `may_read`: whether alerts of a pipeline, declared or not, are shown.
    """
    broker_watch().watch(pipelines)
    with reading():
        states = [_states.of(each) for each in pipelines]
        alerts = alerts_of(may_read)
    ordered = tuple(sorted(states, key=lambda each: (ORDER[each.tone], each.pipeline)))
    cannot_run = tuple(
        RefusedPipeline(name, clean(error.message, 1000), clean(error.remedy, 1000)) for name, error in refused.items()
    )
    return StreamsPage(
        ordered,
        alerts[:SHOWN],
        max(0, len(alerts) - SHOWN),
        cannot_run,
        is_any_declared=bool(pipeline_names()),
        intervals=_attention.count(pipelines),
    )


def stream_page(pipeline: Pipeline) -> StreamPage:
    """Return the page of one stream. Raise ServiceUnreachable when the ledger does not answer."""
    # All plain SQL in one transaction: it costs one connection.
    with reading():
        state = _states.of(pipeline)
        started, live = launches.recent(pipeline.name, RESTARTS), writers.live_writer(pipeline.name)
        lags = sorted(broker_watch().view(pipeline).lags, key=lambda each: (-each.lag, each.query, each.topic))
        alerts = alerts_of(lambda name: name == pipeline.name)
        # Those of views that are no longer declared stay in the ledger.
        told = {query: each for query, each in progress.recent(pipeline.name).items() if query in queries_of(pipeline)}
        return StreamPage(
            state,
            alerts[:SHOWN],
            max(0, len(alerts) - SHOWN),
            tuple(query_rates(query, each, state.held_since) for query, each in told.items()),
            quarantined_by_reason(pipeline.name, RECENTLY),
            tuple(_restarts(started, live, state.read_at)),
            tuple(map(TopicPartitionLag.of, lags[:MOST_TOPIC_PARTITIONS])),
            max(0, len(lags) - MOST_TOPIC_PARTITIONS),
            driver_log(_logged(started, live)),
            gaps_of(pipeline.name),
            doctor_watch().look(pipeline),
            tuple(each.name for each in pipeline.views),
            tuple(row_outputs.states(pipeline.name, [each.name for each in pipeline.outputs])),
            pipeline.tables,
        )


def _logged(started: Sequence[Launch], live: LiveWriter | None) -> Launch | None:
    """Return the launch whose log is shown: that of the driver that holds the lease, if it has one, else the newest.

    A later one may have been refused, or given up, before that driver came up.
    """
    newest = next(iter(started), None)
    if newest is None or live is None:
        return newest
    return launches.launch_of(newest.pipeline, live) or newest


def _restarts(started: Sequence[Launch], live: LiveWriter | None, now: datetime) -> Iterable[Restart]:
    """Yield each launch, newest first, with what became of it; `live` holds the lease."""
    newest = next((each for each in started if each.was_submitted), None)
    for each in started:
        has_failed = each.exit_code != 0
        if each.ended_for:
            reason = each.ended_for
        elif each.exit_code is not None:
            reason = "stopped, or caught up" if each.exit_code == 0 else error_class(each.exit_code).meaning
        elif each is newest and live is not None and launches.holds_lease(each, live):
            reason, has_failed = "runs", False
        elif each is newest and now - each.launched_at < STARTING:
            reason, has_failed = "starts", False
        else:
            reason = "it reported no exit code: killed, or it ended before its first line"
            if each is newest and live is not None:
                reason += "; another driver runs"
        yield Restart(each.launched_at, each.ended_at, each.exit_code, reason, has_failed)


class _States:
    """States that were just read."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[float, StreamState]] = {}
        self._reading = threading.Lock()

    def of(self, pipeline: Pipeline) -> StreamState:
        """Return the pipeline's state, at most `_FRESH` seconds old."""
        with self._reading:
            at, state = self._read.get(pipeline.name, (0.0, None))
            if state is None or time.monotonic() - at > _FRESH:
                state = stream_state(pipeline)
                self._read[pipeline.name] = (time.monotonic(), state)
            return state


_states = _States()


class _Attention:
    """How many intervals need attention: the calendar is read once for all open pages."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, ...], tuple[float, int]] = {}
        self._reading = threading.Lock()

    def count(self, pipelines: Sequence[Pipeline]) -> int:
        """Return the number, at most `_RECENT` seconds old."""
        names = tuple(each.name for each in pipelines)
        at, count = self._read.get(names, (float("-inf"), 0))
        # While another page reads it, the last number will do: a slow ledger holds up one page and not all.
        if time.monotonic() - at > _RECENT and self._reading.acquire(blocking=False):
            try:
                calendar = read_calendar(pipelines, now=datetime.now(UTC))
                count = len(calendar.attention) + calendar.attention_left_out - calendar.on_their_way
                now = time.monotonic()
                kept = {each: read for each, read in self._read.items() if now - read[0] < _KEPT}
                self._read = {**kept, names: (now, count)}
            finally:
                self._reading.release()
        return count


_attention = _Attention()
