"""The streams: all on one page, and a page for each; both update by themselves."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST

from include.monitor.streams.metrics import metrics_text
from include.monitor.streams.page import stream_page, streams_page
from include.monitor.web.events import events
from include.monitor.web.pages import page, render
from include.monitor.web.rights import CurrentVisitor, ReadablePipeline, readable

router = APIRouter()


@router.get("/")
def streams(request: Request, visitor: CurrentVisitor) -> Response:
    """Every pipeline's stream in a sentence."""
    return page(request, "streams.html", streams_page(readable(visitor)))


@router.get("/events")
def streams_events(request: Request, visitor: CurrentVisitor) -> Response:
    """The same page whenever it has changed."""
    pipelines = readable(visitor)
    return events(request, lambda: render(request, "streams.html", streams_page(pipelines)))


@router.get("/pipelines/{pipeline}")
def stream(request: Request, pipeline: ReadablePipeline) -> Response:
    """One pipeline's stream."""
    return page(request, "stream.html", stream_page(pipeline))


@router.get("/pipelines/{pipeline}/events")
def stream_events(request: Request, pipeline: ReadablePipeline) -> Response:
    """The same page whenever it has changed."""
    return events(request, lambda: render(request, "stream.html", stream_page(pipeline)))


@router.get("/metrics")
def metrics(visitor: CurrentVisitor) -> Response:
    """The metrics of the pipelines that the visitor may read."""
    return Response(metrics_text(readable(visitor)), media_type=CONTENT_TYPE_LATEST)
