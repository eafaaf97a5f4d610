"""Pages as responses: rendered from data with every value escaped, or the same data as JSON."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Undefined, pass_context
from jinja2.runtime import Context

from include.monitor.text import cell, duration, number, percent, quantity
from include.settings import REPOSITORY
from include.times import format_time

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
PICTURES = REPOSITORY / "include" / "docs" / "images"

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
"""No script and no style inside a page, nothing from elsewhere; Airflow shows the pages in a frame of its own."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Without a referrer a browser would not name the page that sends a form, and the form would be refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def page(request: Request, template: str, data: Any, status: int = 200) -> Response:
    """Return the template filled with `page=data`, or with `?format=json` the data itself."""
    if wants_json(request):
        return JSONResponse(as_json(data), status)
    return Response(render(request, template, data), status, media_type="text/html")


def wants_json(request: Request) -> bool:
    """Return whether the data is asked for instead of the page."""
    return request.query_params.get("format") == "json"


def render(request: Request, template: str, data: Any) -> str:
    """Return the filled template."""
    root = request.scope.get("root_path", "").rstrip("/")
    is_event = request.scope["path"].endswith("/events")
    return environment().get_template(template).render(page=data, root=root, now=datetime.now(UTC), is_event=is_event)


def as_json(data: Any) -> Any:
    """Return a dataclass and all in it as JSON values: times as ISO 8601 in UTC, durations in seconds.

    Numbers that JSON does not have are texts: `nan`, `inf`.
    """
    if is_dataclass(data) and not isinstance(data, type):
        return {each.name: as_json(getattr(data, each.name)) for each in fields(data)}
    if isinstance(data, datetime):
        return format_time(data)
    if isinstance(data, date):
        return data.isoformat()
    if isinstance(data, timedelta):
        return data.total_seconds()
    if isinstance(data, Enum):
        return data.value
    if isinstance(data, Mapping):
        return {str(key): as_json(value) for key, value in data.items()}
    if isinstance(data, list | tuple | set | frozenset):
        return [as_json(each) for each in data]
    if isinstance(data, float):
        return data if isfinite(data) else str(data)
    return data if data is None or isinstance(data, str | int) else str(data)


@cache
def environment() -> Environment:
    """Return the templates' environment; it escapes whatever a template's name ends in."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(href=_href, asset=_asset)
    made.filters.update(number=number, cell=cell, when=when, ago=ago, seconds=duration, quantity=quantity)
    made.filters.update(percent=percent)
    return made


@pass_context
def _href(context: Context, *segments: object, **query: object) -> str:
    """Return the address of a page below the application's prefix; each segment is quoted."""
    path = "/".join(quote(str(each), safe="=") for each in segments)
    wanted = {name: str(value) for name, value in query.items() if value not in (None, "")}
    return f"{context['root']}/{path}" + (f"?{urlencode(wanted)}" if wanted else "")


@pass_context
def _asset(context: Context, name: str) -> str:
    """Return the address of a file of `static/`; it depends on the content, so browsers may cache the file."""
    return f"{context['root']}/static/{name}?{_digest(name)}"


@cache
def _digest(name: str) -> str:
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def when(moment: datetime | None) -> str:
    """Return a time to the second, `–` for None."""
    return "–" if moment is None or isinstance(moment, Undefined) else format_time(moment.replace(microsecond=0))


@pass_context
def ago(context: Context, moment: datetime | None) -> str:
    """Return how long ago a time was, in words; `never` for None."""
    return "never" if moment is None else f"{duration((context['now'] - moment).total_seconds())} ago"
