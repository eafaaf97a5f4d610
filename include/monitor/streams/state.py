"""A stream's state: one sentence that the person on call can trust, and the figures behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal
from urllib.parse import urlsplit

from include import kafka
from include.ledger.archive.committed import FLAGS
from include.ledger.archive.positions import ARCHIVE
from include.ledger.streams.overview import StreamOverview, overview
from include.ledger.streams.writers import LiveWriter
from include.monitor.lag import STALLED_AFTER
from include.monitor.streams.broker import BrokerView, Direction, broker_watch
from include.monitor.streams.waiting import told_at
from include.monitor.text import clean, duration, quantity
from include.pipelines.spec import Pipeline
from include.streams import new_code

Tone = Literal["good", "open", "bad"]

ORDER = {"bad": 0, "open": 1, "good": 2}
"""Tones, those with a problem first."""

NEAR = timedelta(seconds=60)
"""A stream that is not further behind than this keeps up."""


@dataclass(frozen=True)
class QueryLag:
    """How far a query is behind."""

    query: str
    offsets: int
    topic_partitions: int
    """In how many topic partitions it is behind."""
    seconds: float | None = None
    """How long the longest waiting record has waited; None when none waits, or nothing is known."""
    direction: Direction = "steady"


@dataclass(frozen=True)
class StreamLag:
    """How far the archive is behind, against the broker."""

    offsets: int | None
    """None: the broker was never seen, or a log has changed so that 0 would say nothing."""
    seconds: float | None
    """How long the longest waiting record has waited; None when none waits, or nothing is known."""
    direction: Direction
    queries: tuple[QueryLag, ...]
    seen_at: datetime | None
    """When the broker was last seen, and this was true."""
    error: str
    """Why the broker cannot be seen now; empty when it can."""


@dataclass(frozen=True)
class StreamState:
    """One pipeline's stream now."""

    pipeline: str
    description: str
    tone: Tone
    sentence: str
    remedy: str
    """The command to run; empty when there is nothing to do."""
    lag: StreamLag
    committed_at: datetime | None
    """When the archive's last micro-batch was committed."""
    records: int
    """Records committed within the last hour."""
    quarantined: int
    """How many of these are in quarantine."""
    holder: str
    """host:pid of the driver that holds the lease; empty when nobody does."""
    held_since: datetime | None
    renewed_at: datetime | None
    """The last sign of life of any driver."""
    application_id: str
    spark_ui: str
    """Address of Spark's own pages of the driver; empty if it serves none."""
    token: int
    generation: int | None
    generation_reason: str
    read_at: datetime
    new_code: str = ""
    """That the driver runs other code than this host has, and what to do; empty when it does not."""

    @property
    def spark_ui_is_local(self) -> bool:
        """Whether Spark's own pages are served on the driver's host only."""
        return urlsplit(self.spark_ui).hostname in ("127.0.0.1", "localhost", "::1")


def stream_state(pipeline: Pipeline) -> StreamState:
    """Return the stream's state. Raise ServiceUnreachable when the ledger does not answer; a broker may be away."""
    state = assess(pipeline, overview(pipeline.name), broker_watch().view(pipeline))
    deployed = new_code.look(pipeline.name) if state.holder else None
    return replace(state, new_code=clean(deployed.sentence, 1200)) if deployed else state


def assess(pipeline: Pipeline, known: StreamOverview, broker: BrokerView) -> StreamState:
    """Return the state that follows from ledger and broker."""
    lag = lag_now(broker, known.read_at)
    tone, sentence = _sentence(known, lag, broker.log_error)
    if lag.error:
        remedy = broker.error_remedy or "./tidemark status; ./tidemark up kafka"
    else:
        remedy = broker.log_remedy if broker.log_error else _remedy(pipeline.name, known, lag, tone)
    held, held_for = told_at(broker.held_back, known.read_at)
    if held:
        sentence = held if tone == "good" else f"{sentence}; {held}"
        tone = "bad" if tone == "bad" or held_for > STALLED_AFTER else "open"
        remedy = remedy if lag.error else "; ".join(filter(None, (remedy, kafka.END_TRANSACTION)))
    if lag.error:
        age = f"for {duration(known.read_at - lag.seen_at)}" if lag.seen_at else "now"
        tone, sentence = "bad", f"Kafka cannot be seen {age}; last known: {sentence}" if lag.seen_at else lag.error
    if known.quarantined:
        sentence += f"; {quantity(known.quarantined, 'record')} in quarantine in the last hour"
    writer = known.writer
    return StreamState(
        pipeline.name,
        pipeline.description,
        tone,
        clean(sentence[:1].upper() + sentence[1:], 600) + ".",
        remedy,
        lag,
        known.committed_at,
        known.records,
        known.quarantined,
        writer.holder.short if writer else "",
        writer.acquired_at if writer else None,
        known.last_holder_seen,
        writer.application_id if writer else "",
        writer.ui_address if writer and writer.ui_address.startswith(("http://", "https://")) else "",
        known.token,
        known.generation,
        known.generation_reason,
        known.read_at,
    )


def lag_now(broker: BrokerView, now: datetime) -> StreamLag:
    """Return the lag with its seconds up to now: records keep waiting while the broker is down."""
    # 0 says nothing of a log that was cut back, or of a topic that is gone.
    queries = tuple(each for each in _by_query(broker, now) if each.offsets or not broker.log_error)
    offsets = next((each.offsets for each in queries if each.query == ARCHIVE), None if broker.log_error else 0)
    return StreamLag(
        offsets if broker.seen_at else None,
        _seconds(broker.waiting_since, now),
        broker.direction,
        queries,
        broker.seen_at,
        broker.error,
    )


def _seconds(since: datetime | None, now: datetime) -> float | None:
    return max(0.0, (now - since).total_seconds()) if since else None


def _by_query(broker: BrokerView, now: datetime) -> Iterable[QueryLag]:
    """Yield the lag of each query; the archive's is the first."""
    queries: dict[str, list[int]] = {}
    for each in broker.lags:
        queries.setdefault(each.query, []).append(each.lag)
    since = {**broker.since, ARCHIVE: broker.waiting_since}
    directions = {**broker.directions, ARCHIVE: broker.direction}
    for name, behind in queries.items():
        seconds = _seconds(since.get(name), now)
        yield QueryLag(name, sum(behind), sum(map(bool, behind)), seconds, directions.get(name, "steady"))


def _sentence(known: StreamOverview, lag: StreamLag, log_error: str) -> tuple[Tone, str]:
    """Return tone and sentence of the worst query; the archive's if no other is worse."""
    if log_error:
        # What waits is not known, and no driver that starts goes on.
        return "bad", log_error
    if known.writer is None:
        waiting = max(lag.queries, key=lambda each: each.offsets, default=None)
        return _without_driver(known, _waits(waiting) if waiting and waiting.offsets else "")
    told = [_of_query(known, known.writer, each) for each in lag.queries if each.offsets]
    return min(told, key=lambda each: ORDER[each[0]], default=("good", "keeping up, nothing waits"))


def _waits(each: QueryLag) -> str:
    by = "" if each.query == ARCHIVE else f" for {each.query}"
    since = f", the first for {duration(each.seconds)}" if each.seconds is not None else ""
    return f"{quantity(each.offsets, 'offset waits', 'offsets wait')}{by}{since}"


def _of_query(known: StreamOverview, writer: LiveWriter, each: QueryLag) -> tuple[Tone, str]:
    """Return tone and sentence of a query for which offsets wait."""
    name = "" if each.query == ARCHIVE else f"the query {each.query} is "
    behind = "" if each.seconds is None else f", {duration(each.seconds)} behind"
    moved = known.committed_at if each.query == ARCHIVE else known.moved.get(each.query)
    idle = known.read_at - max(filter(None, (moved, writer.acquired_at)))
    # A topic that was silent for long has a query that was idle for as long, and is not stalled.
    waited = idle if each.seconds is None else min(idle, timedelta(seconds=each.seconds))
    if waited > STALLED_AFTER:
        whose = f"{each.query} " if name else ""
        return (
            "bad",
            f"stalled: the driver lives, but {whose}has committed nothing for {duration(idle)}; {_waits(each)}",
        )
    # The flag query commits when a batch ends, which is minutes long; its flags do not wait for that.
    if each.query == FLAGS or (each.seconds is not None and each.seconds <= NEAR.total_seconds()):
        return "good", f"keeping up{behind}"
    if each.direction == "growing":
        return "bad", f"{name}falling behind{behind}, and more: {_waits(each)}"
    if each.direction == "falling":
        return "open", f"{name}catching up{behind}: {_waits(each)}"
    return "open", f"{name}behind: {_waits(each)}"


def _without_driver(known: StreamOverview, waits: str) -> tuple[Tone, str]:
    if known.last_holder_seen is None:
        return "open", f"never started{f'; {waits}' if waits else ''}"
    ended = f"no driver runs, the last sign of one is {duration(known.read_at - known.last_holder_seen)} old"
    return ("bad", f"{ended}; {waits}") if waits else ("open", f"{ended}; nothing waits")


def _remedy(pipeline: str, known: StreamOverview, lag: StreamLag, tone: Tone) -> str:
    if known.writer is None and (any(each.offsets for each in lag.queries) or known.last_holder_seen is None):
        return f"unpause the DAG stream__{pipeline}, or run ./tidemark stream {pipeline}"
    if tone == "bad":
        return f"./tidemark lag {pipeline}; read the driver's log"
    return ""
