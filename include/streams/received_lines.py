"""What a connection to a socket brings: its lines become files of the lake, which are noted in the ledger."""

from __future__ import annotations

import logging
import socket
import threading
import time
from datetime import UTC

from include import lake
from include.errors import TidemarkError, one_line
from include.ledger.streams import lines
from include.ledger.streams.lines import Connection, NotedFile
from include.ledger.streams.writers import Lease

ROLL_EVERY = 1.0
"""The longest that a received line waits for its file, seconds."""

ROLL_BYTES = 8 * 1024 * 1024
"""This many received bytes are written without waiting."""

MOST_BYTES = 64 * 1024 * 1024
"""A longer line ends its connection: no source sends such a message."""

_KEEPALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}
"""A server that vanished without a word is noticed after a minute; by Linux's defaults it takes two hours."""

_STOPPED = "stopped"
_CLOSED = "closed by the other side"


class ReceivedLines:
    """The files of one connection; its lines are counted from 1."""

    def __init__(self, lease: Lease, connection: Connection) -> None:
        self._lease = lease
        self._connection = connection
        self._files = connection.files
        self.lines = connection.lines

    def write(self, content: bytes) -> None:
        """Write complete lines to the next file, and note it."""
        lake.write_bytes(self._next(), content)
        self._note(content)

    def note_written(self) -> None:
        """Note the files that are written and not noted."""
        while lake.exists(self._next()):
            self._note(lake.read_bytes(self._next()))

    def _next(self) -> str:
        # The time, because a ledger that was restored gives the numbers of later connections again.
        opened = f"{self._connection.opened_at.astimezone(UTC):%Y%m%dT%H%M%S%f}"
        name = f"{self._connection.number:06d}-{opened}-{self._files:09d}.lines"
        return lake.uri("received", self._lease.pipeline, name)

    def _note(self, content: bytes) -> None:
        size, modified = lake.size_and_mtime(self._next())
        count = content.count(b"\n")
        file = NotedFile(self._next(), size, modified, self._connection.name, self.lines + 1)
        lines.note_received(self._lease, self._connection.number, file, count)
        self.lines += count
        self._files += 1


def note_left(lease: Lease) -> None:
    """Note the files that earlier drivers wrote and did not note: they were killed, or the ledger was away too long."""
    for connection in lines.left_open(lease.pipeline):
        ReceivedLines(lease, connection).note_written()


class OpenConnection:
    """A connection to a socket: writes the complete lines that it brings once a second, and notes how it ended."""

    def __init__(self, connected: socket.socket, address: str, lease: Lease) -> None:
        self._socket = connected
        self._lease = lease
        self._opened = lines.open_connection(lease, address)
        self._received = ReceivedLines(lease, self._opened)
        self._buffer = bytearray()
        self._ended = _STOPPED
        # Nothing is ever sent on it, so only this tells that the other side is gone.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
        connected.settimeout(0.2)

    def receive(self, stopping: threading.Event) -> int:
        """Receive until the other side closes or the feed stops, note how it ended, and return the number of lines."""
        ends_line = False
        written = time.monotonic()
        while not stopping.is_set():
            try:
                received = self._socket.recv(1 << 16)
            except TimeoutError:
                received = None
            except OSError as error:
                self._ended = f"broken: {one_line(str(error))}"
                break
            if received == b"":
                self._ended = _CLOSED
                break
            self._buffer += received or b""
            # A long line is not searched for its end with each read.
            ends_line = ends_line or b"\n" in (received or b"")
            if ends_line and (time.monotonic() - written > ROLL_EVERY or len(self._buffer) > ROLL_BYTES):
                self._write()
                written, ends_line = time.monotonic(), False
            if len(self._buffer) > MOST_BYTES:
                self._ended = f"given up: a line of more than {MOST_BYTES} bytes"
                break
        self._write()
        lines.close_connection(self._lease, self._opened.number, self._ended, len(self._buffer))
        if self._buffer or self._has_failed():
            logging.getLogger("tidemark").warning("%s", self._told())
        return self._received.lines

    def check(self) -> None:
        """Raise TidemarkError when it was broken or given up: nobody can tell what else the server would have sent."""
        if self._has_failed():
            raise TidemarkError(
                self._told(), remedy="start the stream again: it reads the lines that were received, and connects again"
            )

    def _has_failed(self) -> bool:
        return self._ended not in (_STOPPED, _CLOSED)

    def _told(self) -> str:
        return (
            f"connection {self._opened.name}, {self._ended}: {self._received.lines} lines were received, "
            f"{len(self._buffer)} bytes of an unfinished line are lost"
        )

    def _write(self) -> None:
        """Write the complete lines in the buffer to a file and note it; an incomplete line stays in the buffer."""
        end = self._buffer.rfind(b"\n") + 1
        if not end:
            return
        content = bytes(self._buffer[:end])
        try:
            self._received.write(content)
        except Exception:
            # The connection stays open in the ledger: the next driver notes what was written of it.
            logging.getLogger("tidemark").warning(
                "connection %s: the last %s lines that it brought could not be written or noted, and are lost unless "
                "their file is there",
                *(self._opened.name, content.count(b"\n")),
            )
            raise
        del self._buffer[:end]
