"""How far a followed stream is written to Kafka: a file below the home folder, one for each pipeline and URL."""

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
from include.producing.event_stream import shown_address
from include.settings import settings, write_private
from include.times import format_time


@dataclass(frozen=True)
class StreamPosition:
    """Where one follower of a stream keeps its id, and what Kafka refused."""

    pipeline: str
    url: str

    @property
    def path(self) -> Path:
        """The file with the id."""
        digest = hashlib.sha256(self.url.encode()).hexdigest()[:12]
        return settings().home / "streams" / f"{self.pipeline}-{digest}.json"

    @property
    def refused_path(self) -> Path:
        """A JSON object a line for each event that Kafka did not take."""
        return self.path.with_suffix(".refused.jsonl")

    @contextmanager
    def held(self) -> Iterator[str]:
        """The last id of which all before it is in Kafka, empty at first; nobody else has it meanwhile.

        Raises AnotherWriter when another process follows the stream.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = fasteners.InterProcessLock(self.path.with_suffix(".lock"))
        if not lock.acquire(blocking=False):
            raise AnotherWriter(
                f"another process follows {shown_address(self.url)}", remedy="stop that one", pipeline=self.pipeline
            )
        try:
            yield self._load()
        finally:
            lock.release()

    def _load(self) -> str:
        try:
            last = json.loads(self.path.read_text())["last_event_id"]
        except FileNotFoundError:
            return ""
        except (ValueError, KeyError, TypeError):
            last = None
        if not isinstance(last, str):
            raise UsageError(
                f"{self.path} is damaged: it does not say after which event the stream goes on",
                remedy="restore it, or remove it to begin at the stream's present",
                pipeline=self.pipeline,
            )
        return last

    def save(self, last_event_id: str) -> None:
        """Note the id, on disk when this returns."""
        facts = {
            "pipeline": self.pipeline,
            "stream": shown_address(self.url),
            "last_event_id": last_event_id,
            "saved_at": format_time(datetime.now(UTC)),
        }
        write_private(self.path, json.dumps(facts, indent=2) + "\n", durable=True)

    def keep_refused(self, event: RefusedEvent) -> None:
        """Keep an event that Kafka did not take, on disk when this returns."""
        descriptor = os.open(self.refused_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as file:
            file.write(json.dumps(asdict(event)) + "\n")
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True)
class RefusedEvent:
    """An event that Kafka did not take, whole, and why."""

    event_id: str
    reason: str
    data: str
