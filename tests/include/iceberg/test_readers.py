"""What other readers find in an Iceberg table: registered rows, pruned to partitions, and those of earlier verdicts."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import And, EqualTo
from pyiceberg.table import StaticTable

from include.ledger.intervals import revisions
from include.ledger.intervals.findings import IcebergSnapshot
from include.ledger.lineage import BuiltRevision
from tests.conftest import Home
from tests.support import duckdb_iceberg
from tests.support.open_tables import OpenTable, comparable, pipeline_named, rows_in, rows_of

pytestmark = pytest.mark.services

NAMES = ("date", "interval", "device", "speed", "at", "local", "day", "price", "small", "raw", "tags", "place", "facts")


@dataclass
class World:
    archive: OpenTable
    first: IcebergSnapshot
    """Of an interval that was run again since, with fewer rows."""
    built_first: list[BuiltRevision]
    """What it registered then; the files are still there."""
    last: IcebergSnapshot


@pytest.fixture(scope="module")
def world(postgres: Home) -> World:
    archive = OpenTable(pipeline_named("read_by_others"))
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 9), "2026-11-17": rows_of(0, 3, 500)})
    first = archive.publish(spec, built)
    archive.run(1, {"2026-11-18": rows_of(1, 5)})
    return World(archive, first, built, archive.run(0, {"2026-11-18": rows_of(0, 7)}))


def test_pyiceberg_reads_partition_values_when_rows_are_registered(world: World) -> None:
    found = world.archive.load().scan().to_arrow()
    assert comparable(found, NAMES) == comparable(world.archive.registered_rows(), NAMES)


def test_pyiceberg_prunes_to_the_partition_when_a_filter_names_it(world: World) -> None:
    wanted = And(EqualTo("date", "2026-11-18"), EqualTo("interval", "2026-11-18T06"))
    scan = world.archive.load().scan(row_filter=wanted)
    (registered,) = revisions.registered(world.archive.pipeline.table, "date=2026-11-18/interval=2026-11-18T06")
    assert [task.file.file_path for task in scan.plan_files()] == [
        f"{registered.location}/{name}" for name in registered.files
    ]
    found = scan.to_arrow()
    assert found.num_rows == registered.rows == 5
    assert comparable(found, NAMES) == comparable(rows_in([registered]), NAMES)


def test_metadata_is_enough_when_the_catalog_is_not_used(world: World) -> None:
    found = StaticTable.from_metadata(world.last.metadata).scan().to_arrow()
    assert comparable(found, NAMES) == comparable(world.archive.registered_rows(), NAMES)


def test_metadata_of_a_verdict_is_there_when_many_intervals_were_registered_since() -> None:
    archive = OpenTable(pipeline_named("read_much_later"))
    first = archive.run(0, {"2026-11-18": rows_of(0, 9)})
    for hour in range(1, 26):
        archive.run(hour, {"2026-11-18": rows_of(hour, 1)})
    assert StaticTable.from_metadata(first.metadata).scan().to_arrow().num_rows == 9


def test_earlier_rows_are_read_when_a_verdict_s_tag_is_named(world: World) -> None:
    table = world.archive.load()
    earlier = table.scan(snapshot_id=table.refs()[world.first.tag].snapshot_id).to_arrow()
    assert earlier.num_rows == sum(each.rows for each in world.built_first) == 12
    assert comparable(earlier, NAMES) == comparable(rows_in(world.built_first), NAMES)
    assert comparable(earlier, NAMES) != comparable(world.archive.registered_rows(), NAMES)


def test_polars_reads_the_registered_rows_when_it_scans_the_table(world: World) -> None:
    found = pl.scan_iceberg(world.last.metadata, reader_override="pyiceberg").collect().to_arrow()
    assert found.num_rows == 12
    plain = [name for name in NAMES if name not in ("facts",)]
    assert comparable(found, plain) == comparable(world.archive.registered_rows(), plain)


def test_pyarrow_reads_the_planned_files_when_it_scans_the_table(world: World) -> None:
    paths = [task.file.file_path.removeprefix("file://") for task in world.archive.load().scan().plan_files()]
    found = ds.dataset(paths).to_table()
    assert found.num_rows == 12
    assert pc.sum(found["speed"]).as_py() == pc.sum(world.archive.registered_rows()["speed"]).as_py()
    assert {pq.read_schema(path).metadata for path in paths}


@pytest.mark.slow
def test_duckdb_reads_what_is_registered_from_the_metadata_file(world: World) -> None:
    columns = (
        'date, interval, device, speed, epoch_us("at") AS moment, price::VARCHAR AS price, len(tags) AS tags, place.lat'
    )
    found = duckdb_iceberg.query(f"SELECT {columns} FROM iceberg_scan('{world.last.metadata}')")
    expected = world.archive.registered_rows().to_pylist()

    def told(row: dict) -> tuple:
        lat = row["place"]["lat"] if row["place"] else None
        price = str(row["price"]) if row["price"] is not None else None
        tags = len(row["tags"]) if row["tags"] is not None else None
        at = round(row["at"].timestamp() * 1_000_000)
        return row["date"], row["interval"], row["device"], row["speed"], at, price, tags, lat

    assert sorted(map(repr, (tuple(row.values()) for row in found))) == sorted(map(repr, map(told, expected)))


@pytest.mark.slow
def test_duckdb_prunes_and_travels_to_a_snapshot(world: World) -> None:
    scan = f"iceberg_scan('{world.last.metadata}', snapshot_from_id => {world.first.snapshot_id}::UBIGINT)"
    assert duckdb_iceberg.query(f"SELECT count(*) AS rows FROM {scan}") == [{"rows": 12}]
    of_one = duckdb_iceberg.query(f"SELECT count(*) AS rows FROM {scan} WHERE date = '2026-11-17'")
    assert of_one == [{"rows": 3}]
