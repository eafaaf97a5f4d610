"""Named points at which a fault test can kill (`kill -9`), pause (SIGSTOP) or hang a driver.

`TIDEMARK_CRASH_AT=name[:n]` kills the driver and its JVM when it passes the point for the n-th time.
`TIDEMARK_PAUSE_AT=name[:n]` stops it there until it receives SIGCONT. `TIDEMARK_HANG_AT=name[:n]` blocks the thread for
ever, while the driver's other threads go on. Without these variables a crash point costs three dictionary look-ups.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import psutil

_passed: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Kill, stop or hang this driver here if the environment asks for it."""
    crash, pause, hang = (os.environ.get(f"TIDEMARK_{what}_AT", "") for what in ("CRASH", "PAUSE", "HANG"))
    if not crash and not pause and not hang:
        return
    _passed[name] += 1
    if _is_now(crash, name):
        parent = psutil.Process().parent()
        if parent is not None and parent.name() == "java":
            parent.send_signal(signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    if _is_now(pause, name):
        # Sent to this thread: if another thread took the signal, this one would run on for a moment.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    if _is_now(hang, name):
        threading.Event().wait()


def _is_now(wanted: str, name: str) -> bool:
    at, _, nth = wanted.partition(":")
    return at == name and _passed[name] == int(nth or 1)
