"""Messages drawn from a file of real ones."""

from __future__ import annotations

import json
import random
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from include.producing.messages import format_milliseconds


class Sampled:
    """Messages of a file with one JSON object per line; each drawn message gets a new event time."""

    def __init__(self, path: Path, *, event_time: str) -> None:
        self._path = path
        self._event_time = event_time.split(".")

    @cached_property
    def _lines(self) -> list[str]:
        return [line for line in self._path.read_text(encoding="utf-8").split("\n") if line.strip()]

    def message(self, moment: datetime | None, rng: random.Random) -> bytes:
        """Return a random message with its event time set to `moment`, or removed for None."""
        drawn: dict[str, Any] = json.loads(rng.choice(self._lines))
        *parents, name = self._event_time
        inner = drawn
        for parent in parents:
            inner = inner[parent]
        if moment is None:
            del inner[name]
        else:
            inner[name] = format_milliseconds(moment)
        return json.dumps(drawn, separators=(",", ":"), ensure_ascii=False).encode()
