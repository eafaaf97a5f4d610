"""The page of `./tidemark top --serve`: a chart and a table of a file's content, served on loopback only.

The page loads only its own style and script. Names from data are inserted as text, never as markup.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.middleware.trustedhost import TrustedHostMiddleware

from include.errors import UsageError
from include.monitor import exact_json
from include.monitor.text import clean

HOST = "127.0.0.1"

MOST_EXACT = 2**53 - 1
"""Up to it, JavaScript reads every whole number as it is."""

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)

_TEMPLATES = Path(__file__).with_name("templates")
_ASSETS = {"live_top.css": "text/css; charset=utf-8", "live_top.js": "text/javascript; charset=utf-8"}
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def live_app(result: Path, title: str, pipeline: str) -> FastAPI:
    """Return the app that serves the page, its assets, and the cleaned file as `/top.json` (`{}` without a file)."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # Against DNS rebinding: another site's host name that resolves to this address gets no answer.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    pages = Environment(loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined)
    page = pages.get_template("live_top.html").render(title=clean(title), pipeline=clean(pipeline))

    @app.get("/")
    def index() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers=_HEADERS)

    @app.get("/top.json")
    def top() -> Response:
        shown = clean_counts(exact_json.loads(result.read_text())) if result.exists() else {}
        return JSONResponse(shown, headers=_HEADERS)

    @app.get("/{name}")
    def asset(name: str) -> Response:
        if name not in _ASSETS:
            return Response(status_code=404, headers=_HEADERS)
        return Response((_TEMPLATES / name).read_text(), media_type=_ASSETS[name], headers=_HEADERS)

    return app


def clean_counts(counts: dict[str, Any]) -> dict[str, Any]:
    """Return the counts per window with every text from data cleaned and shortened."""
    windows = [
        {**window, "total": _told(window["total"]), "rows": [[_told(cell) for cell in row] for row in window["rows"]]}
        for window in counts["windows"]
    ]
    return {**counts, "windows": windows}


def _told(value: Any) -> Any:
    """Return a text cleaned, and a decimal or long whole number as text: JavaScript would read a float."""
    is_rounded = isinstance(value, int) and abs(value) > MOST_EXACT
    return clean(str(value)) if is_rounded or isinstance(value, str | Decimal) else value


@contextmanager
def serving(app: FastAPI, port: int) -> Iterator[str]:
    """Serve the app inside the `with` block and yield its URL. Raise UsageError when the port cannot be used."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, port))
            # Connections that come before the server's loop runs wait in the queue instead of being refused.
            listening.listen()
        except OSError as error:
            raise UsageError(
                f"cannot listen on port {port} of {HOST}: {error.strerror}", remedy="choose another port: --port N"
            ) from error
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
        arguments = {"sockets": [listening]}
        thread = threading.Thread(target=server.run, kwargs=arguments, daemon=True, name="live page")
        thread.start()
        try:
            yield f"http://{HOST}:{listening.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(10)
