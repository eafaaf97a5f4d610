"""Write a stream of server-sent events to a pipeline's topic.

Every event that the server sends after the stored id reaches Kafka at least once, even when this process is killed.
Canaries and events of another type than `message` are counted and dropped.
The stored id advances only past events that Kafka has confirmed, so a killed follower writes about its last second
again. Within a run, an event whose identity is among the last `REMEMBERED` ones is dropped. Readers recognise
duplicates of a crash by the event's own id (`meta.id` of a wiki change).
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError

from include import kafka
from include.errors import UsageError
from include.kafka.client import BATCH_SIZE
from include.pipelines.spec import EventTimeWithin, Pipeline
from include.producing.event_stream import Event, EventFacts, EventStream, PositionRefused
from include.producing.event_writer import EventWriter, Record
from include.producing.followed import Followed, RateMeter
from include.producing.generate import PRODUCER, topic_of
from include.producing.messages import module_of
from include.producing.position import Reached, RefusedEvent, StreamPosition
from include.producing.refused_position import GoOn, RefusedPosition
from include.settings import settings

REMEMBERED = 100_000
"""Number of event identities kept to recognise duplicates."""

UNCONFIRMED = 20_000
"""Most events that may wait for Kafka's confirmation; beyond it the stream is not read."""

SAVE_EVERY = 1.0
"""Seconds between two writes of the stored id."""

TELL_EVERY = 10.0
"""Seconds between two lines of progress."""

_AHEAD = timedelta(minutes=5)
"""Furthest event time in the future that becomes the record's timestamp: Kafka refuses one an hour ahead."""


@dataclass
class _Pending:
    """An event that was received; `done` when Kafka has confirmed or refused it, or it is not to be written."""

    event_id: str
    at: datetime | None
    done: bool = False


class _LimitReached(Exception):
    """The requested number of events was queued."""


def follow(
    pipeline: Pipeline,
    url: str,
    *,
    until: int | None,
    seconds: float | None,
    tell: Callable[[str], None],
    topic: str = "",
    contact: str = "",
    go_on: GoOn | None = None,
) -> dict[str, Any]:
    """Write the stream's events to a topic, by default the first that the pipeline names; return `Followed` as a dict.

    The run ends on SIGTERM or SIGINT, after `until` events or after `seconds`; then Kafka has confirmed every event
    and the last id is stored. Raise UsageError for a pipeline without a stream or when a topic must be named,
    AnotherWriter when another process follows the stream, ServiceUnreachable when Kafka does not confirm or the URL is
    not an event stream, TidemarkError when Kafka takes no events for the topic, and PositionTooOld when the service
    refuses the position and `go_on` does not say where to go on.
    """
    describe = getattr(module_of(pipeline), "describe_event", None)
    if describe is None:
        raise UsageError(
            f"{pipeline.name} cannot follow an event stream", remedy="produce generated messages: --events N"
        )
    topic, position = topic_of(pipeline, topic), StreamPosition(pipeline.name, url)
    with position.locked() as reached:
        kafka.create_topic(topic, pipeline.source.topic_partitions)
        last = reached.last_event_id
        stream = EventStream(url, last, tell, contact=contact or settings().contact)
        begin = f"after event {last[:200]}" if last else "from its next event on"
        tell(f"{pipeline.name}: following {stream.address} {begin}")
        beyond = RefusedPosition(pipeline, go_on)
        limits = kafka.topic_limits(topic)
        follower = _Follower(pipeline, topic, stream, position, reached, describe, tell, beyond, batch=limits.batch)
        return asdict(asyncio.run(follower.run(until, seconds)))


@dataclass(eq=False)
class _Follower:
    pipeline: Pipeline
    topic: str
    stream: EventStream
    position: StreamPosition
    confirmed: Reached
    describe: Callable[[str], EventFacts]
    tell: Callable[[str], None]
    refused: RefusedPosition
    until: int | None = None
    batch: int = BATCH_SIZE
    """Bytes of a batch: a topic that refuses a larger one refuses all of its events, the small ones, too."""
    _pending: deque[_Pending] = field(default_factory=deque)
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        self.counts = Followed(self.pipeline.name, self.topic, last_event_id=self.confirmed.last_event_id)
        self._producer = kafka.producer(**PRODUCER, **{"batch.size": self.batch})
        self._writer = EventWriter(self.pipeline, self.topic, self._producer)
        behind = [rule.bounds[0] for rule in self.pipeline.archive.rules if isinstance(rule, EventTimeWithin)]
        self._behind = min(behind, default=timedelta(days=1))
        self._queued = 0
        self._rates = RateMeter()

    async def run(self, until: int | None, seconds: float | None) -> Followed:
        self.until = until
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        reading = asyncio.create_task(self._read())
        serving = asyncio.create_task(self._serve())
        waiting = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({reading, serving, waiting}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, serving, waiting):
                task.cancel()
            results = await asyncio.gather(reading, serving, waiting, return_exceptions=True)
            self._finish()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError | _LimitReached):
                raise result
        return self.counts

    async def _read(self) -> None:
        """Follow the stream to its end, past a refused position too. Raise PositionTooOld."""
        while True:
            try:
                return await self.stream.follow(self._receive)
            except PositionRefused as answer:
                self._advance()
                self.tell(self.refused.go_past(self.stream, self.confirmed, str(answer)))

    async def _receive(self, event: Event) -> None:
        """Count an event and queue it for Kafka unless it is to be dropped. Raise _LimitReached after the last one."""
        facts = self.describe(event.data) if event.data else EventFacts()
        moment = self._plausible(facts.moment)
        if self.refused.is_open:
            self.counts.missing_seconds += self.refused.close(moment or datetime.now(UTC))
        pending = _Pending(event.id, moment, done=True)
        if not event.data:
            self.counts.without_data += 1
        elif event.type != "message":
            self.counts.other_types += 1
        elif facts.is_canary:
            self.counts.canaries += 1
        elif self._is_duplicate(facts.identity):
            self.counts.duplicates += 1
        else:
            await self._write(pending, event, facts)
        self.counts.received += 1
        self._rates.note(moment)
        self._pending.append(pending)
        if self.until is not None and self._queued >= self.until:
            raise _LimitReached

    def _is_duplicate(self, identity: str | None) -> bool:
        if identity is None:
            return False
        known = identity in self._seen
        self._seen[identity] = None
        self._seen.move_to_end(identity)
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        return known

    async def _write(self, pending: _Pending, event: Event, facts: EventFacts) -> None:
        value = event.data.encode("utf-8", "replace")
        pending.done = False

        def confirmed() -> None:
            self.counts.written += 1
            pending.done = True

        record = Record(facts.key, value, pending.at, confirmed, lambda error: self._refuse(pending, event, error))
        while len(self._pending) > UNCONFIRMED:
            await asyncio.sleep(0.01)
        while not self._writer.write(record):
            await asyncio.sleep(0.05)
        # One that is refused at once is not on its way.
        self._queued += not pending.done

    def _plausible(self, moment: datetime | None) -> datetime | None:
        """Return an event's time unless it is missing, too old for the archive or in the future."""
        now = datetime.now(UTC)
        return moment if moment is not None and now - self._behind <= moment <= now + _AHEAD else None

    def _refuse(self, pending: _Pending, event: Event, error: KafkaError) -> None:
        self.position.append_refused(RefusedEvent(event.id, error.str(), event.data))
        self.counts.refused += 1
        pending.done = True
        self.tell(f"{self.pipeline.name}: Kafka refused an event; it is kept in {self.position.refused_path}")

    async def _serve(self) -> None:
        """Poll confirmations, store the last id and report progress. Raise the error when Kafka takes no events."""
        saved = told = time.monotonic()
        while True:
            self._writer.serve()
            if self._writer.failure is not None:
                raise self._writer.failure
            now = time.monotonic()
            if now - saved >= SAVE_EVERY:
                self._advance()
                saved = now
            if now - told >= TELL_EVERY:
                self._tell_counts(whole=False)
                told = now
            await asyncio.sleep(0.02)

    def _advance(self) -> None:
        """Store the id of the last event up to which all events are done."""
        passed, at = self.confirmed.last_event_id, self.confirmed.at
        while self._pending and self._pending[0].done:
            last = self._pending.popleft()
            passed, at = last.event_id or passed, last.at or at
        if passed != self.confirmed.last_event_id:
            self.confirmed = Reached(passed, at)
            self.position.save(self.confirmed)
            self.counts.last_event_id = passed

    def _finish(self) -> None:
        """Wait for outstanding confirmations and store the last id. Raise the error when one is missing."""
        self._writer.finish(30 if self._writer.failure is None else 5)
        self._advance()
        if self._pending:
            self._writer.give_up()
        if self._writer.failure is not None:
            raise self._writer.failure
        self._tell_counts(whole=True)

    def _tell_counts(self, *, whole: bool) -> None:
        self.counts.connections = self.stream.connections
        self._rates.measure(self.counts, whole=whole)
        self.tell(self.counts.line())
