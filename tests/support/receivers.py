"""Receivers of alerts and lineage that really listen: a mail server and a web server, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller

from include.services.process import free_port


@dataclass
class Received:
    """What has arrived."""

    mails: list[Message] = field(default_factory=list)
    posts: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    """Of each post."""
    refuses: bool = False
    """Whether the web server answers with an error."""
    smtp: str = ""
    webhook: str = ""


@contextmanager
def listening(path: str = "/hook") -> Iterator[Received]:
    """Both receivers, until the block ends."""
    received = Received()
    with _mail_server(received), _web_server(received, path):
        yield received


@contextmanager
def _mail_server(received: Received) -> Iterator[None]:
    class Keep:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
            received.mails.append(message_from_bytes(envelope.content))
            return "250 kept"

    port = free_port(2525)
    controller = Controller(Keep(), hostname="127.0.0.1", port=port)
    controller.start()
    received.smtp = f"smtp://127.0.0.1:{port}"
    try:
        yield
    finally:
        controller.stop()


@contextmanager
def _web_server(received: Received, path: str) -> Iterator[None]:
    class Keep(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not received.refuses:
                received.posts.append(body)
                received.authorizations.append(self.headers.get("Authorization", ""))
            self.send_response(503 if received.refuses else 204)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            """Nothing: the test's output is its own."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keep)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    received.webhook = f"http://127.0.0.1:{server.server_port}{path}"
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
