"""What a step found, in the log of its task: the same lines as the command prints."""

from __future__ import annotations

import logging

from include.errors import TidemarkError
from include.intervals.reporting.summary import Step, summarize
from include.intervals.verdict import Verdict

_log = logging.getLogger(__name__)


def log_step(step: Step, attempt: int, verdict: Verdict | None = None, *, failed: bool = False) -> None:
    """Log what a step was given, read, found and wrote; if the ledger is down, only these lines are lost."""
    try:
        lines = summarize(step, attempt, verdict)
    except TidemarkError as error:
        lines = [f"{step} was taken, but what it found cannot be read: {error}"]
    for line in lines:
        _log.log(logging.ERROR if failed else logging.INFO, "%s", line)
