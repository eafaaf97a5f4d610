"""A machine that starts no more threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest


@contextmanager
def no_thread_starts() -> Iterator[None]:
    """Let each start of a thread fail within the block, as at a limit of processes; one has to be tried."""
    failed = RuntimeError("can't start new thread")
    with patch.object(threading.Thread, "start", side_effect=failed), pytest.raises(RuntimeError, match="can't start"):
        yield
