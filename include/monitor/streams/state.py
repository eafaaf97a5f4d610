"""A stream's state: one sentence that the person on call can trust, and the figures behind it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal
from urllib.parse import urlsplit

from include.ledger.archive.positions import ARCHIVE
from include.ledger.streams.overview import StreamOverview, overview
from include.monitor.lag import Lag
from include.monitor.streams.broker import BrokerView, Direction, broker_watch
from include.monitor.text import clean, duration, quantity
from include.pipelines.spec import Pipeline
from include.streams import new_code

Tone = Literal["good", "open", "bad"]

NEAR = timedelta(seconds=60)
"""A stream that is no further behind keeps up."""

STALLED_AFTER = timedelta(minutes=10)
"""How long a live driver may commit nothing while records wait (as Airflow's watch, include/airflow/progress.py)."""


@dataclass(frozen=True)
class QueryLag:
    """How far a query is behind."""

    query: str
    offsets: int
    topic_partitions: int
    """In how many of them it is behind."""


@dataclass(frozen=True)
class StreamLag:
    """How far the archive is behind, against the broker."""

    offsets: int | None
    """None: the broker was never seen."""
    seconds: float | None
    """How long the longest waiting record has waited; None when none waits, or nothing is known."""
    direction: Direction
    queries: tuple[QueryLag, ...]
    seen_at: datetime | None
    """When the broker was last seen: what is said here was true then."""
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
    """Committed within the last hour."""
    quarantined: int
    """Of these, in quarantine."""
    holder: str
    """host:pid of the driver that holds the lease; empty when nobody does."""
    held_since: datetime | None
    renewed_at: datetime | None
    """The last sign of life of any driver."""
    application_id: str
    spark_ui: str
    """Address of Spark's own pages of the driver; empty where it serves none."""
    token: int
    generation: int | None
    generation_reason: str
    read_at: datetime
    new_code: str = ""
    """That the driver runs older code than is deployed, and what to do; empty when it does not."""

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
    """Return the state that ledger and broker together tell."""
    lag = lag_now(broker, known.read_at)
    tone, sentence = _sentence(known, lag)
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
        _remedy(pipeline.name, known, lag, tone),
        lag,
        known.committed_at,
        known.records,
        known.quarantined,
        ":".join(writer.holder.split(":")[:2]) if writer else "",
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
    """Return the lag with its seconds up to now: what waits goes on waiting, also when the broker is away."""
    archive = [each for each in broker.lags if each.query == ARCHIVE]
    seconds = max(0.0, (now - broker.waiting_since).total_seconds()) if broker.waiting_since else None
    return StreamLag(
        sum(each.lag for each in archive) if broker.seen_at else None,
        seconds,
        broker.direction,
        tuple(_by_query(broker.lags)),
        broker.seen_at,
        broker.error,
    )


def _by_query(lags: Iterable[Lag]) -> Iterable[QueryLag]:
    queries: dict[str, list[int]] = {}
    for each in lags:
        queries.setdefault(each.query, []).append(each.lag)
    return (QueryLag(name, sum(behind), sum(map(bool, behind))) for name, behind in queries.items())


def _sentence(known: StreamOverview, lag: StreamLag) -> tuple[Tone, str]:
    waits = ""
    if lag.offsets:
        since = f", the first for {duration(lag.seconds)}" if lag.seconds is not None else ""
        waits = f"{quantity(lag.offsets, 'offset waits', 'offsets wait')}{since}"
    if known.writer is None:
        return _without_driver(known, waits)
    if not lag.offsets:
        return "good", "keeping up, nothing waits"
    behind = "" if lag.seconds is None else f", {duration(lag.seconds)} behind"
    idle = known.read_at - max(filter(None, (known.committed_at, known.writer.acquired_at)))
    if idle > STALLED_AFTER:
        return "bad", f"stalled: the driver lives, but has committed nothing for {duration(idle)}; {waits}"
    if lag.seconds is None or lag.seconds <= NEAR.total_seconds():
        return "good", f"keeping up{behind}"
    if lag.direction == "growing":
        return "bad", f"falling behind{behind}, and more: {waits}"
    if lag.direction == "falling":
        return "open", f"catching up{behind}: {waits}"
    return "open", f"behind: {waits}"


def _without_driver(known: StreamOverview, waits: str) -> tuple[Tone, str]:
    if known.last_holder_seen is None:
        return "open", f"never started{f'; {waits}' if waits else ''}"
    ended = f"no driver runs, the last sign of one is {duration(known.read_at - known.last_holder_seen)} old"
    return ("bad", f"{ended}; {waits}") if waits else ("open", f"{ended}; nothing waits")


def _remedy(pipeline: str, known: StreamOverview, lag: StreamLag, tone: Tone) -> str:
    if lag.error:
        return "./tidemark status; ./tidemark up kafka"
    if known.writer is None and (lag.offsets or known.last_holder_seen is None):
        return f"unpause the DAG stream__{pipeline}, or run ./tidemark stream {pipeline}"
    if tone == "bad":
        return f"./tidemark lag {pipeline}; read the driver's log"
    return ""
