"""What a failure of Spark means, by exception types and error classes.

The text of an exception may quote a record, so it decides nothing. It is read only where the type shows who wrote it:
the operating system, the S3 client, or Tidemark's own Python data sources.
"""

from __future__ import annotations

import errno
import re
import secrets

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from include import errors, lake
from include.errors import (
    AnotherWriter,
    OffsetsLost,
    ReconciliationFailed,
    ServiceUnreachable,
    TidemarkError,
    Undecodable,
    UsageError,
    one_line,
)
from include.kafka.refusals import denied, not_admitted
from include.lake import object_store
from include.lake.disks import full_disk
from include.ledger.connection import does_not_answer
from spark_jobs.spark.checkpoint import checkpoint_damaged
from spark_jobs.spark.kafka_source import too_large
from spark_jobs.spark.thrown import MISSING, Thrown, below_lake, causes_of, chain_of, jvm_has_ended, place_without_space

SPARK_FAILURES = (PySparkException, Py4JJavaError)

_SECRET = secrets.token_hex(8)
"""A secret of this driver: no record and no transform can throw a text that begins with it."""

FAILED_FAST = f"tidemark {_SECRET}: a record cannot be decoded"
"""The prefix of the error that decoding throws where a decoder fails fast."""

UNRESOLVED = f"tidemark {_SECRET}: a schema id is not resolved yet"
"""The prefix of the error that decoding throws at a schema id that its plan does not know."""

OUTGROWN = f"tidemark {_SECRET}: a measure has outgrown its type"
"""The prefix of the error thrown at a measure that its declared type does not hold; the pipeline's name follows."""

_CONNECTOR = "org.apache.spark.sql.kafka010."
_WORKERS = "org.apache.spark.api.python."
_UNREACHABLE = {
    "org.apache.kafka.common.errors.TimeoutException",
    "org.apache.kafka.common.errors.DisconnectException",
    "org.apache.kafka.common.errors.NetworkException",
    "java.net.ConnectException",
    "java.net.NoRouteToHostException",
    "java.net.SocketTimeoutException",
    "java.net.UnknownHostException",
}
_DENIED = "org.apache.kafka.common.errors.AuthorizationException"
_NOT_ADMITTED = "org.apache.kafka.common.errors.AuthenticationException"
_AWAY = ("08", "53", "57P0")
"""SQL's codes of a connection that failed, of a server without room or connections left, and of one that ends."""
_STORE = ("software.amazon.awssdk.", "org.apache.hadoop.fs.s3a.")
_SOURCE_FAILED = "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR"
_FIRST_RAISED = re.compile(r"Traceback \(most recent call last\):\n((?:[ \t][^\n]*\n)*)([^\n]+)")
_LOADING = re.compile(
    r'\A  File "[^"\n]*", line \d+, in <module>$|^  File ".*", line \d+, in read_command$', re.MULTILINE
)
"""Frames of a worker that loads what it will call: PySpark's function that does, or, since PySpark leaves its own
frames out where there are others, those of a module that nothing else imports."""

_LAST_RAISED = re.compile(r".*\n(?=\S)([^\n]+)", re.DOTALL)
_OWN_ERROR = re.compile(r"include\.errors\.(\w+): (.+)")


def translate(error: Exception) -> TidemarkError | None:
    """Return the error of Tidemark's tree that a failure means, or None for any other failure."""
    if isinstance(error, ConnectionError | Py4JNetworkError) and jvm_has_ended():
        return TidemarkError(
            "Spark's JVM has ended (was memory short?); nothing half written was committed", remedy="start it again"
        )
    if isinstance(error, OSError):
        return _meaning_of_system(error)
    chain = list(chain_of(error))
    known = (meaning(each) for meaning in _MEANINGS for each in chain)
    return next((each for each in known if each is not None), None)


def end_of_query(query: StreamingQuery) -> Exception | None:
    """Return what a query ended with, with the Java exceptions behind it; None while it runs or was stopped.

    Of an exception that it has no class for, such as a store's in the query's own thread, PySpark keeps only the text.
    """
    failed = None if query.isActive else query.exception()
    if failed is not None:
        failed._origin = query._jsq.exception().get()  # type: ignore[attr-defined]
    return failed


def unresolved_id(error: Exception) -> int | None:
    """Return the schema id, unknown when a query was planned, at which it ended; None for any other failure."""
    raised = (each.raised for each in chain_of(error) if each.raised.startswith(f"{UNRESOLVED}: "))
    return next((int(each.removeprefix(f"{UNRESOLVED}: ")) for each in raised), None)


def root_cause(error: Exception) -> str:
    """Return kind and message of the innermost cause of Spark's error, as one line."""
    causes = list(causes_of(error))
    if not causes:
        return f"{type(error).__name__}: {one_line(str(error))}"
    # The message may quote the record.
    return f"{causes[-1].getClass().getSimpleName()}: {one_line(str(causes[-1].getMessage() or ''))}"


def _failed_in_source(thrown: Thrown) -> TidemarkError | None:
    """Return the error that one of Tidemark's Python data sources raised in its own process."""
    if thrown.condition == _SOURCE_FAILED:
        raised = _LAST_RAISED.match(thrown.parameters.get("msg", "").rstrip())
    else:
        raised = _first_raised(thrown)
    own = _OWN_ERROR.match(raised[raised.re.groups]) if raised else None
    kind = getattr(errors, own[1], None) if own else None
    if own is None or not isinstance(kind, type) or not issubclass(kind, TidemarkError):
        return None
    return kind(one_line(own[2]))


def _first_raised(thrown: Thrown) -> re.Match[str] | None:
    """Return frames and last line of the first traceback that a Python worker sent; None for any other failure.

    Only the first: later text may be an exception's message, which may quote a record.
    """
    by_python = "org.apache.spark.api.python.PythonException" in thrown.kinds
    return _FIRST_RAISED.search(thrown.message) if by_python else None


def _not_loaded_by_worker(thrown: Thrown) -> TidemarkError | None:
    """Return the error of a worker that could not read what to call, before it was given any record."""
    raised = _first_raised(thrown)
    if raised is None or not _LOADING.search(raised[1]):
        return None
    return TidemarkError(
        f"a Python worker cannot load what its driver sent: {one_line(raised[2])}; nothing of the micro-batch was "
        "committed",
        remedy="start it again: newer code may have been deployed; else install there what the code imports",
    )


def _store_unreachable(thrown: Thrown) -> TidemarkError | None:
    if not thrown.kinds[0].startswith(_STORE):
        return None
    return object_store.unreachable_error(lake.root(), f"{thrown.kinds[0]}: {thrown.message}")


def _file_unreadable(thrown: Thrown) -> TidemarkError | None:
    if not thrown.unread:
        return None
    # Its content can no longer be compared.
    state = "is missing" if thrown.condition in MISSING else "cannot be read, it is damaged"
    return ReconciliationFailed(
        f"{thrown.unread} {state}; nothing was registered",
        remedy="put it back from a copy (./tidemark doctor --deep names every damaged file), then run the interval "
        "again; without one: include/docs/runbook.md, “Files that are gone for good”",
    )


def _file_of_another_type(thrown: Thrown) -> TidemarkError | None:
    if thrown.condition != "FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH":
        return None
    said = thrown.parameters
    column = said.get("column", "").strip("[]")
    return UsageError(
        f"{below_lake(said.get('path', ''))} is as it was written, but its column {column} is "
        f"{said.get('actualType')} there, and declared as {said.get('expectedType')}; nothing was registered",
        remedy=f"declare {column} by the type that the file has, and let the transform return that, or, where files "
        "have it by several types, declare it under another name; include/docs/declaring.md, “Columns that change”",
    )


def _failed_fast(thrown: Thrown) -> TidemarkError | None:
    if not (raised := thrown.raised).startswith(f"{FAILED_FAST}: "):
        return None
    return Undecodable(
        f"{one_line(raised.removeprefix(f'{FAILED_FAST}: '))}: the decoder's mode is FAILFAST, "
        "nothing of its micro-batch was committed",
        remedy="have the record's producer corrected, or declare mode PERMISSIVE, which puts it into quarantine",
    )


def _schema_unresolved(thrown: Thrown) -> TidemarkError | None:
    # The runner of the query resolves the id and starts it again; no record is to blame.
    told = TidemarkError("a schema id was not resolved before decoding", remedy="start again")
    return told if thrown.raised.startswith(UNRESOLVED) else None


def _measure_outgrown(thrown: Thrown) -> TidemarkError | None:
    if not (raised := thrown.raised).startswith(f"{OUTGROWN}: "):
        return None
    pipeline, _, said = raised.removeprefix(f"{OUTGROWN}: ").partition(": ")
    return UsageError(
        f"{one_line(said)}; nothing of it was written",
        remedy=f'declare a wider type, then ./tidemark new-generation {pipeline} --reason "…"',
        pipeline=pipeline,
    )


def _offsets_lost(thrown: Thrown) -> TidemarkError | None:
    gone = "org.apache.kafka.clients.consumer.OffsetOutOfRangeException" in thrown.kinds
    if not gone and not thrown.condition.startswith("KAFKA_DATA_LOSS"):
        return None
    # A stream's own error, with its loss per topic partition, takes the place of this one.
    return OffsetsLost(
        one_line(thrown.message), remedy="read what was archived of an interval instead: --source archive"
    )


def _checkpoint_shared(thrown: Thrown) -> TidemarkError | None:
    if thrown.condition != "CONCURRENT_STREAM_LOG_UPDATE":
        return None
    return AnotherWriter(
        "another driver has written the checkpoint of this one: nothing was committed",
        remedy="nothing to do if another driver took over; else start the stream again",
    )


def _disk_full(thrown: Thrown) -> TidemarkError | None:
    place = place_without_space(thrown)
    return None if place is None else full_disk(place)


def _worker_late(thrown: Thrown) -> TidemarkError | None:
    # Its type is that of a service which does not answer.
    if not thrown.thrower.startswith(_WORKERS) or thrown.kinds[0] != "java.net.SocketTimeoutException":
        return None
    return TidemarkError(
        "a Python process of Spark did not start in time: the machine is too busy; nothing half written was committed",
        remedy="start it again, with fewer drivers at a time",
    )


def _service_unreachable(thrown: Thrown) -> TidemarkError | None:
    if thrown.kinds[0] == "java.net.ConnectException" and thrown.message.startswith("the deserializer "):
        # Of KafkaDeserializers.java: none of Tidemark's own services.
        return ServiceUnreachable(one_line(thrown.message), remedy="start that service; nothing was committed")
    is_unreachable = not _UNREACHABLE.isdisjoint(thrown.kinds)
    if thrown.kinds[0] == "java.util.concurrent.TimeoutException":
        is_unreachable = thrown.thrower.startswith(_CONNECTOR)
    if thrown.kinds[0] == "org.apache.kafka.common.config.ConfigException":
        is_unreachable = thrown.message.startswith("No resolvable bootstrap urls")
    return _unreachable(f"{thrown.kinds[0].rsplit('.', 1)[-1]}: {thrown.message}") if is_unreachable else None


def _catalog_unreachable(thrown: Thrown) -> TidemarkError | None:
    # Of all that Spark asks by JDBC, only the catalog's failures are looked at here.
    is_database = thrown.kinds[0] == "org.postgresql.util.PSQLException"
    return does_not_answer(thrown.message) if is_database and thrown.sql_state.startswith(_AWAY) else None


def _refused_by_brokers(thrown: Thrown) -> TidemarkError | None:
    refusal = denied if _DENIED in thrown.kinds else not_admitted if _NOT_ADMITTED in thrown.kinds else None
    return refusal(f"{thrown.kinds[0].rsplit('.', 1)[-1]}: {one_line(thrown.message)}") if refusal else None


_MEANINGS = (
    _failed_in_source,
    _not_loaded_by_worker,
    _store_unreachable,
    _file_of_another_type,
    _file_unreadable,
    _failed_fast,
    _schema_unresolved,
    _measure_outgrown,
    _offsets_lost,
    _checkpoint_shared,
    _disk_full,
    _worker_late,
    _refused_by_brokers,
    too_large,
    _service_unreachable,
    _catalog_unreachable,
    checkpoint_damaged,
)
"""In this order, each over the whole chain: a store that does not answer also makes files unreadable."""


def _meaning_of_system(error: OSError) -> TidemarkError | None:
    if refused := object_store.unreachable_error(lake.root(), str(error)):
        return refused
    if error.errno == errno.ENOSPC:
        return full_disk(str(error.filename or ""))
    return _unreachable(str(error)) if isinstance(error, ConnectionError | TimeoutError) else None


def _unreachable(text: str) -> ServiceUnreachable:
    return ServiceUnreachable(f"Kafka or PostgreSQL: {one_line(text)}", remedy="./tidemark status")
