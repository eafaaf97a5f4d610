"""A listener before a store's server that passes all bytes on, counts them, and notes what is asked for."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from include.services.process import free_port

_REQUEST = re.compile(rb"^(?:PUT|POST|GET|HEAD|DELETE) (\S+) HTTP/1\.1\r$", re.MULTILINE)


@dataclass
class Watched:
    """The traffic so far."""

    port: int = 0
    received: int = 0
    """Bytes from the server."""
    refuse: bytes = b""
    """Connections end at data with these bytes; if it is empty, everything is passed on."""
    _sent: bytearray = field(default_factory=bytearray)

    @property
    def bytes(self) -> int:
        """Bytes both ways."""
        return self.received + len(self._sent)

    @property
    def asked(self) -> list[str]:
        """Methods and targets of the requests."""
        return [found[0].decode().removesuffix(" HTTP/1.1\r") for found in _REQUEST.finditer(bytes(self._sent))]

    def forget(self) -> None:
        """Reset the counts."""
        self.received = 0
        self._sent.clear()


@contextmanager
def watching(endpoint: str) -> Iterator[Watched]:
    """Watch a server; clients are to use the port of the result."""
    where, watched = urlsplit(endpoint), Watched()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((where.hostname, where.port)) as server:
                answers = threading.Thread(target=self._answers, args=(server,), daemon=True)
                answers.start()
                with suppress(OSError):
                    while (piece := self.request.recv(1 << 16)) and not (watched.refuse and watched.refuse in piece):
                        watched._sent += piece
                        server.sendall(piece)
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)
                answers.join()

        def _answers(self, server: Any) -> None:
            with suppress(OSError):
                while piece := server.recv(1 << 16):
                    watched.received += len(piece)
                    self.request.sendall(piece)
            with suppress(OSError):
                self.request.shutdown(socket.SHUT_RDWR)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", free_port()), Handler) as server:
        watched.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield watched
        finally:
            server.shutdown()
