"""Ledger, catalog and files are compared while intervals go on being registered: over a real ledger and lake."""

from __future__ import annotations

import pytest
from sqlalchemy import select, update

from include import lake
from include.catalog import CatalogPartition
from include.doctor import tables
from include.doctor.compare import disagreements_of
from include.doctor.disagreement import MOVES_ASIDE
from include.doctor.tables import check_tables
from include.intervals.lake_of_ledger import OF_OTHER_LEDGER
from include.lake.scan import TableScan, scan_table
from include.ledger import inventory
from include.ledger.database import session
from include.ledger.inventory import KnownRevision
from include.ledger.models import IntervalRow, Revision
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


def test_unknown_revision_stays_when_the_lake_keeps_checkpoints_of_another_ledger(postgres: Home) -> None:
    pipeline = load_pipeline("gps_positions")
    location = lake.uri("tables", pipeline.table, "date=2026-11-18", "interval=2026-11-18T05", "r20261118T06-1")
    lake.write_text(f"{location}/part-0.parquet", "rows")
    checkpoint = lake.uri("checkpoints", pipeline.name, "g0", "archive")
    lake.write_text(f"{checkpoint}/metadata", '{"id": "of another ledger"}')
    lake.write_text(f"{checkpoint}/commits/6", "v1\n{}")

    def found() -> list[tuple[str, str, str]]:
        return [(each.location, each.repair, each.remedy) for each in check_tables(pipeline, deep=False)]

    assert found() == [(location, "", f"checkpoints/{pipeline.name}/g0: {OF_OTHER_LEDGER}")]
    lake.delete(lake.uri("checkpoints", pipeline.name))
    assert found() == [(location, "move aside", MOVES_ASIDE)]


def test_another_pipelines_revision_is_not_missed_when_its_table_was_dropped(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view `c` of pipeline `a_b` has the table that a view `b_c` of pipeline `a` had."""
    world = World(load_pipeline("nest_cameras"), last_hours(8))
    table, entries = world.pipeline.table, dict[tuple[str, str], CatalogPartition]()
    monkeypatch.setattr(tables, "partitions", lambda _: entries)
    theirs, own = (world.run(world.stream()) for _ in range(2))
    with session() as ledger:
        ledger.execute(update(IntervalRow).where(IntervalRow.id == theirs.id).values(pipeline="auction"))

    def found() -> set[tuple[str, str]]:
        # The support's files have another size than it notes.
        every = [each for each in check_tables(world.pipeline, deep=False) if each.table == table]
        return {(each.kind, each.interval.label if each.interval else "") for each in every}

    label = own.interval.label
    assert found() == {("revision not in the catalog", label), ("wrong size", label)}
    # While readers find it, its files are looked at.
    for each in inventory.revisions_of(table):
        entries[table, each.partition] = CatalogPartition(table, each.partition, each.location)
    assert found() == {("wrong size", label), ("wrong size", theirs.interval.label)}


def test_removed_revisions_are_not_read_when_a_table_had_many(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page's look costs the monitor what a table has, not all that it ever had."""
    world = World(load_pipeline("wiki_changes"), last_hours(8))
    for _ in range(4):
        world.stream()
        world.run(world.hours - 1)
    with session() as ledger:
        rows = list(ledger.scalars(select(Revision).where(Revision.table_name == "wiki_changes")))
        of_first = {each.name: getattr(rows[0], each.name) for each in Revision.__table__.columns}
        gone = f"{rows[0].location.rpartition('/')[0]}/gone-"
        for number in range(50):
            row = {**of_first, "id": f"gone-{number}", "location": f"{gone}{number}", "state": "removed"}
            ledger.add(Revision(**row))
    # Housekeeping was killed before it deleted the seventh; nobody knows the last.
    for number in (7, 50):
        lake.write_text(f"{gone}{number}/part-0.parquet", "rows")

    read: list[str] = []
    known = inventory._known

    def note(revision: Revision, interval: IntervalRow) -> KnownRevision:
        read.append(revision.id)
        return known(revision, interval)

    monkeypatch.setattr(inventory, "_known", note)
    monkeypatch.setattr(inventory, "_AT_ONCE", 2)
    found = [each for each in check_tables(world.pipeline, deep=False) if each.table == "wiki_changes"]
    unknown = [each.location for each in found if each.kind == "revision unknown to the ledger"]
    assert unknown == [f"{gone}50"]
    assert {each.id for each in rows} <= {*read}
    assert not [each for each in read if each.startswith("gone")]
    # In portions, each revision once.
    of_table = [each.revision for each in inventory.revisions_of("wiki_changes")]
    assert sorted(of_table) == sorted(each.id for each in rows)
