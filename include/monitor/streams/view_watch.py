"""Speed views as read from their topics: a thread reads while pages ask, and drops everything when none does."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache

import confluent_kafka
from confluent_kafka import KafkaError

from include import kafka
from include.errors import TidemarkError, one_line
from include.monitor.streams.live_windows import LiveWindows
from include.offsets import TopicPartition
from include.pipelines.spec import AdditiveView, Pipeline
from include.topics import VERSION

IDLE = 60.0
"""Seconds without a request after which the thread stops reading."""

PATIENCE = 3.0
"""Seconds for which the first request waits for the topic's end."""

MOST = 200_000
"""How many messages of a topic are read back; with more, the windows are incomplete, and the page says so."""

AWAY = 3.0
"""Seconds until the next look for a topic that does not exist, or whose broker does not answer; and between two checks
whether the broker answers."""

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
    is_cut: bool = False
    read_at: datetime | None = None
    """When its topic was last read to its end."""
    error: str = ""


class ViewWatch:
    """Follows the views that are asked for, each in a thread."""

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._followed: dict[tuple[str, str], Following] = {}
        self._changing = threading.Lock()

    def follow(self, pipeline: Pipeline, view: AdditiveView, patience: float = PATIENCE) -> Following:
        """Return what is known of a view; the first request waits a moment. Windows are read under its lock."""
        with self._changing:
            key = (pipeline.name, view.name)
            if (known := self._followed.get(key)) is None:
                known = self._followed[key] = Following(pipeline, view, time.monotonic(), LiveWindows(view))
                threading.Thread(target=self._run, args=(key, known), daemon=True, name="view watch").start()
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
            if time.monotonic() - known.asked_at < self._idle:
                return True
            self._followed.pop(key, None)
            return False

    def _read(self, key: tuple[str, str], known: Following) -> None:
        """Read the topic's newest windows, then new messages, until no page asks. Raises ServiceUnreachable."""
        starts = _starts(known)
        if not starts:
            known.error = f"no topic {known.view.speed.topic} exists: the stream has not written it yet"
            with known.lock:
                # What one that was deleted since has held is no answer.
                known.windows, known.read_at = LiveWindows(known.view), None
            return
        with kafka.reaching_kafka():
            reader = kafka.consumer(**{"enable.partition.eof": True})
            try:
                reader.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, at) for tp, at in starts.items()])
                at_end: set[int] = set()
                known.error, looked = "", float("-inf")
                while self._is_wanted(key, known):
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
                    known.windows.note(each.key(), each.value(), _deleted_by(each))
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(each.partition() or 0)
                elif each.topic() is not None:  # else it is about the reader's group
                    raise confluent_kafka.KafkaException(error)
            known.windows.forget_old()


def _deleted_by(message: confluent_kafka.Message) -> int | None:
    """Return the version that a deletion names in its header; None for one that names none, and for a value."""
    named = [] if message.value() is not None else [text for name, text in message.headers() or () if name == VERSION]
    try:
        return int(named[0] or b"") if named else None
    except ValueError:
        return None


def _ask(reader: confluent_kafka.Consumer, topic_partitions: Iterable[TopicPartition]) -> None:
    """Ask the broker for each end: a broker that is down sends nothing, like one without new messages."""
    for tp in topic_partitions:
        reader.get_watermark_offsets(confluent_kafka.TopicPartition(tp.topic, tp.partition), timeout=kafka.TIMEOUT)


def _starts(known: Following) -> dict[TopicPartition, int]:
    """Return where the windows that are shown may begin, by the time of their messages; empty without a topic."""
    topics = kafka.describe_topics([known.view.speed.topic])
    bounds = kafka.offset_bounds(kafka.topic_partitions_of(topics.values()))
    span = known.windows.span
    by_time = kafka.offsets_at(datetime.now(UTC) - span - timedelta(hours=1), bounds) if span else {}
    starts = {}
    known.is_cut = False
    for tp, (low, end) in bounds.items():
        # For a view without a window everything counts.
        wanted = end if (at := by_time.get(tp, low)) is None else max(low, at)
        starts[tp] = max(wanted, end - MOST // len(bounds))
        known.is_cut |= starts[tp] > wanted
    return starts


@cache
def view_watch() -> ViewWatch:
    """Return this process's watch."""
    return ViewWatch()
