"""The application: routers, headers of every answer, and errors as pages."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from fastapi import APIRouter, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.exceptions import HTTPException as AnyHttpError
from starlette.staticfiles import StaticFiles

from include.errors import ServiceUnreachable, TidemarkError
from include.monitor.web import intervals, quarantine, streams, tables, views
from include.monitor.web.pages import HEADERS, PICTURES, STATIC, page, wants_json
from include.monitor.web.rights import NotKnown, Rights

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
        app.include_router(router)
    app.add_api_route("/health", health, methods=["GET"])
    # No data: only the project's own scripts and styles.
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    # Airflow's pages of the DAGs show them.
    app.mount("/pictures", StaticFiles(directory=PICTURES), name="pictures")
    app.middleware("http")(with_headers)
    app.add_exception_handler(NotKnown, _not_known)
    app.add_exception_handler(TidemarkError, _failed)
    app.add_exception_handler(AnyHttpError, _refused)
    return app


def health() -> dict[str, object]:
    """Return that the application answers, and its process."""
    return {"status": "ok", "pid": os.getpid()}


async def with_headers(request: Request, answer_to: Callable[[Request], Awaitable[Response]]) -> Response:
    """Add the policy to an answer. Only files whose address changes with their content may be cached."""
    is_file = request.url.path.startswith(f"{request.scope.get('root_path', '')}/static/")
    answer = await answer_to(request)
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


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnyHttpError | HTTPException)
    title = {403: "Not allowed", 404: "There is no such page"}.get(error.status_code, "This did not work")
    return _answer(request, Problem(error.status_code, title, str(error.detail)))


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, TidemarkError)
    status = 503 if isinstance(error, ServiceUnreachable) else 500
    return _answer(request, Problem(status, "This cannot be shown now", str(error)))


def _answer(request: Request, problem: Problem) -> Response:
    if wants_json(request):
        return JSONResponse({"error": problem.what, "title": problem.title}, problem.status)
    return page(request, "problem.html", problem, problem.status)
