"""What of Kubernetes' API server Spark's submission talks with: it keeps the objects it gets, and runs nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from include.services.process import free_port

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[a-z0-9.]+))/v1/namespaces/(?P<namespace>[a-z0-9-]+)/(?P<resource>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class RecordingApi(ThreadingHTTPServer):
    """Keeps the objects that it is sent, and answers with them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", free_port()), _Handler)
        self.asked: list[tuple[str, str, str]] = []
        """Verb, API group and resource of each request."""
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        """By resource and name."""
        self.sent: list[str] = []
        """Bodies of the requests."""
        self.refusal = ""
        """The message with which each request is refused, as 403."""
        self.log = ""
        """Log of each pod, with the times of its lines."""

    @property
    def master(self) -> str:
        """The master's URL for Spark."""
        return f"k8s://http://127.0.0.1:{self.server_port}"

    def of(self, resource: str) -> list[dict[str, Any]]:
        """Return the kept objects of a resource."""
        return [each for (kept, _), each in self.objects.items() if kept == resource]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RecordingApi

    def _answer(self, code: int, content: Any) -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        url = urlsplit(self.path)
        found = _PATH.fullmatch(url.path)
        if found is None:
            return self._answer(404, {"kind": "Status", "status": "Failure", "code": 404})
        group, resource, name = found["group"] or "", found["resource"], found["name"]
        if found["part"]:
            resource = f"{resource}/{found['part']}"
        verb = _VERBS.get(self.command) or ("get" if name else "list")
        if self.command == "DELETE" and not name:
            verb = "deletecollection"
        if "watch" in parse_qs(url.query):
            verb = "watch"
        self.server.asked.append((verb, group, resource))
        if self.server.refusal:
            return self._answer(
                403, {"kind": "Status", "status": "Failure", "code": 403, "message": self.server.refusal}
            )
        if resource == "pods/log":
            return self._answer(200, self.server.log)
        if body:
            self.server.sent.append(body)
            sent = yaml.safe_load(body)
            name = name or sent["metadata"]["name"]
            sent["metadata"] |= {"uid": f"uid-{name}", "namespace": found["namespace"], "resourceVersion": "1"}
            self.server.objects[resource, name] = sent
            return self._answer(201 if self.command == "POST" else 200, sent)
        if name is None:
            kept = self.server.of(resource)
            return self._answer(
                200, {"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": kept}
            )
        kept_one = self.server.objects.get((resource, name))
        if self.command == "DELETE":
            self.server.objects.pop((resource, name), None)
        if kept_one is None:
            return self._answer(404, {"kind": "Status", "status": "Failure", "code": 404})
        return self._answer(200, kept_one)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve  # noqa: N815 (the library's names)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def recording_api() -> Iterator[RecordingApi]:
    """Serve on a free port of the loopback interface."""
    server = RecordingApi()
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
