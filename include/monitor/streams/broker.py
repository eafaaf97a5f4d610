"""The broker as it was last seen: a thread looks while pages ask, so that no page waits for a broker that is down."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Literal

from include import kafka
from include.errors import LogTruncated, RequestRefused, ServiceUnreachable, TidemarkError, TopicRecreated, one_line
from include.kafka.sources import describe_source, source_topic_partitions
from include.ledger.archive.committed import ARCHIVE, committed_offsets
from include.monitor.lag import Lag, queries_that_run, unread_loss
from include.monitor.streams.waiting import HeldBack, SeenEnds, seen_held_back, waiting_since
from include.offsets import TopicPartition
from include.pipelines.spec import Pipeline
from include.streams.start import check_log

EVERY = 3.0
"""Seconds between two looks."""

IDLE = 60.0
"""Seconds without a request after which the thread no longer looks."""

PATIENCE = 4.0
"""Seconds for which a pipeline's first request waits for its first look."""

_FRESH = 15.0
"""Seconds for which looks count as current after the latest one, whichever it was: a round of many takes longer."""

_DESCRIBED = 60.0
"""Seconds for which the topics of a source are assumed unchanged."""

_MOST_TIMESTAMPS = 64
"""In how many topic partitions a query's first waiting records are read; where it is furthest behind."""

_COMPARED = 20.0
"""How many seconds ago the lag was that a direction compares with."""

Direction = Literal["growing", "steady", "falling"]


@dataclass(frozen=True)
class BrokerView:
    """What was last seen of a pipeline's topics."""

    lags: tuple[Lag, ...] = ()
    """The lag of every query in every topic partition."""
    waiting_since: datetime | None = None
    """When the longest waiting record arrived that the archive has not committed; None if none waits, or unknown."""
    direction: Direction = "steady"
    """How the lag of the archive moves."""
    seen_at: datetime | None = None
    """None if the broker was never seen."""
    error: str = ""
    """Why it cannot be seen now."""
    error_remedy: str = ""
    since: Mapping[str, datetime] = field(default_factory=dict)
    """Like `waiting_since`, for the other queries."""
    directions: Mapping[str, Direction] = field(default_factory=dict)
    """How the lags of the other queries move."""
    held_back: tuple[HeldBack, ...] = ()
    """Where an open transaction keeps records from all queries."""
    log_error: str = ""
    """That a log was cut back or lost unread records, or a topic is another one or gone: then the lags tell nothing.
    Empty: all is well."""
    log_remedy: str = ""


@dataclass
class _Pipeline:
    """What is remembered of a pipeline between two looks."""

    declared: Pipeline
    first_asked_at: float
    asked_at: float
    is_seen: bool = False
    """Whether it was looked at since it was first asked for."""
    view: BrokerView = field(default_factory=BrokerView)
    topic_partitions: Sequence[TopicPartition] = ()
    described_at: float = -_DESCRIBED
    log_error: str = ""
    log_remedy: str = ""
    ends: SeenEnds = field(default_factory=SeenEnds)
    timestamps: Mapping[tuple[TopicPartition, int], datetime] = field(default_factory=dict)
    """Those of the queries' first waiting records."""
    held_back: Mapping[TopicPartition, HeldBack] = field(default_factory=dict)
    query_lags: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    """What each query was behind, and when; oldest first."""


class BrokerWatch:
    """Looks at the topics of the pipelines that are asked for."""

    def __init__(self) -> None:
        self._asked: dict[str, _Pipeline] = {}
        self._seen = threading.Condition()
        self._thread: threading.Thread | None = None
        self._looked_at = float("-inf")
        """When the latest look ended."""

    def watch(self, pipelines: Iterable[Pipeline]) -> None:
        """Begin to look at these pipelines, all at once; continue for those already begun."""
        now = time.monotonic()
        with self._seen:
            for each in pipelines:
                known = self._asked.setdefault(each.name, _Pipeline(each, now, now))
                if now - known.asked_at > IDLE:
                    known.first_asked_at, known.is_seen = now, False
                known.asked_at, known.declared = now, each
            if self._thread is None:
                thread = threading.Thread(target=self._run, daemon=True, name="broker watch")
                thread.start()
                # Not before: one that cannot start would count as looking for ever.
                self._thread = thread

    def view(self, pipeline: Pipeline) -> BrokerView:
        """Return what was last seen; wait a moment on the first request for this pipeline."""
        self.watch([pipeline])
        with self._seen:
            known = self._asked[pipeline.name]
            left = known.first_asked_at + PATIENCE - time.monotonic()
            if self._seen.wait_for(lambda: self._is_current(known), max(0.0, left)):
                return known.view
            return replace(known.view, error=known.view.error or "Kafka does not answer")

    def _is_current(self, known: _Pipeline) -> bool:
        return known.is_seen and time.monotonic() - self._looked_at < _FRESH

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            with self._seen:
                wanted = [each for each in self._asked.values() if began - each.asked_at < IDLE]
                if not wanted:
                    self._thread = None
                    return
            self._look_at(wanted)
            time.sleep(max(0.5, EVERY - (time.monotonic() - began)))

    def _look_at(self, wanted: Iterable[_Pipeline]) -> None:
        """Look at each; a service that does not answer for one is not waited for again in this round."""
        away: TidemarkError | None = None
        for each in wanted:
            try:
                view = _unseen(each, away) if away else _seen_now(each)
            except TidemarkError as error:
                view = _unseen(each, error)
                # A refusal may be about this pipeline's topics alone.
                if isinstance(error, ServiceUnreachable) and not isinstance(error, RequestRefused):
                    away = error
            except Exception as error:  # the thread's edge: it must go on, and the page say why nothing is seen
                view = replace(each.view, error=one_line(str(error)) or type(error).__name__, error_remedy="")
            if view.error:
                # The topic may be gone.
                each.described_at = float("-inf")
            with self._seen:
                each.view, each.is_seen, self._looked_at = view, True, time.monotonic()
                self._seen.notify_all()


def _unseen(known: _Pipeline, error: TidemarkError) -> BrokerView:
    """Return what was last seen, with an error that says why it is not seen now."""
    # The remedy has its own line on the page.
    return replace(known.view, error=error.message, error_remedy=error.remedy)


def _seen_now(known: _Pipeline) -> BrokerView:
    if time.monotonic() - known.described_at > (_DESCRIBED if known.topic_partitions else _DESCRIBED / 6):
        _describe(known)
    positions = committed_offsets(known.declared.name)
    committed = {query: positions.get(query, {}) for query in queries_that_run(known.declared)}
    # In this order: what is appended in between holds nobody back.
    log_ends = kafka.end_offsets(known.topic_partitions, "read_uncommitted")
    bounds = kafka.offset_bounds(known.topic_partitions)
    if any(at > log_ends.get(tp, at) for of_query in committed.values() for tp, at in of_query.items()):
        _describe(known)
    now = datetime.now(UTC)
    stable = {tp: end for tp, (_, end) in bounds.items()}
    known.ends.note(now, stable)
    known.held_back = seen_held_back(known.held_back, stable, log_ends, now)
    lags = tuple(
        Lag(known.declared.name, query, tp.topic, tp.partition, of_query.get(tp, low), end)
        for query, of_query in committed.items()
        for tp, (low, end) in sorted(bounds.items())
    )
    firsts = {query: _firsts(of_query, bounds) for query, of_query in committed.items()}
    behind = {query: sum(bounds[tp][1] - at for tp, at in each.items()) for query, each in firsts.items()}
    known.timestamps = _timestamps(known, firsts, bounds)
    since = {query: _since(known, each, now) for query, each in firsts.items()}
    directions = {query: _direction(known, query, offsets) for query, offsets in behind.items()}
    lost = None if known.log_error else unread_loss(known.declared, committed[ARCHIVE], bounds)
    return BrokerView(
        lags,
        since.pop(ARCHIVE),
        directions.pop(ARCHIVE),
        now,
        since={query: at for query, at in since.items() if at is not None},
        directions=directions,
        held_back=tuple(known.held_back.values()),
        log_error=lost.message if lost else known.log_error,
        log_remedy=lost.remedy if lost else known.log_remedy,
    )


def _describe(known: _Pipeline) -> None:
    """Note the source's topic partitions, and whether its logs hold what was read of them."""
    source = known.declared.source
    known.topic_partitions = source_topic_partitions(source, describe_source(source))
    known.log_error = known.log_remedy = ""
    try:
        check_log(known.declared)
    except (LogTruncated, TopicRecreated) as error:
        known.log_error, known.log_remedy = error.message, error.remedy
    except TidemarkError:
        # The look itself tells of a service that is away, and a start of the stream of a source that does not fit.
        pass
    # Offsets of a topic that is another one hold other records.
    known.timestamps = {}
    known.described_at = time.monotonic()


def _firsts(
    committed: Mapping[TopicPartition, int], bounds: Mapping[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, int]:
    """Return the first offset that a query has not committed, for the topic partitions in which it is behind."""
    return {tp: max(committed.get(tp, low), low) for tp, (low, end) in bounds.items() if committed.get(tp, low) < end}


def _since(known: _Pipeline, firsts: Mapping[TopicPartition, int], now: datetime) -> datetime | None:
    """Return since when a query's first record waits."""
    timestamps = {tp: known.timestamps[tp, at] for tp, at in firsts.items() if (tp, at) in known.timestamps}
    return waiting_since(firsts, timestamps, known.ends, now)


def _timestamps(
    known: _Pipeline,
    firsts: Mapping[str, Mapping[TopicPartition, int]],
    bounds: Mapping[TopicPartition, tuple[int, int]],
) -> dict[tuple[TopicPartition, int], datetime]:
    """Return the timestamps of the queries' first waiting records.

    Of other queries than the archive, they are read only where no two looks show when the record came. A record is read
    once.
    """
    found: dict[tuple[TopicPartition, int], datetime] = {}
    for query, waiting in firsts.items():
        unseen = [tp for tp, at in waiting.items() if query == ARCHIVE or not _is_seen_to_come(known.ends, tp, at)]
        furthest = sorted(unseen, key=lambda tp: waiting[tp] - bounds[tp][1])[:_MOST_TIMESTAMPS]
        places = {(tp, waiting[tp]) for tp in furthest}
        found |= {place: moment for place, moment in known.timestamps.items() if place in places}
        unread = dict(places - found.keys())
        times = kafka.record_times(unread) if unread else {}
        found |= {(tp, unread[tp]): moment for tp, moment in times.items()}
    return found


def _is_seen_to_come(ends: SeenEnds, tp: TopicPartition, offset: int) -> bool:
    """Return whether two looks, one shortly after the other, show when a record was appended."""
    after, before = ends.appended_after(tp, offset), ends.appended_before(tp, offset)
    return after is not None and before is not None and before - after < timedelta(seconds=_FRESH)


def _direction(known: _Pipeline, query: str, offsets: int) -> Direction:
    now = time.monotonic()
    lags = known.query_lags.setdefault(query, deque(maxlen=60))
    lags.append((now, offsets))
    before = next((lag for at, lag in reversed(lags) if now - at >= _COMPARED), lags[0][1])
    # What a live topic adds between two micro-batches does not count as a direction.
    margin = max(10, before // 20)
    return "growing" if offsets > before + margin else "falling" if offsets < before - margin else "steady"


@cache
def broker_watch() -> BrokerWatch:
    """Return this process's watch."""
    return BrokerWatch()
