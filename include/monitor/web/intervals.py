"""The intervals: the calendar, and from an interval down to a file, a range of offsets and a record."""

from __future__ import annotations

import base64
import hashlib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from include import lake
from include.doctor.watch import doctor_watch
from include.errors import ServiceUnreachable
from include.monitor.history.calendar import DAYS, read_calendar
from include.monitor.history.drill import (
    FilePage,
    IntervalPage,
    RangePage,
    RecordPage,
    read_file,
    read_interval,
    read_range,
    read_record,
)
from include.monitor.web.pages import page
from include.monitor.web.rights import CurrentVisitor, ReadablePipeline, readable, readable_pipeline
from include.offsets import TopicPartition
from include.pipelines.spec import Pipeline

router = APIRouter()

Days = Annotated[int, Query(ge=1, le=92)]
Offset = Annotated[int, Query(ge=0, lt=2**63)]
Partition = Annotated[int, Query(ge=0, lt=2**31)]


@router.get("/intervals")
def calendar(request: Request, visitor: CurrentVisitor, days: Days = DAYS, pipeline: str = "") -> Response:
    """The calendar of all pipelines, or of one."""
    shown = [readable_pipeline(pipeline, visitor)] if pipeline else readable(visitor)
    calendar_page = read_calendar(shown, now=datetime.now(UTC), days=days)
    # Nobody waits here: the result of a first look is there at the next visit.
    looks = {each.name: doctor_watch().look(each, patience=0) for each in shown}
    names = tuple(each.name for each in readable(visitor))
    shown_page = replace(calendar_page, doctor=looks, days=days, only=pipeline, pipelines=names)
    return page(request, "intervals.html", shown_page)


@router.get("/intervals/{pipeline}/{label}")
def interval(request: Request, pipeline: ReadablePipeline, label: str) -> Response:
    """One interval with its tables, files and ranges."""
    interval_page = _interval(pipeline, label)
    look = doctor_watch().look(pipeline).about(label)
    return page(request, "interval.html", replace(interval_page, doctor=look, has_report=_has_report(interval_page)))


def _has_report(interval_page: IntervalPage) -> bool:
    # The page is of the ledger: it is shown while a bucket does not answer.
    with suppress(ServiceUnreachable):
        return lake.exists(_report_location(interval_page))
    return False


def _report_location(interval_page: IntervalPage) -> str:
    return lake.uri("reports", interval_page.pipeline, f"{interval_page.interval.label}.html")


@router.get("/intervals/{pipeline}/{label}/verdict")
def verdict(pipeline: ReadablePipeline, label: str) -> Response:
    """The verdict of its last attempt, as JSON."""
    return JSONResponse(dict(_interval(pipeline, label).verdict))


@router.get("/intervals/{pipeline}/{label}/report")
def report(pipeline: ReadablePipeline, label: str) -> Response:
    """The page that its last attempt wrote into the lake, unchanged."""
    interval_page = _interval(pipeline, label)
    location = _report_location(interval_page)
    if not lake.exists(location):
        raise HTTPException(
            404, f"{interval_page.interval} has no report: no attempt has ended, or an erasure builds it anew"
        )
    written = lake.read_text(location)
    # It is complete in itself: its one style is allowed by its hash, and nothing else is.
    digest = base64.b64encode(hashlib.sha256(_style_of(written).encode()).digest()).decode()
    policy = f"sandbox; default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    return HTMLResponse(written, headers={"Content-Security-Policy": policy})


def _style_of(html: str) -> str:
    return html.partition("<style>")[2].partition("</style>")[0]


@router.get("/intervals/{pipeline}/{label}/file")
def file(
    request: Request, pipeline: ReadablePipeline, label: str, table: str, partition: str, revision: str, name: str
) -> Response:
    """One file of a revision."""
    file_page: FilePage | None = read_file(_interval(pipeline, label), table, partition, revision, name)
    if file_page is None:
        raise HTTPException(404, f"{table} {partition} has no file {name} in revision {revision}")
    return page(request, "file.html", file_page)


@router.get("/intervals/{pipeline}/{label}/range")
def offset_range(
    request: Request, pipeline: ReadablePipeline, label: str, topic: str, partition: Partition
) -> Response:
    """One pinned range, with the micro-batches that hold it."""
    range_page: RangePage | None = read_range(_interval(pipeline, label), TopicPartition(topic, partition))
    if range_page is None:
        raise HTTPException(404, f"{label} of {pipeline.name} is not pinned to {topic}-{partition}")
    return page(request, "range.html", range_page)


@router.get("/intervals/{pipeline}/{label}/record")
def record(
    request: Request, pipeline: ReadablePipeline, label: str, topic: str, partition: Partition, offset: Offset
) -> Response:
    """One record: its fate, its rows, or why it is in quarantine."""
    record_page: RecordPage | None = read_record(
        pipeline, _interval(pipeline, label), TopicPartition(topic, partition), offset
    )
    if record_page is None:
        raise HTTPException(404, f"offset {offset} of {topic}-{partition} does not lie in {label}")
    return page(request, "record.html", record_page)


def _interval(pipeline: Pipeline, label: str) -> IntervalPage:
    interval_page = read_interval(pipeline, label)
    if interval_page is None:
        raise HTTPException(404, f"no interval of {pipeline.name} is pinned at {label}")
    return interval_page
