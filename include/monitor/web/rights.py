"""Who asks, and what they may see and do: inside Airflow its users, and alone whoever has the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException, Request

from include.errors import PipelinesClash, TidemarkError
from include.pipelines import declarations, load_pipeline, pipeline_names
from include.pipelines.spec import Pipeline


class Visitor(Protocol):
    """Somebody whose name is known."""

    @property
    def name(self) -> str:
        """The name that decisions are recorded under."""

    def may_read(self, pipeline: str) -> bool:
        """Return whether they may read the pipeline's DAG."""

    def may_act(self, pipeline: str) -> bool:
        """Return whether they may trigger the pipeline's DAG."""


class Rights(Protocol):
    """Where the application runs: who its visitors are."""

    async def visitor(self, request: Request) -> Visitor:
        """Return the visitor of a request. Raise NotKnown."""


@dataclass
class NotKnown(Exception):
    """The request carries no valid credential."""

    login: str | None = None
    """Where a person can log in."""


async def current_visitor(request: Request) -> Visitor:
    """Return the visitor of a request. Raise NotKnown."""
    rights: Rights = request.app.state.rights
    return await rights.visitor(request)


CurrentVisitor = Annotated[Visitor, Depends(current_visitor)]


def readable(visitor: Visitor) -> list[Pipeline]:
    """Return the pipelines that the visitor may read and that can be loaded, by name."""
    return [each for each in declarations().loaded if visitor.may_read(each.name)]


def readable_refusals(visitor: Visitor) -> dict[str, TidemarkError]:
    """Return why pipelines that the visitor may read cannot run, by name."""
    refused = declarations().refused.items()
    return {name: _without_others(error, visitor) for name, error in refused if visitor.may_read(name)}


def _without_others(error: TidemarkError, visitor: Visitor) -> TidemarkError:
    """Return an error that names no pipeline that the visitor may not read."""
    if isinstance(error, PipelinesClash) and not all(map(visitor.may_read, error.pipelines)):
        return PipelinesClash("it writes what another pipeline writes", remedy="ask its operators")
    return error


def readable_pipeline(pipeline: str, visitor: CurrentVisitor) -> Pipeline:
    """Return the pipeline of the path. Raise 403 without the right to read it, 404 when it is not declared."""
    if pipeline not in pipeline_names():
        raise HTTPException(404, f"there is no pipeline {pipeline!r}")
    if not visitor.may_read(pipeline):
        raise HTTPException(403, f"reading {pipeline} needs the right to read its DAG interval__{pipeline}")
    return load_pipeline(pipeline)


ReadablePipeline = Annotated[Pipeline, Depends(readable_pipeline)]


def acted_pipeline(request: Request, pipeline: ReadablePipeline, visitor: CurrentVisitor) -> Pipeline:
    """Return the pipeline of the path. Raise 403 without the right to act on it, or when another site asks."""
    if not visitor.may_act(pipeline.name):
        raise HTTPException(403, f"this needs the right to trigger the DAG interval__{pipeline.name}")
    origin = request.headers.get("origin")
    # A browser names the page that asks; a program that sends its own token names none.
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "another site asked for this")
    return pipeline


ActedPipeline = Annotated[Pipeline, Depends(acted_pipeline)]
