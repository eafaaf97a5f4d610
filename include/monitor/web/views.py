"""The live views: what a speed view holds now, per window and key; the page updates by itself."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from include.errors import UsageError
from include.monitor.streams.answer_page import answer_page
from include.monitor.streams.view_page import ViewPage, find_view, view_page
from include.monitor.web.events import events
from include.monitor.web.pages import page, render
from include.monitor.web.rights import ReadablePipeline
from include.pipelines.spec import AdditiveView, Pipeline
from include.times import parse_time

router = APIRouter()

Words = Annotated[str, Query(max_length=64)]


@router.get("/pipelines/{pipeline}/views/{view}")
def view(request: Request, pipeline: ReadablePipeline, view: str, measure: Words = "", window: Words = "") -> Response:
    """One view of a pipeline."""
    return page(request, "view.html", _page(pipeline, view, measure, window))


@router.get("/pipelines/{pipeline}/views/{view}/events")
def view_events(
    request: Request, pipeline: ReadablePipeline, view: str, measure: Words = "", window: Words = ""
) -> Response:
    """The same page whenever it has changed."""
    _page(pipeline, view, measure, window)
    return events(request, lambda: render(request, "view.html", _page(pipeline, view, measure, window)))


@router.get("/pipelines/{pipeline}/views/{view}/answer")
def view_answer(
    request: Request,
    pipeline: ReadablePipeline,
    view: str,
    column: Words = "",
    key: Annotated[str | None, Query(max_length=400)] = None,
) -> Response:
    """The answer of both layers: for a key, else for the newest windows."""
    try:
        return page(request, "answer.html", answer_page(pipeline, _view(pipeline, view), column, key or None))
    except UsageError as error:
        raise HTTPException(422, str(error)) from None


def _page(pipeline: Pipeline, name: str, measure: str, window: str) -> ViewPage:
    return view_page(pipeline, _view(pipeline, name), measure, _start(window))


def _view(pipeline: Pipeline, name: str) -> AdditiveView:
    view = find_view(pipeline, name)
    if view is None:
        raise HTTPException(404, f"{pipeline.name} has no view {name!r}")
    return view


def _start(window: str) -> datetime | None:
    try:
        return parse_time(window) if window else None
    except UsageError as error:
        raise HTTPException(422, str(error)) from None
