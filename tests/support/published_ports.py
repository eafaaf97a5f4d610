"""Ports of this machine's loopback that lead to a container's, as an engine publishes them."""

from __future__ import annotations

import contextlib
import selectors
import socket
import socketserver
import threading


class _Connection(socketserver.BaseRequestHandler):
    """Passes bytes on, both ways, until both sides have ended."""

    def handle(self) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self.server.target, 10) as other:  # type: ignore[attr-defined]
            other.settimeout(None)
            self._pass_on({self.request: other, other: self.request})

    def _pass_on(self, sides: dict[socket.socket, socket.socket]) -> None:
        with selectors.DefaultSelector() as selector:
            for side in sides:
                selector.register(side, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    side = key.fileobj
                    assert isinstance(side, socket.socket)
                    if data := side.recv(65_536):
                        sides[side].sendall(data)
                    else:
                        selector.unregister(side)
                        sides[side].shutdown(socket.SHUT_WR)


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], target: tuple[str, int]) -> None:
        self.target = target
        super().__init__(address, _Connection)


class PublishedPorts:
    """The published ports of some containers."""

    def __init__(self) -> None:
        self._servers: list[_Server] = []

    def publish(self, host: str, port: int, target: tuple[str, int]) -> None:
        """Publish a container's port."""
        server = _Server((host, port), target)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._servers.append(server)

    def close(self) -> None:
        """Give the ports back."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
