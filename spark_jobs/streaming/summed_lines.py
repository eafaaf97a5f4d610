"""Lines about amounts that a stream logs for as long as it runs: at most one a minute, with the sums since the last.

A detached driver's log is one file, which nobody rotates while the driver lives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

EVERY = 60.0
"""Least time between two lines, s."""


class SummedLines:
    """A line for the first amounts at once; later ones are added up until a minute is over.

    `text` formats the sums, `each` names what they are sums of. Threads may share it.
    """

    def __init__(
        self,
        log: logging.LoggerAdapter[logging.Logger],
        text: str,
        each: str = "micro-batches",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log, self._text, self._each, self._clock = log, text, each, clock
        self._lock = threading.Lock()
        self._told: float | None = None
        self._about = ""
        self._sums: tuple[float, ...] = ()
        self._many = 0

    def add(self, about: str, *amounts: float) -> None:
        """Add amounts, and log the sums if that is due, in a line that begins with `about`."""
        with self._lock:
            before = self._sums or (0,) * len(amounts)
            self._sums = tuple(a + b for a, b in zip(before, amounts, strict=True))
            self._about, self._many = about, self._many + 1
        self.tell_due()

    def tell_due(self) -> None:
        """Log what was added up, if the last line is a minute old."""
        if self._told is None or self._clock() - self._told >= EVERY:
            self.tell()

    def tell(self) -> None:
        """Log what was added up; nothing if there is nothing."""
        with self._lock:
            if not self._many:
                return
            together = f" in {self._many} {self._each}" if self._many > 1 else ""
            self._log.info(f"%s{self._text}%s", self._about, *self._sums, together)
            self._sums, self._many, self._told = (), 0, self._clock()
