"""Decoders as a user writes them."""

from __future__ import annotations

import socket
import struct
from datetime import datetime
from typing import Any

import pyarrow as pa


def meter(value: bytes) -> dict[str, Any] | None:
    """Big-endian: device number, reading, and the length of the unit's name with it; nothing for device 0."""
    device, reading, length = struct.unpack_from(">IdB", value)
    unit = value[13 : 13 + length].decode()
    return {"device": device, "reading": reading, "unit": unit} if device else None


def meters(values: pa.Array) -> pa.Array:
    """The same for a batch."""
    return pa.array([meter(value) for value in values.to_pylist()])


def asked(value: bytes) -> dict[str, Any] | None:
    """Asks a registry that does not answer, but for values that it knows."""
    if value == b"short":
        try:
            socket.create_connection(("127.0.0.1", 1), timeout=5)
        except OSError as error:
            raise LookupError("no schema") from error
    return meter(value)


def all_asked(values: pa.Array) -> pa.Array:
    """The same for a batch."""
    return pa.array([asked(value) for value in values.to_pylist()])


def too_few(values: pa.Array) -> pa.Array:
    """Forgets a message."""
    return meters(values)[1:]


def moment(value: bytes) -> dict[str, Any]:
    """A time, mostly without its zone."""
    return {"at": datetime.fromisoformat(value.decode())}


def moments(values: pa.Array) -> pa.Array:
    """The same for a batch."""
    return pa.array([moment(value) for value in values.to_pylist()])
