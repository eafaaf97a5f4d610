"""Ledger, catalog and files are compared while intervals go on being registered: over a real ledger and lake."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from include import lake
from include.doctor import tables
from include.doctor.compare import disagreements_of
from include.lake.scan import TableScan, scan_table
from include.ledger.database import session
from include.ledger.models import Revision
from include.pipelines import load_pipeline
from tests.conftest import Home, last_hours
from tests.support.pages_world import World

pytestmark = pytest.mark.services

NAME = "isp_hits"


def test_no_disagreement_is_found_when_an_interval_is_registered_between_two_readings(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(load_pipeline(NAME), last_hours(8))
    for _ in range(4):
        world.stream()
    world.run(0)
    lake.delete(lake.uri("tables", "isp_hits", f"date={world.start:%Y-%m-%d}"))
    hours = [1, 2, 3]

    def scan(table: str) -> TableScan:
        """Return the current files, just before another interval is registered."""
        scanned = scan_table(table)
        if hours:
            world.run(hours.pop(0))
        return scanned

    monkeypatch.setattr(tables, "scan_table", scan)
    missing = [each for each in disagreements_of(world.pipeline, deep=False) if each.kind == "file missing"]
    assert hours == []
    # Only the files that are really gone: those of later hours were written during the first look.
    assert {(each.table, each.interval) for each in missing} == {("isp_hits", world.interval(0))}


def test_changed_content_is_found_only_when_the_look_is_deep(postgres: Home) -> None:
    world = World(load_pipeline("auction_bids"), last_hours(8))
    world.stream()
    world.run(0)
    with session() as ledger:
        for row in ledger.scalars(select(Revision).where(Revision.table_name == "auction_bids")):
            size = lake.size(f"{row.location}/part-0.parquet")
            row.files = {"part-0.parquet": {**row.files["part-0.parquet"], "bytes": size}}
    damaged = [
        {each.kind for each in disagreements_of(world.pipeline, deep=deep) if each.table == "auction_bids"}
        for deep in (False, True)
    ]
    assert damaged[1] - damaged[0] == {"changed content"}
