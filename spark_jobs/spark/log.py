"""Lines that a driver logs on standard error, all in one form.

    tidemark: nest_cameras.archive: micro-batch 3 committed: 120 records, 2 quarantined, 0.8 s

Pipeline and query, if any, precede the text. No line holds a control character or a secret of the settings. Those of
a driver that Airflow has launched begin with their time, because its log grows for weeks:

    tidemark: 2026-11-20T05:00:00Z nest_cameras.archive: micro-batch 3 committed: 120 records, 2 quarantined, 0.8 s
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

from include.errors import UsageError
from include.spark.driver_lines import OWN, secret_values
from include.times import format_time

_NAME = "tidemark"


def configure() -> None:
    """Log this process's lines on standard error; with TIDEMARK_DEBUG also those for debugging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_OneForm(_secrets(), has_times="TIDEMARK_LAUNCH" in os.environ))
    logger = logging.getLogger(_NAME)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if os.environ.get("TIDEMARK_DEBUG") == "1" else logging.INFO)


def log_of(pipeline: str = "", query: str = "") -> logging.LoggerAdapter[logging.Logger]:
    """Return the log of a pipeline, or of one of its queries."""
    return logging.LoggerAdapter(logging.getLogger(_NAME), {"place": ".".join(filter(None, (pipeline, query)))})


class _OneForm(logging.Formatter):
    """Formats a message as one line, followed by its traceback if there is one."""

    def __init__(self, secrets: Iterable[str], *, has_times: bool) -> None:
        super().__init__()
        self._has_times = has_times
        # Longer ones first: one may be part of another.
        self._secrets = sorted(set(secrets), key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        place = getattr(record, "place", "")
        message = " ".join(self._safe(record.getMessage()).split())
        trace = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        told = ": ".join(filter(None, (place, message)))
        if self._has_times:
            told = f"{format_time(datetime.fromtimestamp(int(record.created), UTC))} {told}"
        return "\n".join([f"{OWN}{told}", *map(self._safe, trace)])

    def _safe(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return "".join(character if character.isprintable() else " " for character in text)


def _secrets() -> list[str]:
    """Return the secrets that can be read; the driver reports elsewhere what is wrong with the others."""
    known: list[str] = []
    with suppress(UsageError):
        for secret in secret_values():
            known.append(secret)
    return known
