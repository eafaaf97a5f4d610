"""Tables of both catalogs tell until when they are complete, as the ledger has it, whatever happened in which order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import psycopg2
import pytest
from pyiceberg.table import Table

from include import completeness, lake
from include.catalog.properties import properties, put_properties
from include.doctor.completeness import check_completeness
from include.errors import MetadataGone
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import tables
from include.iceberg.examine import deviations, restore
from include.ledger.completeness.properties import BY_PARTITION, KEYS, UNTIL, properties_after
from include.ledger.intervals import attempts, builds, locks, pins, revisions
from include.ledger.lineage import BuiltRevision
from include.offsets import OffsetRange
from include.pipelines import Declarations
from include.settings import settings
from tests.conftest import Home
from tests.support.open_tables import PASSED, OpenTable, pipeline_named, rows_of

pytestmark = pytest.mark.services

HOURS = [f"2026-11-18T{hour:02}:00:00Z" for hour in range(5, 12)]
"""Starts of the intervals 0, 1, …; an interval is complete at the start of the next one."""


@pytest.fixture
def archive(postgres: Home, pipeline: str) -> OpenTable:
    """A pipeline with an Iceberg table and a table of its name in the Hive catalog, as Spark would make it."""
    made = OpenTable(pipeline_named(f"t_{pipeline[-40:]}"))
    make_table(postgres, made.pipeline.table)
    return made


def make_table(postgres: Home, table: str) -> None:
    with psycopg2.connect(postgres.database.replace("/ledger", "/catalog")) as connection, connection.cursor() as hive:
        hive.execute(
            'INSERT INTO "DBS" ("DB_ID", "DB_LOCATION_URI", "NAME") SELECT 1, %s, %s '
            'WHERE NOT EXISTS (SELECT FROM "DBS" WHERE "NAME" = %s)',
            ["file:///", "lake", "lake"],
        )
        hive.execute(
            'INSERT INTO "TBLS" ("TBL_ID", "CREATE_TIME", "DB_ID", "LAST_ACCESS_TIME", "RETENTION", "TBL_NAME", '
            '"IS_REWRITE_ENABLED") SELECT (SELECT coalesce(max("TBL_ID"), 0) + 1 FROM "TBLS"), 0, "DB_ID", 0, 0, %s, '
            'false FROM "DBS" WHERE "NAME" = %s',
            [table, "lake"],
        )


def point_at(table: str, partitions: Iterable[str]) -> None:
    """Add partitions to a table of the Hive catalog, as a publication does, if it lacks them."""
    with psycopg2.connect(settings().database_uri("catalog")) as connection, connection.cursor() as hive:
        for each in partitions:
            hive.execute(
                'INSERT INTO "PARTITIONS" ("PART_ID", "CREATE_TIME", "LAST_ACCESS_TIME", "PART_NAME", "TBL_ID") '
                'SELECT (SELECT coalesce(max("PART_ID"), 0) + 1 FROM "PARTITIONS"), 0, 0, %s, "TBL_ID" FROM "TBLS" t '
                'WHERE "TBL_NAME" = %s AND NOT EXISTS '
                '(SELECT FROM "PARTITIONS" p WHERE p."TBL_ID" = t."TBL_ID" AND "PART_NAME" = %s)',
                [each, table, each],
            )


def put_back_catalog(table: str, partitions: int) -> None:
    """Put the Hive catalog back from a copy in which a table had only so many partitions."""
    with psycopg2.connect(settings().database_uri("catalog")) as connection, connection.cursor() as hive:
        hive.execute(
            'DELETE FROM "PARTITIONS" WHERE "PART_ID" IN (SELECT "PART_ID" FROM "PARTITIONS" JOIN "TBLS" '
            'USING ("TBL_ID") WHERE "TBL_NAME" = %s ORDER BY "PART_ID" OFFSET %s)',
            [table, partitions],
        )


def run(archive: OpenTable, hour: int, rows: int = 3) -> None:
    """Register an hour as publication does, without Spark."""
    register(archive, *archive.build(hour, {"2026-11-18": rows_of(hour, rows)}))


def register(archive: OpenTable, spec: attempts.AttemptSpec, built: list[BuiltRevision]) -> None:
    tables.prepare(archive.pipeline)
    begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
    point_at(archive.pipeline.table, (each.partition for each in built))
    name, interval = archive.pipeline.name, begun.pinned.interval
    with locks.publishing(name, interval), completeness.locked_properties(name):
        told = properties_after(begun)
        tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes, told)
        completeness.put_hive_properties(archive.pipeline, told)
        builds.finish_registration(begun)


def said(archive: OpenTable) -> dict[str, str]:
    """Return the properties of both catalogs, which must be equal."""
    name = archive.pipeline.table
    in_iceberg = {key: value for key, value in archive.load().properties.items() if key in KEYS}
    assert properties([name], KEYS) == {name: in_iceberg}
    assert list(check_completeness(archive.pipeline)) == []
    return in_iceberg


def until(archive: OpenTable) -> str | None:
    return said(archive).get(UNTIL)


def snapshots_of(table: Table) -> int:
    return len(table.snapshots())


def test_property_follows_registrations_when_they_are_out_of_order(archive: OpenTable) -> None:
    run(archive, 0)
    assert said(archive) == {
        UNTIL: HOURS[1],
        BY_PARTITION: json.dumps({"events": {"0": HOURS[1]}}, separators=(",", ":")),
    }
    archive.build(1, {})
    run(archive, 2)
    assert until(archive) == HOURS[1]
    run(archive, 1)
    assert until(archive) == HOURS[3]
    assert snapshots_of(archive.load()) == 3


def test_property_is_missing_when_the_first_interval_is_open(archive: OpenTable) -> None:
    archive.build(0, {})
    run(archive, 1)
    assert said(archive) == {}
    run(archive, 0)
    assert until(archive) == HOURS[2]


def test_property_steps_back_when_an_interval_is_pinned_again(archive: OpenTable) -> None:
    run(archive, 0)
    run(archive, 1)
    pinned = pins.last_interval(archive.pipeline.name)
    assert pinned is not None
    wider = [OffsetRange(r.topic_partition, r.from_offset, r.until_offset + 5, r.topic_id) for r in pinned.ranges]
    assert pins.replace_ranges(pinned, wider, repinned_by="test") is not None
    (hive, iceberg) = check_completeness(archive.pipeline)
    assert f"is complete until {HOURS[2]}, but until {HOURS[1]} in the ledger" in hive.what
    assert (hive.repair, iceberg.repair) == ("tell completeness", "tell completeness")
    assert len(completeness.follow_ledger(archive.pipeline)) == 2
    assert until(archive) == HOURS[1]
    assert completeness.follow_ledger(archive.pipeline) == []
    run(archive, 1)
    assert until(archive) == HOURS[2]


def test_property_stays_when_a_rerun_changes_nothing(archive: OpenTable) -> None:
    run(archive, 0)
    before = said(archive)
    run(archive, 0)
    assert said(archive) == before
    assert snapshots_of(archive.load()) == 1


def test_killed_before_its_end_a_registration_tells_the_same_when_it_is_finished(archive: OpenTable) -> None:
    run(archive, 0)
    spec, built = archive.build(1, {"2026-11-18": rows_of(1, 2)})
    begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
    told = properties_after(begun)
    assert told == properties_after(begun), "foreseeing keeps nothing"
    assert [each.build for each in builds.begun_registrations(archive.pipeline.name)] == [begun.build]
    tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes, told)
    point_at(archive.pipeline.table, (each.partition for each in built))
    # Doctor does not judge what is under way.
    with locks.publishing(archive.pipeline.name, begun.pinned.interval):
        assert list(check_completeness(archive.pipeline)) == []
    # Killed here.
    kinds = {each.kind for each in check_completeness(archive.pipeline)}
    assert kinds == {"registration not finished", "completeness told otherwise"}
    completeness.put_hive_properties(archive.pipeline, properties_after(begun))
    builds.finish_registration(begun)
    assert until(archive) == HOURS[2]


def test_doctor_repairs_a_property_when_somebody_changed_it(archive: OpenTable) -> None:
    run(archive, 0)
    name = archive.pipeline.table
    put_properties({name: {UNTIL: HOURS[5]}}, KEYS)
    with iceberg_catalog.opened() as catalog, catalog.load_table(("lake", name)).transaction() as transaction:
        transaction.remove_properties(*KEYS)
    whats = [each.what for each in check_completeness(archive.pipeline)]
    assert whats == [
        f"lake.{name} in the catalog is complete until {HOURS[5]}, but until {HOURS[1]} in the ledger",
        f"lake.{name} in Iceberg's catalog is complete until no time, but until {HOURS[1]} in the ledger",
    ]
    completeness.follow_ledger(archive.pipeline)
    assert until(archive) == HOURS[1]


def test_property_is_removed_when_the_table_s_view_was_removed(archive: OpenTable, postgres: Home) -> None:
    run(archive, 0)
    removed = f"{archive.pipeline.table}_gone"
    make_table(postgres, removed)
    own = "SELECT pipeline, %s, first_begin FROM table_begins WHERE table_name = %s"
    postgres.ledger(f"INSERT INTO table_begins {own}", removed, archive.pipeline.table)
    put_properties({removed: {UNTIL: HOURS[1]}}, KEYS)
    (found,) = check_completeness(archive.pipeline)
    assert found.what == f"lake.{removed} in the catalog is complete until {HOURS[1]}, but no pipeline declares it"
    run(archive, 1)
    assert properties([removed], KEYS) == {removed: {}}
    assert until(archive) == HOURS[2]
    # Another pipeline's view of that name is left to it.
    put_properties({removed: {UNTIL: HOURS[1]}}, KEYS)
    other = replace(archive.pipeline, name=removed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completeness, "declarations", lambda: Declarations((other,), {}))
        assert completeness.follow_ledger(archive.pipeline) == []


def test_other_tables_get_their_property_when_one_s_metadata_is_gone(archive: OpenTable) -> None:
    run(archive, 0)
    name = archive.pipeline.table
    put_properties({name: {}}, KEYS)
    location = archive.load().metadata_location
    Path(lake.filesystem(location)[1]).unlink()
    with pytest.raises(MetadataGone, match=f"the Iceberg table lake.{name}: its metadata is gone: .*doctor --repair"):
        completeness.follow_ledger(archive.pipeline)
    assert properties([name], KEYS)[name][UNTIL] == HOURS[1]
    assert [each.kind for each in deviations(archive.pipeline)] == ["missing metadata"]
    assert list(check_completeness(archive.pipeline)) == []
    assert any("was created again" in line for line in restore(archive.pipeline))
    assert len(completeness.follow_ledger(archive.pipeline)) == 1
    assert until(archive) == HOURS[1]


@pytest.mark.parametrize("partitions", [0, 1])
def test_table_has_no_property_when_the_catalog_that_was_put_back_lacks_registered_partitions(
    archive: OpenTable, caplog: pytest.LogCaptureFixture, partitions: int
) -> None:
    """Somebody dropped the table, or put the catalog back from a copy: a publication points at its own revisions."""
    for hour in range(2):
        run(archive, hour)
    name = archive.pipeline.table
    put_back_catalog(name, partitions)
    assert [each.repair for each in check_completeness(archive.pipeline)] == ["tell completeness"]
    run(archive, 2)
    assert properties([name], KEYS) == {name: {}}
    assert archive.load().properties[UNTIL] == HOURS[3]
    assert f"lake.{name} states no time of completeness: the catalog lacks {2 - partitions} of its" in caplog.text
    # What the catalog lacks is another finding.
    assert list(check_completeness(archive.pipeline)) == []
    assert completeness.follow_ledger(archive.pipeline) == []
    point_at(name, (each.partition for each in revisions.registered(name)))
    assert completeness.follow_ledger(archive.pipeline) != []
    assert until(archive) == HOURS[3]


def test_property_stays_when_another_interval_is_being_registered(archive: OpenTable) -> None:
    """Rows that move to another table partition are missing from the catalog for a moment."""
    run(archive, 0)
    spec, built = archive.build(0, {"2026-11-17": rows_of(0, 2)})
    builds.begin_registration(spec, PASSED, archive.changes(spec, built))
    put_back_catalog(archive.pipeline.table, 0)
    name = archive.pipeline.table
    with locks.publishing(archive.pipeline.name, spec.pinned.interval):
        run(archive, 1)
    assert properties([name], KEYS)[name][UNTIL] == HOURS[2]
    # Nobody goes on with it: its registered rows are missing for longer than a moment.
    completeness.follow_ledger(archive.pipeline)
    assert properties([name], KEYS) == {name: {}}


def test_table_is_left_out_when_it_is_not_in_the_catalog(archive: OpenTable) -> None:
    assert put_properties({"no_table": {UNTIL: HOURS[0]}}, KEYS) == []
    assert properties(["no_table"], KEYS) == {}


def test_iceberg_table_has_no_property_when_it_was_made_after_intervals_were_registered(archive: OpenTable) -> None:
    """It was declared later, or somebody dropped it."""
    for hour in range(2):
        run(archive, hour)
    name = archive.pipeline.table
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(("lake", name))
    run(archive, 2)
    assert archive.load().scan().to_arrow().num_rows == 3
    assert properties([name], KEYS)[name][UNTIL] == HOURS[3]
    assert not archive.load().properties.keys() & {*KEYS}
    assert completeness.follow_ledger(archive.pipeline) == []
    assert not archive.load().properties.keys() & {*KEYS}
    # What the table lacks is another finding.
    assert list(check_completeness(archive.pipeline)) == []
    run(archive, 2, rows=2)
    assert not archive.load().properties.keys() & {*KEYS}
    assert len(restore(archive.pipeline)) == 2
    assert completeness.follow_ledger(archive.pipeline) != []
    assert until(archive) == HOURS[3]
    run(archive, 1, rows=5)
    assert until(archive) == HOURS[3]
