"""Archive and view of nest_cameras as Iceberg tables: what passed is there once, whatever was killed, as in Hive."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from include.iceberg import catalog as iceberg_catalog
from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout
from tests.support.field_ids import numbers_in
from tests.support.killed import was_killed

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(2)
BOUNDS = ("--from", iso(START), "--to", iso(START + timedelta(hours=1)))
TABLES = ("nest_cameras", "nest_cameras_hourly_counts")


@pytest.fixture(scope="module")
def checkout(in_process: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = copy_checkout(tmp_path_factory.mktemp("iceberg") / "checkout", in_process)
    made.edit("include/pipelines/nest_cameras.py", "rules=(", "iceberg=True,\n        rules=(")
    made.edit(
        "include/pipelines/nest_cameras.py", "windows=TimeWindow", "iceberg=True,\n            windows=TimeWindow"
    )
    return made


@pytest.fixture(scope="module")
def verdict(checkout: Checkout) -> dict[str, Any]:
    """Of an interval whose first publication was killed between Hive's side and Iceberg's."""
    checkout.run("produce", "nest_cameras", "--events", "400", "--start", iso(START), "--span", "1h", "--seed", "3")
    checkout.run("stream", "nest_cameras", "--until-caught-up")
    killed = checkout.run("interval", "nest_cameras", *BOUNDS, expect=None, TIDEMARK_CRASH_AT="partition_registered:2")
    assert was_killed(killed), killed.stderr[-2000:]
    found: dict[str, Any] = checkout.json("interval", "nest_cameras", *BOUNDS)
    return found


def snapshots(table: str) -> list[str]:
    with iceberg_catalog.opened() as catalog:
        return [str(each.summary) for each in catalog.load_table(("lake", table)).snapshots()]


def rows(table: str) -> Any:
    with iceberg_catalog.opened() as catalog:
        return catalog.load_table(("lake", table)).scan().to_arrow()


def test_interval_is_one_snapshot_of_each_table_although_a_publication_was_killed(verdict: dict[str, Any]) -> None:
    assert [each["table"] for each in verdict["iceberg"]] == [f"lake.{table}" for table in TABLES]
    assert [len(snapshots(table)) for table in TABLES] == [1, 1]


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_those_of_the_registered_files_and_of_hive(
    checkout: Checkout, verdict: dict[str, Any], table: str
) -> None:
    registered = [each for each in verdict["registered"] if each["table"] == table]
    found = rows(table)
    assert found.num_rows == sum(each["rows"] for each in registered) > 0
    assert set(found["interval"].to_pylist()) == {START.strftime("%Y-%m-%dT%H")}
    (in_hive,) = checkout.json("sql", f"SELECT count(*) AS rows FROM lake.{table}", "--json")
    assert in_hive == {"rows": found.num_rows}
    if table == TABLES[0]:
        by_folder = audit.read_parquet(each["location"] for each in registered)
        assert audit.identities(found) == audit.identities(by_folder)


@pytest.mark.parametrize("table", TABLES)
def test_registered_files_tell_the_tables_numbers_of_all_fields(verdict: dict[str, Any], table: str) -> None:
    with iceberg_catalog.opened() as catalog:
        schema = catalog.load_table(("lake", table)).schema()
    partitions = ("date", "interval")
    wanted = {name: schema.find_field(name).field_id for name in schema.column_names if name not in partitions}
    folders = [each["location"].removeprefix("file://") for each in verdict["registered"] if each["table"] == table]
    files = [file for folder in folders for file in Path(folder).glob("*.parquet")]
    assert files
    for file in files:
        found = numbers_in(file)
        assert {name: found.get(name) for name in wanted} == wanted
        assert None not in found.values()


def test_rebuild_is_equal_and_registered_files_are_as_noted(checkout: Checkout, verdict: dict[str, Any]) -> None:
    first = verdict["registered"][0]
    rebuilt = json.loads(checkout.run("rebuild", first["table"], first["partition"], "--json").stdout)
    assert rebuilt["equal"] is True


def test_doctor_names_a_dropped_table_and_fills_it_again(checkout: Checkout, verdict: dict[str, Any]) -> None:
    before = rows(TABLES[0]).num_rows
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(("lake", TABLES[0]))
    found = json.loads(checkout.run("doctor", "--json", expect=None).stdout)["findings"]
    assert [each["kind"] for each in found if each["kind"]] == ["Iceberg table differs"]
    found = json.loads(checkout.run("doctor", "--repair", "--json", expect=None).stdout)["findings"]
    assert not [each for each in found if each["kind"]]
    assert rows(TABLES[0]).num_rows == before
