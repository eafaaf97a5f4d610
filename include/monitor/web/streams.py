"""The streams: all on one page, and a page for each."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from include.monitor.web.pages import page
from include.monitor.web.rights import CurrentVisitor, ReadablePipeline, readable

router = APIRouter()


@router.get("/")
def streams(request: Request, visitor: CurrentVisitor) -> Response:
    """Every pipeline's stream in a sentence."""
    return page(request, "streams.html", {"streams": [each.name for each in readable(visitor)]})


@router.get("/pipelines/{pipeline}")
def stream(request: Request, pipeline: ReadablePipeline) -> Response:
    """One pipeline's stream."""
    return page(request, "stream.html", {"pipeline": pipeline.name, "description": pipeline.description})
