"""The last event of a followed stream that is in Kafka: a file below the home folder per pipeline and URL."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import fasteners

from include.errors import AnotherWriter, UsageError
from include.producing.event_stream import public_address
from include.settings import settings, write_private
from include.times import format_time, parse_time


@dataclass(frozen=True)
class Reached:
    """How far a stream was followed."""

    last_event_id: str = ""
    """Empty before the first event."""
    at: datetime | None = None
    """Time of that event; when the file lacks it, the time at which the id was stored."""


def refused_files(pipeline: str) -> list[Path]:
    """Return the files of this home folder with events of the pipeline's streams that Kafka refused."""
    return sorted((settings().home / "streams").glob(f"{pipeline}-*.refused.jsonl"))


@dataclass(frozen=True)
class StreamPosition:
    """Files in which the follower of one stream keeps its last event id and the events that Kafka refused."""

    pipeline: str
    url: str

    @property
    def path(self) -> Path:
        """Path of the file with the last event id."""
        digest = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        return settings().home / "streams" / f"{self.pipeline}-{digest}.json"

    @property
    def refused_path(self) -> Path:
        """Path of the file with refused events, one JSON object per line."""
        return self.path.with_suffix(".refused.jsonl")

    @contextmanager
    def locked(self) -> Iterator[Reached]:
        """Lock the position for this process and yield how far the stream was followed.

        All events up to there are in Kafka. Raise AnotherWriter when another process follows the stream, and
        UsageError when the file is damaged.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = fasteners.InterProcessLock(self.path.with_suffix(".lock"))
        if not lock.acquire(blocking=False):
            raise AnotherWriter(
                f"another process follows {public_address(self.url)}", remedy="stop that one", pipeline=self.pipeline
            )
        try:
            yield self._load()
        finally:
            lock.release()

    def _load(self) -> Reached:
        try:
            facts = json.loads(self.path.read_text())
            last, at = facts["last_event_id"], facts.get("last_event_at") or facts.get("saved_at")
            reached = Reached(last, parse_time(at) if at else None)
        except FileNotFoundError:
            return Reached()
        except (ValueError, KeyError, TypeError, AttributeError, UsageError):
            last = None
        if not isinstance(last, str):
            raise UsageError(
                f"{self.path} is damaged: it does not name the last event",
                remedy="restore it, or remove it to start with the stream's next event",
                pipeline=self.pipeline,
            )
        return reached

    def save(self, reached: Reached) -> None:
        """Store the position; it is on disk when this returns."""
        facts = {
            "pipeline": self.pipeline,
            "stream": public_address(self.url),
            "last_event_id": reached.last_event_id,
            "last_event_at": format_time(reached.at) if reached.at else None,
            "saved_at": format_time(datetime.now(UTC)),
        }
        write_private(self.path, json.dumps(facts, indent=2) + "\n", durable=True)

    def append_refused(self, event: RefusedEvent) -> None:
        """Append an event to the refused ones; it is on disk when this returns."""
        descriptor = os.open(self.refused_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "a+b") as file:
            file.seek(max(0, file.tell() - 1))
            # A full disk, or a kill, leaves half a line.
            before = b"" if file.read() in (b"", b"\n") else b"\n"
            file.write(before + json.dumps(asdict(event)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True)
class RefusedEvent:
    """An event that Kafka refused, with the reason."""

    event_id: str
    reason: str
    data: str
