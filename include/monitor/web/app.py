"""The application: routers, headers of every answer, and errors as pages."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as AnyHttpError
from starlette.staticfiles import StaticFiles

from include.errors import ServiceUnreachable, TidemarkError
from include.monitor.text import clean
from include.monitor.web import intervals, quarantine, streams, tables, views
from include.monitor.web.pages import HEADERS, PICTURES, STATIC, page, wants_json
from include.monitor.web.rights import NotKnown, Rights
from include.pipelines import reread_changed

ROUTERS: tuple[APIRouter, ...] = (
    streams.router,
    views.router,
    intervals.router,
    tables.router,
    quarantine.router,
)
"""Routers of all pages; a module with a new page adds its router here."""


@dataclass(frozen=True)
class Problem:
    """What is shown instead of a page that cannot be shown."""

    status: int
    title: str
    what: str
    remedy: str = ""
    login: str = ""


def monitor_app(rights: Rights) -> FastAPI:
    """Return the application whose visitors are those that `rights` knows."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.rights = rights
    for router in ROUTERS:
        # A pipeline that is declared while the pages are served is shown, and one that is removed no longer.
        app.include_router(router, dependencies=[Depends(reread_changed)])
    app.add_api_route("/health", health, methods=["GET", "HEAD"])
    # No data: only the project's own scripts and styles.
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    # Airflow's pages of the DAGs show them.
    app.mount("/pictures", StaticFiles(directory=PICTURES), name="pictures")
    app.middleware("http")(with_headers)
    app.add_exception_handler(NotKnown, _not_known)
    app.add_exception_handler(TidemarkError, _failed)
    app.add_exception_handler(AnyHttpError, _refused)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(Exception, _unexpected)
    return app


def health() -> dict[str, object]:
    """Return that the application answers, and its process."""
    return {"status": "ok", "pid": os.getpid()}


async def with_headers(request: Request, answer_to: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add the policy to an answer. Only files whose address changes with their content may be cached."""
    # Before the answer: the mount of the files changes the root path.
    is_file = request.url.path.startswith(f"{request.scope.get('root_path', '')}/static/")
    return _with_policy(await answer_to(request), is_file=is_file)


def _with_policy(answer: Response, *, is_file: bool = False) -> Response:
    for name, value in HEADERS.items():
        answer.headers.setdefault(name, value)
    answer.headers["Cache-Control"] = "private, max-age=86400" if is_file else "no-store"
    return answer


async def _not_known(request: Request, error: Exception) -> Response:
    assert isinstance(error, NotKnown)
    if error.login and not wants_json(request) and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(error.login, 303)
    what = "log in first" if error.login else "open the address that ./tidemark monitor printed, with its token"
    return _answer(request, Problem(401, "Who are you?", what, login=error.login or ""))


_PLACES = (
    "From Streams you reach each pipeline with its views and its quarantine; from Intervals the calendar, each "
    "interval down to a record, and the tables."
)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHttpError | HTTPException)
    if error.status_code == 404 and error.detail == "Not Found":
        return _answer(request, Problem(404, "There is no such page", _PLACES))
    title = {403: "Not allowed", 404: "There is no such page"}.get(error.status_code, "This did not work")
    return _answer(request, Problem(error.status_code, title, str(error.detail)))


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, TidemarkError)
    status = 503 if isinstance(error, ServiceUnreachable) else 500
    return _answer(request, Problem(status, "This cannot be shown now", str(error)))


async def _not_understood(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    what = "; ".join(f"{each['loc'][-1]}: {_bound(each)}" for each in error.errors())
    return _answer(request, Problem(422, "This address has a wrong parameter", clean(what, 1000)))


_BOUNDS = {
    "missing": "is needed",
    "int_parsing": "a whole number is needed",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "string_too_long": "at most {max_length} characters",
}


def _bound(error: Mapping[str, Any]) -> str:
    """Return what a parameter has to be."""
    words = _BOUNDS.get(error["type"])
    return words.format(**error.get("ctx", {})) if words else str(error["msg"])


async def _unexpected(request: Request, error: Exception) -> Response:
    # The trace is the log's: Starlette raises the error again once the page is sent, past `with_headers`.
    remedy = "The log of the server that shows the pages has the trace; ./tidemark doctor may know more."
    problem = Problem(500, "This cannot be shown now", f"unexpected: {type(error).__name__}", remedy)
    return _with_policy(_answer(request, problem))


def _answer(request: Request, problem: Problem) -> Response:
    if wants_json(request):
        return JSONResponse({"error": problem.what, "title": problem.title}, problem.status)
    return page(request, "problem.html", problem, problem.status)
