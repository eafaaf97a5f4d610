"""The quarantine: by reason and time, one record whole, and what somebody decides about it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Form, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response

from include import quarantine
from include.errors import UsageError
from include.monitor.history.quarantine import Discarded, bytes_of, read_quarantine, read_whole
from include.monitor.history.replays import Replays
from include.monitor.web.pages import page
from include.monitor.web.rights import ActedPipeline, CurrentVisitor, ReadablePipeline
from include.offsets import TopicPartition
from include.pipelines.spec import Pipeline
from include.quarantine import Selection

router = APIRouter()
replays = Replays()

FORM = "tidemark_form"
"""Cookie whose value each form sends back: another site can send neither."""

Offset = Annotated[int, Query(ge=0, lt=2**63)]
Partition = Annotated[int, Query(ge=0, lt=2**31)]
Count = Annotated[int | None, Query(ge=0, lt=2**63)]
Text = Annotated[str, Form(max_length=400)]


@router.get("/quarantine/{pipeline}")
def overview(
    request: Request,
    pipeline: ReadablePipeline,
    visitor: CurrentVisitor,
    reason: str = "",
    until: Count = None,
    discarded: Count = None,
    before: Count = None,
) -> Response:
    """Records by reason and time, and the latest of them; `discarded` and `before` are what a discard did."""
    token = _form_token(request)
    now = datetime.now(UTC)
    quarantine_page = read_quarantine(
        pipeline,
        now=now,
        reason=reason,
        until=until,
        may_act=visitor.may_act(pipeline.name),
        replay=replays.last(pipeline.name),
        token=token,
    )
    if discarded is not None:
        quarantine_page = replace(quarantine_page, discarded=Discarded(reason, discarded, before or 0))
    return _with_token(request, page(request, "quarantine.html", quarantine_page), token)


@router.get("/quarantine/{pipeline}/record")
def record(
    request: Request,
    pipeline: ReadablePipeline,
    visitor: CurrentVisitor,
    topic: str,
    partition: Partition,
    offset: Offset,
    topic_id: str = "",
) -> Response:
    """One record whole."""
    token = _form_token(request)
    raw = _find(pipeline, topic, partition, offset, topic_id)
    record_page = read_whole(pipeline, raw, may_act=visitor.may_act(pipeline.name), token=token)
    return _with_token(request, page(request, "quarantined.html", record_page), token)


@router.get("/quarantine/{pipeline}/download")
def download(
    pipeline: ReadablePipeline,
    topic: str,
    partition: Partition,
    offset: Offset,
    topic_id: str = "",
    part: str = "value",
) -> Response:
    """The bytes of a record's value or key."""
    content = bytes_of(_find(pipeline, topic, partition, offset, topic_id), part)
    if content is None:
        raise HTTPException(404, f"the record has no {part}")
    name = quote(f"{topic}-{partition}-{offset}.{part}")
    # Never shown: a browser would run what it takes for a page.
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(content, media_type="application/octet-stream", headers=headers)


def chosen(
    request: Request,
    pipeline: ActedPipeline,
    form: Text,
    topic: Text = "",
    partition: Text = "",
    offset: Text = "",
    code: Text = "",
    topic_id: Text = "",
) -> Selection:
    """Return the records that a form of these pages names. Raise 403 for a foreign form, 422 without a selection."""
    if not form or not secrets.compare_digest(form.encode(), request.cookies.get(FORM, "").encode()):
        raise HTTPException(403, "the form is not of this page, or too old: open the page again")
    try:
        selection = Selection.of(
            pipeline,
            topic or None,
            partition=int(partition) if partition else None,
            offset=int(offset) if offset else None,
            reason=code or None,
            topic_id=topic_id or None,
        )
    except (ValueError, UsageError) as error:
        raise HTTPException(422, f"not a selection of records: {error}") from error
    if selection.everything:
        raise HTTPException(422, "say which records: one, or all with a reason code")
    return selection


Chosen = Annotated[Selection, Depends(chosen)]


@router.post("/quarantine/{pipeline}/discard")
def discard(
    request: Request,
    pipeline: ActedPipeline,
    visitor: CurrentVisitor,
    selection: Chosen,
    why: Text,
) -> Response:
    """Discard records, as `./tidemark quarantine discard` does."""
    if not why.strip():
        raise HTTPException(422, "a discard needs its reason in words")
    counts = quarantine.discard(pipeline.name, selection, reason=why.strip(), by=visitor.name)
    return _back(request, pipeline, selection, counts)


@router.post("/quarantine/{pipeline}/replay")
def replay(
    request: Request,
    pipeline: ActedPipeline,
    visitor: CurrentVisitor,
    selection: Chosen,
) -> Response:
    """Begin a replay, as `./tidemark quarantine replay` does; the overview shows how it ends."""
    replays.begin(pipeline, selection, by=visitor.name)
    return _back(request, pipeline, Selection(), {})


def _find(pipeline: Pipeline, topic: str, partition: int, offset: int, topic_id: str) -> dict[str, object]:
    try:
        return quarantine.find(pipeline.name, TopicPartition(topic, partition), offset, topic_id or None)
    except UsageError as error:
        raise HTTPException(404, error.message) from error


def _form_token(request: Request) -> str:
    return request.cookies.get(FORM) or secrets.token_urlsafe(24)


def _with_token(request: Request, answer: Response, token: str) -> Response:
    path = request.scope.get("root_path", "") or "/"
    answer.set_cookie(FORM, token, httponly=True, samesite="strict", path=path, secure=request.url.scheme == "https")
    return answer


def _back(request: Request, pipeline: Pipeline, selection: Selection, counts: Mapping[str, int]) -> Response:
    place = f"{request.scope.get('root_path', '')}/quarantine/{pipeline.name}"
    if selection.offset is not None:
        named = {"topic": selection.topic, "partition": selection.partition, "offset": selection.offset}
        if selection.topic_id is not None:
            named["topic_id"] = selection.topic_id
        place = f"{place}/record?{urlencode(named)}"
    elif counts:
        before = counts["selected"] - counts["discarded"]
        done = {"reason": selection.reason or "", "discarded": counts["discarded"], "before": before}
        place = f"{place}?{urlencode(done)}"
    return RedirectResponse(place, 303)
