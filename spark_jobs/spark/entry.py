"""The edge of every Spark driver: each error becomes one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from include.errors import TidemarkError, UsageError
from include.spark import driver_folders
from spark_jobs.spark import log
from spark_jobs.spark.failures import root_cause, translate


def run_entry(main: Callable[[list[str]], int], argv: list[str]) -> None:
    """Run an entry's main and end the process with its exit code."""
    code = 1
    log.configure()
    driver_folders.hold()
    # It would repeat every error of a query, as JSON with a stack trace.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        code = main(argv)
    except TidemarkError as error:
        code = _fail(error)
    except Exception as error:
        # The edge of the process: its last line names the error, whatever it is, and no text of it goes out raw.
        meaning = translate(error)
        if meaning is None:
            log.log_of().error("failed, and it is none of the failures that have a meaning", exc_info=True)
            meaning = TidemarkError(root_cause(error), remedy="the log above has the whole of it")
        code = _fail(meaning)
    finally:
        session = SparkSession.getActiveSession()
        if session is not None:
            # The error has been reported: tasks that are cancelled by the end of the session only add stack traces.
            session.sparkContext.setLogLevel("OFF")
            session.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by sys.exit: threads of libraries outlive the interpreter, and one of them crashed a finished job while Python
    # shut down. By now everything is committed, or is not.
    os._exit(code)


def _fail(error: TidemarkError) -> int:
    said = log.log_of()
    if not isinstance(error, UsageError):
        said.debug("%s", type(error).__name__, exc_info=True)
    said.error("%s", error)
    return error.exit_code
