"""Named places where a fault test may end the process as `kill -9` would.

`TIDEMARK_CRASH_AT=name[:n]` ends the driver, and the JVM it belongs to, when it passes the place
named for the n-th time. Unset, a crash point costs one dictionary look-up.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

import psutil

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """End this driver here if the environment asks for it."""
    wanted = os.environ.get("TIDEMARK_CRASH_AT")
    if not wanted:
        return
    at, _, nth = wanted.partition(":")
    if at != name:
        return
    _passed[name] += 1
    if _passed[name] == int(nth or 1):
        parent = psutil.Process().parent()
        if parent is not None and parent.name() == "java":
            parent.send_signal(signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
