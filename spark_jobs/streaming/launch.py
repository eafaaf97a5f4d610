"""Streams that Airflow launched and nobody waits for: the ledger is told how they ended."""

from __future__ import annotations

import os
from collections.abc import Callable

from include.errors import ServiceUnreachable, TidemarkError
from include.ledger.streams import launches
from include.spark import yarn
from spark_jobs.spark.log import log_of


def noting_end(run: Callable[[], int]) -> int:
    """Run a stream and return its exit code; noted where TIDEMARK_LAUNCH names a launch, errors too."""
    _note_application()
    try:
        code = run()
    except TidemarkError as error:
        _note(error.exit_code)
        raise
    _note(code)
    return code


def _note_application() -> None:
    """Whoever submitted this driver may have died before it could note what YARN calls it."""
    launch, application = os.environ.get("TIDEMARK_LAUNCH"), yarn.own_application(os.environ)
    if launch and application:
        launches.note_application(launch, application)


def _note(code: int) -> None:
    launch = os.environ.get("TIDEMARK_LAUNCH")
    if launch:
        try:
            launches.note_end(launch, code)
        except ServiceUnreachable as error:
            log_of().warning("%s", error)
