"""The edge of every Spark driver: each error becomes one line on standard error and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from include.errors import TidemarkError, UsageError
from include.spark import driver_folders
from include.spark.driver_lines import pipeline_of
from spark_jobs.spark import log
from spark_jobs.spark.failures import root_cause, translate


def run_entry(main: Callable[[list[str]], int], argv: list[str]) -> None:
    """Run an entry's main and end the process with its exit code."""
    code = 1
    pipeline = pipeline_of(argv)
    log.configure()
    driver_folders.hold()
    # These loggers would repeat every error of a query, as JSON with a stack trace.
    for context in ("SQL", "DataFrame"):
        PySparkLogger.getLogger(f"{context}QueryContextLogger").disabled = True
    try:
        code = main(argv)
    except TidemarkError as error:
        code = _fail(error, pipeline)
    except SystemExit as error:
        # Of argparse, whose 2 would mean that a validation failed.
        code = UsageError.exit_code if error.code else 0
    except Exception as error:
        # The edge of the process: its last line names any error, and no text of it is printed unescaped.
        meaning = translate(error)
        if meaning is None:
            log.log_of().error("failed with an error of unknown meaning", exc_info=True)
            meaning = TidemarkError(root_cause(error), remedy="see the stack trace above")
        code = _fail(meaning, pipeline)
    finally:
        # The error is already reported, also where the JVM has ended that the session is to be ended in.
        with suppress(Exception):
            _end_session()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: library threads outlive the interpreter, and one of them crashed a finished job while Python shut
    # down. Nothing is left to commit here.
    os._exit(code)


def end_now(error: TidemarkError, pipeline: str) -> NoReturn:
    """End the process from another thread than the main one, which waits, with an error's line and exit code."""
    code = _fail(error, pipeline)
    sys.stderr.flush()
    os._exit(code)


def _end_session() -> None:
    session = SparkSession.getActiveSession()
    if session is not None:
        # Tasks that the session's end cancels would only add stack traces.
        session.sparkContext.setLogLevel("OFF")
        session.stop()


def _fail(error: TidemarkError, pipeline: str) -> int:
    logger = log.log_of()
    error.pipeline = error.pipeline or pipeline
    if not isinstance(error, UsageError):
        logger.debug("%s", type(error).__name__, exc_info=True)
    logger.error("%s", error)
    return error.exit_code
