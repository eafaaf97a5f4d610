"""A server on loopback that answers requests with JSON."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from include.services.process import free_port

Answer = Callable[[str, str, dict[str, Any]], tuple[int, object]]
"""Returns status and body of the answer to a method, a path and the request's JSON, `{}` where it has none.

A body of bytes is sent as it is.
"""


@contextmanager
def answering(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Yield the server's address. A path is a whole URL when the client takes the server for a proxy."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            is_json = "json" in self.headers.get("Content-Type", "")
            code, answered = answer(self.command, self.path, json.loads(sent) if sent and is_json else {})
            text = answered if isinstance(answered, bytes) else json.dumps(answered).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET  # noqa: N815 the server's name for it

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", free_port()), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"https://localhost:{server.server_port}" if tls else f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
