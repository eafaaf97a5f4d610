"""Notes in the ledger how a stream ended that Airflow launched without waiting for it."""

from __future__ import annotations

import os
from collections.abc import Callable

from include.errors import ServiceUnreachable, TidemarkError
from include.ledger.streams import launches
from include.spark import yarn
from spark_jobs.spark.failures import translate
from spark_jobs.spark.log import log_of


def noting_end(run: Callable[[], int]) -> int:
    """Run a stream and return its exit code; where TIDEMARK_LAUNCH names a launch, note the code, also of errors."""
    _note_application()
    try:
        code = run()
    except Exception as error:
        # The edge of the process (`run_entry`): this is the exit code with which it is about to end.
        meaning = error if isinstance(error, TidemarkError) else translate(error)
        # What a library's error says may be data, so only its name is kept.
        _note(meaning.exit_code if meaning else TidemarkError.exit_code, str(meaning or type(error).__name__))
        raise
    _note(code)
    return code


def _note_application() -> None:
    """Note YARN's id of the driver, because its submitter may have died before noting it."""
    launch, application = os.environ.get("TIDEMARK_LAUNCH"), yarn.own_application(os.environ)
    if launch and application:
        launches.note_running(launch, application)


def _note(code: int, ended_with: str = "") -> None:
    launch = os.environ.get("TIDEMARK_LAUNCH")
    if launch:
        try:
            launches.note_end(launch, code, ended_with)
        except ServiceUnreachable as error:
            log_of().warning("%s", error)
