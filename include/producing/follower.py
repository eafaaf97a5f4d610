"""Follows a stream of server-sent events into a pipeline's topic.

What is guaranteed: every event that the server gives after the stored id is in Kafka at least once, also when
this process is killed. The stored id moves only over events that Kafka has confirmed, so a killed follower
writes its last second again. Within a run, an event whose identity is among the last `REMEMBERED` is dropped.
What a crash doubles is told apart when it is read: a change keeps its `meta.id`.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message

from include import kafka
from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.pipelines.spec import EventTimeWithin, Pipeline
from include.producing.event_stream import Event, EventFacts, EventStream
from include.producing.position import RefusedEvent, StreamPosition
from include.settings import settings

REMEMBERED = 100_000
"""Identities of events that are remembered to drop duplicates."""

UNCONFIRMED = 20_000
"""Events on their way to Kafka at most; the stream waits meanwhile."""

SAVE_EVERY = 1.0
TELL_EVERY = 10.0
"""Seconds between two writes of the id, and between two lines of progress."""

_AHEAD = timedelta(minutes=5)
"""A time further in the future is not believed: Kafka refuses timestamps an hour ahead."""

_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_RECORD})


@dataclass
class Followed:
    """What became of the events of a run: received is the sum of the six that follow it."""

    pipeline: str
    topic: str
    received: int = 0
    written: int = 0
    duplicates: int = 0
    canaries: int = 0
    other_types: int = 0
    without_data: int = 0
    refused: int = 0
    connections: int = 0
    last_event_id: str = ""

    def line(self) -> str:
        """The counts in words."""
        return (
            f"{self.pipeline}: {self.received} events received: {self.written} written to {self.topic}, "
            f"{self.duplicates} duplicates, {self.canaries} canaries, {self.other_types} of another type, "
            f"{self.without_data} without data, {self.refused} refused by Kafka; {self.connections} connections"
        )


@dataclass
class _Pending:
    """An event on its way; `done` once its fate is certain."""

    event_id: str
    done: bool = False


class _Enough(Exception):
    """As many events are written as were asked for."""


def follow(
    pipeline: Pipeline, url: str, *, until: int | None, seconds: float | None, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Write the stream's events to the pipeline's first topic until SIGTERM or SIGINT, or the bounds, end it.

    Returns `Followed` as a dictionary, once Kafka has confirmed everything and the id is stored. Raises
    UsageError for a pipeline without a stream, AnotherWriter when the stream is followed already,
    ServiceUnreachable when Kafka does not confirm or the URL is none of an event stream.
    """
    describe = getattr(importlib.import_module(f"include.producing.messages.{pipeline.name}"), "describe_event", None)
    if describe is None:
        raise UsageError(f"{pipeline.name} follows no event stream", remedy="produce generated messages: --events N")
    position = StreamPosition(pipeline.name, url)
    with position.held() as last_event_id:
        kafka.create_topic(pipeline.source.subscribe[0], pipeline.source.topic_partitions)
        stream = EventStream(url, last_event_id, tell)
        tell(
            f"{pipeline.name}: following {stream.address} "
            + (f"after event {last_event_id[:200]}" if last_event_id else "from its present on")
        )
        follower = _Follower(pipeline, stream, position, last_event_id, describe, tell)
        return asdict(asyncio.run(follower.run(until, seconds)))


@dataclass(eq=False)
class _Follower:
    pipeline: Pipeline
    stream: EventStream
    position: StreamPosition
    confirmed_id: str
    describe: Callable[[str], EventFacts]
    tell: Callable[[str], None]
    until: int | None = None
    _pending: deque[_Pending] = field(default_factory=deque)
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _failure: TidemarkError | None = None

    def __post_init__(self) -> None:
        self.counts = Followed(self.pipeline.name, self.pipeline.source.subscribe[0], last_event_id=self.confirmed_id)
        self._producer = kafka.producer(**{"linger.ms": 20, "message.max.bytes": 4_000_000})
        behind = [rule.bounds[0] for rule in self.pipeline.archive.rules if isinstance(rule, EventTimeWithin)]
        self._behind = min(behind, default=timedelta(days=1))
        self._queued = 0

    async def run(self, until: int | None, seconds: float | None) -> Followed:
        self.until = until
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        reading = asyncio.create_task(self.stream.follow(self._receive))
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
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError | _Enough):
                raise result
        return self.counts

    async def _receive(self, event: Event) -> None:
        """Take one event; returns when it is queued for Kafka or its fate is known."""
        pending = _Pending(event.id, done=True)
        facts = self.describe(event.data) if event.data else EventFacts()
        if not event.data:
            self.counts.without_data += 1
        elif event.type != "message":
            self.counts.other_types += 1
        elif facts.is_canary:
            self.counts.canaries += 1
        elif self._is_known(facts.identity):
            self.counts.duplicates += 1
        else:
            await self._write(pending, event, facts)
        self.counts.received += 1
        self._pending.append(pending)
        if self.until is not None and self._queued >= self.until:
            raise _Enough

    def _is_known(self, identity: str | None) -> bool:
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

        def confirmed(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.counts.written += 1
                pending.done = True
            elif error.code() in _TOO_LARGE:
                self._refuse(pending, event, error)
            elif self._failure is None:
                self._failure = _not_confirmed(self.pipeline, error)

        while len(self._pending) > UNCONFIRMED:
            await asyncio.sleep(0.01)
        while True:
            try:
                self._producer.produce(
                    self.counts.topic, value, facts.key, timestamp=self._timestamp(facts.moment), on_delivery=confirmed
                )
            except BufferError:
                await asyncio.sleep(0.05)
                continue
            except KafkaException as error:
                if error.args[0].code() not in _TOO_LARGE:
                    raise
                self._refuse(pending, event, error.args[0])
                return
            self._queued += 1
            return

    def _timestamp(self, moment: datetime | None) -> int:
        """Milliseconds: the event's time, or now for one without a time that can be believed."""
        now = datetime.now(UTC)
        valid = moment is not None and now - self._behind <= moment <= now + _AHEAD
        return int((moment if moment and valid else now).timestamp() * 1000)

    def _refuse(self, pending: _Pending, event: Event, error: KafkaError) -> None:
        self.position.keep_refused(RefusedEvent(event.id, error.str(), event.data))
        self.counts.refused += 1
        pending.done = True
        self.tell(f"{self.pipeline.name}: Kafka refuses an event, it is kept in {self.position.refused_path}")

    async def _serve(self) -> None:
        """Take confirmations, move the stored id, tell progress. Raises what Kafka did not confirm."""
        saved = told = time.monotonic()
        while True:
            self._producer.poll(0)
            if self._failure is not None:
                raise self._failure
            now = time.monotonic()
            if now - saved >= SAVE_EVERY:
                self._advance()
                saved = now
            if now - told >= TELL_EVERY:
                self.counts.connections = self.stream.connections
                self.tell(self.counts.line())
                told = now
            await asyncio.sleep(0.02)

    def _advance(self) -> None:
        """Store the id of the last event before which nothing is open."""
        passed = self.confirmed_id
        while self._pending and self._pending[0].done:
            passed = self._pending.popleft().event_id or passed
        if passed != self.confirmed_id:
            self.position.save(passed)
            self.confirmed_id = self.counts.last_event_id = passed

    def _finish(self) -> None:
        """Wait for what is on its way, and store where it ends."""
        with suppress(KafkaException):
            self._producer.flush(30 if self._failure is None else 5)
        self._advance()
        self.counts.connections = self.stream.connections
        if self._pending and self._failure is None:
            self._failure = _not_confirmed(self.pipeline, None)
        if self._failure is not None:
            raise self._failure
        self.tell(self.counts.line())


def _not_confirmed(pipeline: Pipeline, error: KafkaError | None) -> ServiceUnreachable:
    return ServiceUnreachable(
        f"Kafka at {settings().kafka_address()} did not confirm an event: {error.str() if error else 'no answer'}",
        remedy="./tidemark status; then start again: nothing is lost, it goes on after the last confirmed event",
        pipeline=pipeline.name,
    )
