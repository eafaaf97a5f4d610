"""Waiting for what nobody announces: it is asked for again and again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_for(
    ask: Callable[[], Answer], ready: Callable[[Answer], bool] = bool, *, seconds: float, every: float = 1.0
) -> Answer:
    """Return the first answer that is ready, by default one that is true; the last one when none was in time.

    It is asked at once, and `every` seconds after each answer. An answer that comes after `seconds` is the last.
    """
    given_up = time.monotonic() + seconds
    while not ready(answer := ask()) and time.monotonic() < given_up:
        time.sleep(every)
    return answer
