"""The streams: all on one page, and a page for each; both update by themselves."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

from include.monitor.streams.metrics import metrics_text
from include.monitor.streams.page import StreamsPage, stream_page, streams_page
from include.monitor.streams.state import stream_state
from include.monitor.web.events import events
from include.monitor.web.pages import page, render
from include.monitor.web.rights import CurrentVisitor, ReadablePipeline, Visitor, readable, readable_refusals

router = APIRouter()


@router.api_route("/", methods=["GET", "HEAD"])
def streams(request: Request, visitor: CurrentVisitor) -> Response:
    """Every pipeline's stream in a sentence."""
    return page(request, "streams.html", _streams(visitor))


@router.get("/events")
def streams_events(request: Request, visitor: CurrentVisitor) -> Response:
    """The same page whenever it has changed."""
    return events(request, lambda: render(request, "streams.html", _streams(visitor)))


def _streams(visitor: Visitor) -> StreamsPage:
    return streams_page(readable(visitor), readable_refusals(visitor), visitor.may_read)


@router.get("/pipelines/{pipeline}")
def stream(request: Request, pipeline: ReadablePipeline) -> Response:
    """One pipeline's stream."""
    return page(request, "stream.html", stream_page(pipeline))


@router.get("/pipelines/{pipeline}/events")
def stream_events(request: Request, pipeline: ReadablePipeline) -> Response:
    """The same page whenever it has changed."""
    return events(request, lambda: render(request, "stream.html", stream_page(pipeline)))


@router.get("/pipelines/{pipeline}/spark")
def spark(pipeline: ReadablePipeline) -> Response:
    """Spark's own pages of the driver that runs now. Raise 404 when there are none."""
    state = stream_state(pipeline)
    if not state.spark_ui:
        why = "drivers that start with TIDEMARK_SPARK_UI=true serve them" if state.holder else "no driver runs"
        raise HTTPException(404, f"Spark's own pages of {pipeline.name} are not served: {why}")
    return RedirectResponse(state.spark_ui, 303)


@router.api_route("/metrics", methods=["GET", "HEAD"])
def metrics(visitor: CurrentVisitor) -> Response:
    """The metrics of the pipelines that the visitor may read."""
    return Response(metrics_text(readable(visitor), visitor.may_read), media_type=CONTENT_TYPE_LATEST)
