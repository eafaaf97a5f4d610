"""A decoder written by the user: a Python function of one value's bytes, or of a batch of values.

Where the function fails on a value, only that record goes to quarantine; where it cannot connect to a service, none.
"""

from __future__ import annotations

import errno
import importlib
import socket
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from include.errors import ServiceUnreachable, TidemarkError, UsageError, one_line
from include.pipelines.spec import UserDefined
from spark_jobs.decoding.reasons import because, first_of, unreadable
from spark_jobs.spark.schemas import struct_of
from spark_jobs.spark.worker_code import WorkerCode, check_unchanged, worker_code

_NONE = "the function returned no message"

_UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN})
"""Of errors of the system that have no class of their own, those of a connection."""


def prepare(decoder: UserDefined) -> None:
    """Import the function. Raises UsageError when that fails, with the reason."""
    try:
        _function(decoder.function)
    except Exception as error:
        raise UsageError(
            f"{decoder.function} cannot decode: {one_line(f'{type(error).__name__}: {error}')}",
            remedy="correct the decoder's function, or install what it imports",
        ) from error


def parsable(decoder: UserDefined, value: Column) -> Column:
    """Return the value itself."""
    return value


def parse(decoder: UserDefined, value: Column) -> Column:
    """Return the value decoded once: struct<message, error>; null when it cannot be read."""
    returned = StructType().add("message", struct_of(decoder.schema)).add("error", StringType())
    function = _vectorised(decoder, returned) if decoder.vectorised else _scalar(decoder, returned)
    return function(F.when(unreadable(decoder.max_bytes, value, text=False).isNull(), value))


def message(parsed: Column) -> Column:
    """Return the message as a struct; null when the value is not a message."""
    return parsed["message"]


def failure(decoder: UserDefined, value: Column, parsed: Column) -> Column:
    """Return why the value is not a message: null_value, too_large, or undecodable with what was raised; else null."""
    return first_of(
        unreadable(decoder.max_bytes, value, text=False),
        F.when(parsed["message"].isNull(), because("undecodable", F.coalesce(parsed["error"], F.lit(_NONE)))),
    )


def code_of(decoder: UserDefined) -> WorkerCode:
    """Return the code that the decoder's Python workers run, as it was when this process first asked."""
    return worker_code(f"{__name__}:decode_batch", decoder.function)


def _function(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _in_worker(path: str, code: WorkerCode) -> Callable[..., Any]:
    """Return the function in a Python worker.

    Raises TidemarkError where it cannot be imported, or is of newer code than the driver's: that is no record's fault.
    """
    function, failure = None, ""
    try:
        function = _function(path)
    except Exception as error:
        failure = one_line(f"{type(error).__name__}: {error}")
    # Outside of the handler: an error's context would hide what it is from those who read it in Spark's words.
    check_unchanged(code)
    if function is None:
        raise TidemarkError(
            f"a Python worker cannot import {path}: {failure}",
            remedy="nothing of the micro-batch was committed: install what it imports there, and start it again",
        )
    return function


def _scalar(decoder: UserDefined, returned: StructType) -> Callable[[Column], Column]:
    path, names, code = decoder.function, struct_of(decoder.schema).names, code_of(decoder)

    def decode(value: bytearray | None) -> tuple[object, str | None]:
        if value is None:
            return None, None
        function = _in_worker(path, code)
        try:
            decoded = function(bytes(value))
            return (None if decoded is None else tuple(decoded.get(name) for name in names)), None
        except Exception as error:
            # User code: whatever else it raises concerns only this record.
            return None, _blamed(error)

    return F.udf(decode, returned, useArrow=True)


def _vectorised(decoder: UserDefined, returned: StructType) -> Callable[[Column], Column]:
    path, code = decoder.function, code_of(decoder)
    fields = to_arrow_schema(struct_of(decoder.schema), timezone="UTC")

    def decode(values: pa.Array) -> pa.Array:
        return decode_batch(_in_worker(path, code), values, pa.struct(list(fields)))

    decode.__annotations__ = {"values": pa.Array, "return": pa.Array}
    function: Callable[[Column], Column] = arrow_udf(decode, returned)  # type: ignore[call-overload]
    return function


def decode_batch(function: Callable[[pa.Array], pa.Array], values: pa.Array, kind: pa.StructType) -> pa.Array:
    """Return struct<message, error> for a batch of binary values; the function is called without the nulls.

    A batch on which the function raises is halved until the values that it raises on are isolated.
    """
    messages, errors = _decode_part(function, values.drop_null(), kind)
    back: list[int | None] = []
    at = 0
    for valid in values.is_valid().to_pylist():
        back.append(at if valid else None)
        at += bool(valid)
    places = pa.array(back, pa.int64())
    return pa.StructArray.from_arrays([messages.take(places), errors.take(places)], names=["message", "error"])


def _decode_part(
    function: Callable[[pa.Array], pa.Array], values: pa.Array, kind: pa.StructType
) -> tuple[pa.Array, pa.Array]:
    if not len(values):
        return pa.array([], kind), pa.array([], pa.string())
    try:
        decoded = function(values).cast(kind)
        if len(decoded) != len(values):
            raise ValueError(f"the function returned {len(decoded)} messages for {len(values)} values")
    except Exception as error:
        told = _blamed(error)
        if len(values) == 1:
            return pa.nulls(1, kind), pa.array([told])
        middle = len(values) // 2
        parts = [_decode_part(function, part, kind) for part in (values[:middle], values[middle:])]
        messages, errors = (pa.concat_arrays([part[n] for part in parts]) for n in (0, 1))
        return messages, errors
    return decoded, pa.nulls(len(values), pa.string())


def _blamed(error: Exception) -> str:
    """Return what was raised on a value, as one line. Raises ServiceUnreachable when a connection failed."""
    told = one_line(f"{type(error).__name__}: {error}")
    cause: BaseException | None = error
    while cause is not None and not _is_of_connection(cause):
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    if cause is not None:
        what, remedy = "the decoder's function cannot connect", "start that service"
        if isinstance(cause, TimeoutError) and cause.errno is None:
            what = "the decoder's function timed out"
            remedy += '; for a value that takes too long, raise another error "from None"'
        # Without its context, which would hide what it is from those who read it in Spark's words.
        raise ServiceUnreachable(f"{what}: {told}", remedy=f"{remedy}; nothing was committed") from None
    return told


def _is_of_connection(error: BaseException) -> bool:
    """Whether it says that a service does not answer. One whose host is off, or that a firewall hides, times out."""
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror):
        return True
    return isinstance(error, OSError) and error.errno in _UNREACHABLE
