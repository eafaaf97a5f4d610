"""Speed views as read from their topics: a thread reads while pages ask, and drops everything when none does."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache

import confluent_kafka
from confluent_kafka import KafkaError

from include import kafka
from include.errors import TidemarkError, one_line
from include.monitor.streams.live_windows import LiveWindows
from include.offsets import TopicIdentity, TopicPartition
from include.pipelines.spec import AdditiveView, Pipeline
from include.pipelines.spec.views import VERSION_HEADER
from include.times import parse_duration

IDLE = 60.0
"""Seconds without a request after which the thread stops reading."""

PATIENCE = 3.0
"""Seconds for which the first request waits for the topic's end."""

MOST = 200_000
"""How many messages of a topic are read back; with more, the windows are incomplete, and the page says so."""

AWAY = 3.0
"""Seconds until the next look for a topic that does not exist, or whose broker does not answer; and between two checks
whether the broker answers."""

DESCRIBED = 60.0
"""Seconds between two looks at the topic itself: topic partitions may be added, or another topic take its name."""

_MARGIN = timedelta(hours=1)
"""How far a producer's clock may be from that of the stream, which writes the messages."""

_NO_EARLIER = datetime.fromtimestamp(0, UTC)
"""Kafka knows no earlier time."""

_TOGETHER = 5_000
"""How many messages are taken at once."""


@dataclass
class Following:
    """A view that is followed."""

    pipeline: Pipeline
    view: AdditiveView
    asked_at: float
    windows: LiveWindows
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards the windows."""
    caught_up: threading.Event = field(default_factory=threading.Event)
    has_more: bool = False
    """Whether more was written in the time of the windows than is read back."""
    since: datetime | None = None
    """When the first message that is read was written; None: the topic is read from its beginning."""
    read_at: datetime | None = None
    """When its topic was last read to its end."""
    foreign: int = 0
    """How many messages are none of the view's; they are left out."""
    last_foreign: str = ""
    """Topic partition and offset of the last one."""
    topic: TopicIdentity | None = None
    """The topic that is read."""
    error: str = ""

    @property
    def is_cut(self) -> bool:
        """Whether messages of the windows may not have been read: what a window holds is written after it began."""
        oldest = self.windows.oldest
        return self.has_more or (self.since is not None and oldest is not None and oldest < self.since)


class ViewWatch:
    """Follows the views that are asked for, each in a thread."""

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._followed: dict[tuple[str, str], Following] = {}
        self._changing = threading.Lock()

    def follow(self, pipeline: Pipeline, view: AdditiveView, patience: float = PATIENCE) -> Following:
        """Return what is known of a view; the first request waits a moment. Windows are read under its lock."""
        with self._changing:
            # By the whole declaration: what is read for a former one is not shown under the new one's names.
            key = (pipeline.name, repr(view))
            if (known := self._followed.get(key)) is None:
                known = Following(pipeline, view, time.monotonic(), LiveWindows(view))
                threading.Thread(target=self._run, args=(key, known), daemon=True, name="view watch").start()
                # Not before: without a thread that reads it, it would stay unread for ever.
                self._followed[key] = known
            known.asked_at = time.monotonic()
        known.caught_up.wait(patience)
        return known

    def _run(self, key: tuple[str, str], known: Following) -> None:
        while self._is_wanted(key, known):
            try:
                self._read(key, known)
            except TidemarkError as error:
                known.error = str(error)
            except Exception as error:  # the thread's edge: it must go on, and the page say why nothing is seen
                known.error = one_line(str(error)) or type(error).__name__
            known.caught_up.set()
            time.sleep(AWAY)

    def _is_wanted(self, key: tuple[str, str], known: Following) -> bool:
        with self._changing:
            # A thread that pauses before it ends may find the one that a page has begun since.
            if self._followed.get(key) is not known:
                return False
            if time.monotonic() - known.asked_at < self._idle:
                return True
            del self._followed[key]
            return False

    def _read(self, key: tuple[str, str], known: Following) -> None:
        """Read the topic's newest windows, then new messages, until no page asks, or the topic has changed.

        Raises ServiceUnreachable.
        """
        starts = _starts(known)
        if not starts:
            known.error = f"no topic {known.view.speed.topic} exists: the stream has not written it yet"
            _forget(known)
            return
        known.foreign = 0
        with kafka.reaching_kafka():
            reader = kafka.consumer(**{"enable.partition.eof": True})
            try:
                reader.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, at) for tp, at in starts.items()])
                at_end: set[int] = set()
                known.error, looked, described = "", float("-inf"), time.monotonic()
                while self._is_wanted(key, known):
                    if time.monotonic() - described > DESCRIBED:
                        if _topic_of(known) != known.topic:
                            return
                        described = time.monotonic()
                    self._take(reader.consume(_TOGETHER, 0.5), known, at_end)
                    if len(at_end) == len(starts) and time.monotonic() - looked > AWAY:
                        _ask(reader, starts)
                        looked = time.monotonic()
                        known.error, known.read_at = "", datetime.now(UTC)
                        known.caught_up.set()
            finally:
                reader.close()

    @staticmethod
    def _take(messages: list[confluent_kafka.Message], known: Following, at_end: set[int]) -> None:
        with known.lock:
            for each in messages:
                if (error := each.error()) is None:
                    partition = each.partition() or 0
                    if not known.windows.note(each.key(), each.value(), _deleted_by(each), partition=partition):
                        known.foreign += 1
                        known.last_foreign = f"{each.topic()}-{partition} offset {each.offset()}"
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(each.partition() or 0)
                elif each.topic() is not None:  # else it is about the reader's group
                    raise confluent_kafka.KafkaException(error)
            known.windows.forget_old()


def _deleted_by(message: confluent_kafka.Message) -> int | None:
    """Return the version that a deletion names in its header; None for one that names none, and for a value."""
    headers = message.headers() or () if message.value() is None else ()
    named = [text for name, text in headers if name == VERSION_HEADER]
    try:
        return int(named[0] or b"") if named else None
    except ValueError:
        return None


def _ask(reader: confluent_kafka.Consumer, topic_partitions: Iterable[TopicPartition]) -> None:
    """Ask the broker for each end: a broker that is down sends nothing, like one without new messages."""
    for tp in topic_partitions:
        reader.get_watermark_offsets(confluent_kafka.TopicPartition(tp.topic, tp.partition), timeout=kafka.TIMEOUT)


def _topic_of(known: Following) -> TopicIdentity | None:
    """Return the view's topic as it is now; None without one. Raises ServiceUnreachable."""
    name = known.view.speed.topic
    return kafka.describe_topics([name]).get(name)


def _forget(known: Following) -> None:
    """Drop what was read: what a topic that was deleted since has held is no answer."""
    with known.lock:
        known.windows, known.read_at = LiveWindows(known.view), None


def _starts(known: Following) -> dict[TopicPartition, int]:
    """Return where the newest windows may begin, by the time of their messages; empty without a topic."""
    topic, before = _topic_of(known), known.topic
    if topic and before and topic.topic_id != before.topic_id:
        _forget(known)
    known.topic = topic
    bounds = kafka.offset_bounds(kafka.topic_partitions_of([topic] if topic else []))
    since = _since(known, bounds)
    by_time = kafka.offsets_at(since, bounds) if since else {}
    starts = {}
    known.has_more = False
    for tp, (low, end) in bounds.items():
        # For a view without a window everything counts.
        wanted = end if (at := by_time.get(tp, low)) is None else max(low, at)
        starts[tp] = max(wanted, end - MOST // len(bounds))
        known.has_more |= starts[tp] > wanted
    known.since = since if any(starts[tp] > low for tp, (low, _) in bounds.items()) else None
    return starts


def _since(known: Following, topic_partitions: Collection[TopicPartition]) -> datetime | None:
    """Return when the oldest window that is shown may have begun to be written; None stands for the beginning.

    Counted back from the newest message, after a quiet time too; a late row comes to a window for as long as the
    watermark waits for it.
    """
    span = known.windows.span
    if span is None or not topic_partitions:
        return None
    now = datetime.now(UTC)
    newest = min(now, kafka.newest_timestamp(topic_partitions) or now)
    return max(_NO_EARLIER, newest - span - parse_duration(known.view.speed.watermark) - _MARGIN)


@cache
def view_watch() -> ViewWatch:
    """Return this process's watch."""
    return ViewWatch()
