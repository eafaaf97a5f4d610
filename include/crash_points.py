"""Named places where a fault test may end the process as `kill -9` would, or let it sleep as SIGSTOP does.

`TIDEMARK_CRASH_AT=name[:n]` ends the driver, and the JVM it belongs to, when it passes the place
named for the n-th time; `TIDEMARK_PAUSE_AT=name[:n]` stops it there until somebody sends SIGCONT.
Unset, a crash point costs two dictionary look-ups.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import psutil

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """End or stop this driver here if the environment asks for it."""
    crash, pause = os.environ.get("TIDEMARK_CRASH_AT", ""), os.environ.get("TIDEMARK_PAUSE_AT", "")
    if not crash and not pause:
        return
    _passed[name] += 1
    if _is_now(crash, name):
        parent = psutil.Process().parent()
        if parent is not None and parent.name() == "java":
            parent.send_signal(signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if _is_now(pause, name):
        # To this thread, not to the process: a stop taken by another thread would let this one run on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _is_now(wanted: str, name: str) -> bool:
    at, _, nth = wanted.partition(":")
    return at == name and _passed[name] == int(nth or 1)
