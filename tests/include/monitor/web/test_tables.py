"""The page of a table without services: by which names it is found."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import HTTPException

from include.monitor.web import tables


@pytest.mark.parametrize("named", ["nest_cameras_hourly_counts", "lake.nest_cameras_hourly_counts"])
def test_table_is_found_when_it_is_named_with_its_database_or_without(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setattr(tables, "readable_pipeline", lambda name, _: name)
    monkeypatch.setattr(tables, "read_table", lambda pipeline, table, **_: (pipeline, table))
    monkeypatch.setattr(tables, "page", lambda request, template, data: data)
    visitor: Any = None
    found: Any = tables.table(visitor, named, visitor)
    assert found == ("nest_cameras", "nest_cameras_hourly_counts")
    with pytest.raises(HTTPException, match="there is no table 'lake'"):
        tables.table(visitor, "lake", visitor)
