"""Processes that a test looks at, and that may end at any moment: those below a driver's JVM live for milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil


def those(processes: Iterable[psutil.Process], wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
    """Return the processes of which `wanted` is true; one that has ended meanwhile is left out."""
    found = []
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            if wanted(each):
                found.append(each)
    return found
