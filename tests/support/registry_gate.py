"""A gate before a real schema registry: asks for user and password, and can answer with an error instead."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from include.services.process import free_port


@dataclass
class Gate:
    """The state of the gate; `asked` has the path of every request."""

    target: str
    user: str = ""
    password: str = ""
    answer: int | None = None
    """Status that every request gets instead of the registry's answer."""
    port: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        credentials = f"{self.user}:{self.password}@" if self.user else ""
        return f"http://{credentials}127.0.0.1:{self.port}"

    def lets_in(self, authorization: str | None) -> bool:
        expected = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return not self.user or authorization == expected


@contextmanager
def open_gate(target: str, user: str = "", password: str = "") -> Iterator[Gate]:
    gate = Gate(target, user, password)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            gate.asked.append(self.path)
            if not gate.lets_in(self.headers.get("Authorization")):
                return self._say(401, b'{"error_code": 401, "message": "Unauthorized"}')
            if gate.answer is not None:
                return self._say(gate.answer, b'{"error_code": 50001, "message": "told to"}')
            length = int(self.headers.get("Content-Length") or 0)
            kind = {"Content-Type": self.headers["Content-Type"]} if length else {}
            found = httpx.request(
                self.command, gate.target + self.path, content=self.rfile.read(length), headers=kind, timeout=20
            )
            return self._say(found.status_code, found.content)

        do_POST = do_GET  # noqa: N815 the server's name for it

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
    gate.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
