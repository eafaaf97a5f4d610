"""How a command ends when a crash point has killed it, or its driver."""

from __future__ import annotations

from subprocess import CompletedProcess


def was_killed(ended: CompletedProcess[str]) -> bool:
    """Return whether the command's own process was killed, or its driver, which it reports."""
    return ended.returncode < 0 or (ended.returncode == 1 and "the driver was killed (signal 9)" in ended.stderr)
