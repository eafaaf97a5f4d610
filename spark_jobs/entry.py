"""The edge of every Spark driver: errors become one line on standard error and an exit code."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from include import driver_folders, lake, object_store
from include.errors import (
    OffsetsLost,
    ReconciliationFailed,
    ServiceUnreachable,
    TidemarkError,
    Undecodable,
    UsageError,
    one_line,
)
from spark_jobs.decoding.avro_wire import is_unresolved
from spark_jobs.decoding.records import FAILED_FAST

_LOST = ("may have been lost", "KAFKA_DATA_LOSS", "OffsetOutOfRange")
_DISK_FULL = "No space left on device"
_NO_BROKER = ("TimeoutException", "Failed to update metadata", "Connection refused", "No resolvable bootstrap")
_FAILED_FAST = re.compile(rf"{FAILED_FAST}: (\S+-\d[^\n]*?)(?: SQLSTATE|\n|$)")
_UNREADABLE = re.compile(r"\[(?:FAILED_READ_FILE|PATH_NOT_FOUND)[^\]]*\][^\n]*?((?:file|[a-z0-9]+):/[^\s,]*[^\s,.])")


def translate(error: Exception) -> TidemarkError | None:
    """Spark's words for what the error tree knows; None for anything else."""
    text = str(error)
    if refused := object_store.unreachable(lake.root(), text):
        return refused
    if unreadable := _UNREADABLE.search(text):
        return unreadable_file(unreadable[1], text)
    if undecodable := _FAILED_FAST.search(text):
        return Undecodable(
            f"{undecodable[1].strip()}: the decoder's mode is FAILFAST, nothing of its micro-batch was committed",
            remedy="have the record's producer corrected, or declare mode PERMISSIVE, which puts it into quarantine",
        )
    if is_unresolved(error):
        # Whoever runs a query resolves the id and starts it again; no record is to blame.
        return TidemarkError("a schema id was not resolved before decoding", remedy="start again")
    if any(word in text for word in _LOST):
        return OffsetsLost(one_line(text), remedy="see `./tidemark ranges` and the topic's retention")
    if _DISK_FULL in text:
        return TidemarkError(
            f"{_DISK_FULL}: below {lake.root()} or Spark's local folder; nothing half written was committed",
            remedy="free space, then start it again: it goes on where it committed last",
        )
    if any(word in text for word in _NO_BROKER):
        return ServiceUnreachable(f"Kafka or PostgreSQL: {one_line(text)}", remedy="./tidemark status")
    return None


def root_cause(error: Exception) -> str:
    """What is at the bottom of Spark's error: kind and message of its innermost cause, one line."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if cause is None:
        # What a query reports of itself holds its cause as an error of Python's.
        inner = getattr(error, "_cause", None)
        return root_cause(inner) if isinstance(inner, Exception) else one_line(str(error))
    while cause.getCause() is not None:
        cause = cause.getCause()
    # The record may be quoted in it.
    return f"{cause.getClass().getSimpleName()}: {one_line(str(cause.getMessage() or ''))}"


def unreadable_file(path: str, text: str) -> ReconciliationFailed:
    """The error of a file of the lake that is missing or damaged: its content can no longer be compared."""
    below = path.replace("file:/", "file:///").replace("file://////", "file:///").removeprefix(lake.root() + "/")
    missing = "PATH_NOT_FOUND" in text or "FILE_NOT_EXIST" in text
    return ReconciliationFailed(
        f"{below} {'is missing' if missing else 'cannot be read, it is damaged'}; nothing was registered",
        remedy="put it back from a copy (./tidemark doctor names every damaged file), then run the interval again",
    )


def run_entry(main: Callable[[list[str]], int], argv: list[str]) -> None:
    """Run an entry's main and end the process with its exit code."""
    code = 1
    driver_folders.hold()
    # It would tell every error of a query a second time, as JSON with a stack trace.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        code = main(argv)
    except TidemarkError as error:
        code = _fail(error)
    except (PySparkException, Py4JError, OSError) as error:
        known = translate(error)
        if known is None:
            traceback.print_exc()
            known = TidemarkError(root_cause(error), remedy="the log above has the whole of it; rerun with --debug")
        code = _fail(known)
    finally:
        session = SparkSession.getActiveSession()
        if session is not None:
            # What was said is said: tasks that are cancelled by the end of the session only add stack traces.
            session.sparkContext.setLogLevel("OFF")
            session.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by sys.exit: libraries have threads that outlive the interpreter, and one of them has crashed a job that was
    # done while Python took itself apart. Everything is committed, or was not.
    os._exit(code)


def _fail(error: TidemarkError) -> int:
    if os.environ.get("TIDEMARK_DEBUG") and not isinstance(error, UsageError):
        traceback.print_exc()
    print(f"tidemark: {error}", file=sys.stderr, flush=True)
    return error.exit_code
