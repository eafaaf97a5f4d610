"""The broker as it was last seen: a thread looks while somebody asks, so that no page waits for one that is away."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from typing import Literal

from include import kafka
from include.errors import TidemarkError
from include.kafka.sources import describe_source, source_topic_partitions
from include.ledger.archive import micro_batches
from include.monitor.lag import Lag, queries_of
from include.monitor.streams.waiting import SeenEnds, waiting_since
from include.offsets import TopicPartition
from include.pipelines.spec import Pipeline

EVERY = 3.0
"""Seconds between two looks."""

IDLE = 60.0
"""Seconds without a question after which nobody looks any more."""

PATIENCE = 4.0
"""Seconds that the first question waits for the first look."""

_DESCRIBED = 60.0
"""Seconds for which the topics of a source are taken to be the same."""

_MOST_TIMESTAMPS = 64
"""Topic partitions whose first waiting record is read; those furthest behind."""

_COMPARED = 20.0
"""Seconds: the direction compares with what was seen so long ago."""

Direction = Literal["growing", "steady", "falling"]


@dataclass(frozen=True)
class BrokerView:
    """What was last seen of a pipeline's topics."""

    lags: tuple[Lag, ...] = ()
    """Of every query in every topic partition."""
    waiting_since: datetime | None = None
    """When the longest waiting record came that the archive has not committed; None: none waits, or not known."""
    direction: Direction = "steady"
    """How the lag of the archive moves."""
    seen_at: datetime | None = None
    """None: the broker was never seen."""
    error: str = ""
    """Why it cannot be seen now."""


@dataclass
class _Pipeline:
    """What is remembered of a pipeline between two looks."""

    declared: Pipeline
    asked_at: float
    view: BrokerView = field(default_factory=BrokerView)
    topic_partitions: Sequence[TopicPartition] = ()
    described_at: float = -_DESCRIBED
    ends: SeenEnds = field(default_factory=SeenEnds)
    archive_lags: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=60))


class BrokerWatch:
    """Looks at the topics of the pipelines that are asked for."""

    def __init__(self) -> None:
        self._asked: dict[str, _Pipeline] = {}
        self._seen = threading.Condition()
        self._thread: threading.Thread | None = None

    def view(self, pipeline: Pipeline) -> BrokerView:
        """Return what was last seen; waits for a moment when nobody has asked for this pipeline before."""
        with self._seen:
            known = self._asked.setdefault(pipeline.name, _Pipeline(pipeline, 0.0))
            known.asked_at = time.monotonic()
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True, name="broker watch")
                self._thread.start()
            self._seen.wait_for(lambda: known.view.seen_at or known.view.error, PATIENCE)
            if known.view == BrokerView():
                return replace(known.view, error="Kafka has not answered yet")
            return known.view

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            with self._seen:
                wanted = [each for each in self._asked.values() if began - each.asked_at < IDLE]
                if not wanted:
                    self._thread = None
                    return
            for each in wanted:
                view = _look(each)
                with self._seen:
                    each.view = view
                    self._seen.notify_all()
            time.sleep(max(0.5, EVERY - (time.monotonic() - began)))


def _look(known: _Pipeline) -> BrokerView:
    """Return the pipeline's topics as they are now; when they cannot be seen, what was seen last, with the reason."""
    try:
        return _seen_now(known)
    except TidemarkError as error:
        # The command lies on another line of the page.
        return replace(known.view, error=str(error).split(" — ", 1)[0])


def _seen_now(known: _Pipeline) -> BrokerView:
    if time.monotonic() - known.described_at > _DESCRIBED or not known.topic_partitions:
        source = known.declared.source
        known.topic_partitions = source_topic_partitions(source, describe_source(source))
        known.described_at = time.monotonic()
    committed = {query: micro_batches.positions(known.declared.name, query) for query in queries_of(known.declared)}
    bounds = kafka.offset_bounds(known.topic_partitions)
    now = datetime.now(UTC)
    known.ends.note(now, {tp: end for tp, (_, end) in bounds.items()})
    lags = tuple(
        Lag(known.declared.name, query, tp.topic, tp.partition, of_query.get(tp, low), end)
        for query, of_query in committed.items()
        for tp, (low, end) in sorted(bounds.items())
    )
    archived = committed[micro_batches.ARCHIVE]
    firsts = {tp: max(archived.get(tp, low), low) for tp, (low, end) in bounds.items() if archived.get(tp, low) < end}
    since = waiting_since(firsts, _timestamps(firsts, bounds), known.ends, now)
    return BrokerView(lags, since, _direction(known, sum(bounds[tp][1] - at for tp, at in firsts.items())), now)


def _timestamps(
    firsts: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, datetime]:
    furthest = sorted(firsts, key=lambda tp: firsts[tp] - bounds[tp][1])[:_MOST_TIMESTAMPS]
    return kafka.record_times({tp: firsts[tp] for tp in furthest}) if furthest else {}


def _direction(known: _Pipeline, offsets: int) -> Direction:
    now = time.monotonic()
    known.archive_lags.append((now, offsets))
    before = next((lag for at, lag in reversed(known.archive_lags) if now - at >= _COMPARED), known.archive_lags[0][1])
    # What a live topic adds between two micro-batches is no direction.
    margin = max(10, before // 20)
    return "growing" if offsets > before + margin else "falling" if offsets < before - margin else "steady"


@cache
def broker_watch() -> BrokerWatch:
    """Return this process's watch."""
    return BrokerWatch()
