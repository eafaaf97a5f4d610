"""The tables: what each interval delivered over time, against what is usual."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from include.monitor.history.trend import DAYS, read_table
from include.monitor.web.pages import page
from include.monitor.web.rights import CurrentVisitor, readable_pipeline
from include.pipelines import declarations

router = APIRouter()


@router.get("/tables/{table}")
def table(
    request: Request, table: str, visitor: CurrentVisitor, days: Annotated[int, Query(ge=1, le=92)] = DAYS
) -> Response:
    """The trend of a table, named with its database or without."""
    table = table.removeprefix("lake.")
    owner = next((each.name for each in declarations().loaded if table in each.tables), None)
    if owner is None:
        raise HTTPException(404, f"there is no table {table!r}")
    pipeline = readable_pipeline(owner, visitor)
    return page(request, "table.html", read_table(pipeline, table, now=datetime.now(UTC), days=days))
