"""A renamed column of an Iceberg table: while older files lack the new name, files have both, and no number is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from include.catalog import renames
from include.catalog.columns import Columns, declared_columns, declared_types, named
from include.errors import UsageError
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import tables
from include.iceberg.examine import restore
from include.iceberg.field_ids import numbers_of
from include.ledger.columns.renames import intervals_lacking, lacking, retired_names
from include.ledger.database import session
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Build
from tests.support import duckdb_iceberg
from tests.support.committed import DAY
from tests.support.open_tables import OpenTable, pipeline_named

pytestmark = pytest.mark.services

BEFORE = "device STRING, speed INT, at TIMESTAMP"
NOW = "device STRING, pace INT, at TIMESTAMP"


@dataclass
class Hive:
    """What the catalog shows of the table; in its place, since a real one needs Spark."""

    columns: Columns | None = None


@dataclass
class Written(OpenTable):
    """Its files have numbers and names as an interval's have, without Spark."""

    def _write(self, spec: AttemptSpec, date: str, rows: pa.Table) -> BuiltRevision:
        table = self.pipeline.table
        shown, numbers = renames.shown_names(self.pipeline, table), numbers_of(self.pipeline, table)
        for name, before in shown.items():
            rows = rows.append_column(before, rows[name])
        fields = [each.with_metadata({"PARQUET:field_id": str(numbers[each.name])}) for each in rows.schema]
        return super()._write(spec, date, rows.cast(pa.schema(fields)))

    def build(
        self, hour: int, parts: dict[str, pa.Table], *, version: str = "1"
    ) -> tuple[AttemptSpec, list[BuiltRevision]]:
        shown = renames.shown_names(self.pipeline, self.pipeline.table)
        spec, built = super().build(hour, parts, version=version)
        with session() as ledger:
            row = ledger.get_one(Build, spec.build)
            row.columns = declared_types(self.pipeline)
            row.also_named = {self.pipeline.table: {was: name for name, was in shown.items()}} if shown else None
        return spec, built


@pytest.fixture
def hive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hive]:
    shown = Hive()
    monkeypatch.setattr(renames, "stored_columns", lambda _: shown.columns)
    return shown


@pytest.fixture
def before(pipeline: str, hive: Hive) -> Written:
    """Two intervals by the former name."""
    made = Written(pipeline_named("t_" + re.sub(r"\W", "_", pipeline)[-40:], BEFORE))
    for hour in (0, 1):
        made.run(hour, {"2026-11-18": rows("speed", hour)})
    hive.columns = declared_columns(made.pipeline, made.pipeline.table)
    return made


def rows(name: str, hour: int) -> pa.Table:
    at = DAY + timedelta(hours=hour)
    return pa.table(
        {
            "device": ["a", "b"],
            name: pa.array([10 * hour, 10 * hour + 1], pa.int32()),
            "at": pa.array([at, at], pa.timestamp("us", "UTC")),
            "kafka_topic": ["events"] * 2,
            "kafka_partition": pa.array([0, 0], pa.int32()),
            "kafka_offset": pa.array([hour * 1000, hour * 1000 + 1], pa.int64()),
            "kafka_timestamp": pa.array([at, at], pa.timestamp("us", "UTC")),
            "kafka_element": pa.array([0, 0], pa.int32()),
        }
    )


def declaring(made: Written, columns: str, **renamed: str | tuple[str, ...]) -> Written:
    archive = replace(made.pipeline.archive, columns=columns, renamed=renamed)
    return Written(replace(made.pipeline, archive=archive), made.intervals)


def found(made: OpenTable, name: str, **at: Any) -> list[list[int]]:
    """What each reader finds in the column."""
    table = made.load()
    statement = f"SELECT \"{name}\" FROM iceberg_scan('{table.metadata_location}')"
    if at:
        return [sorted(table.scan(**at).to_arrow()[name].to_pylist())]
    return [
        sorted(table.scan().to_arrow()[name].to_pylist()),
        sorted(pl.scan_iceberg(table).select(name).collect()[name].to_list()),
        sorted(row[name] for row in duckdb_iceberg.query(statement)),
    ]


def show(made: Written, hive: Hive) -> None:
    """What publication does at its end: Hive's table first."""
    table = made.pipeline.table
    declared = declared_columns(made.pipeline, table)
    hive.columns = named(declared, renames.shown_names(made.pipeline, table))
    tables.follow_columns(made.pipeline)


def test_table_shows_the_former_name_when_a_file_lacks_the_new_one(before: Written, hive: Hive) -> None:
    made, table = declaring(before, NOW, pace="speed"), before.pipeline.table
    number = numbers_of(before.pipeline, table)["speed"]
    first = before.load().current_snapshot()
    assert first is not None
    made.run(2, {"2026-11-18": rows("pace", 2)})
    show(made, hive)
    assert lacking(table, {"pace"}) == {"pace"}
    assert renames.shown_names(made.pipeline, table) == {"pace": "speed"}
    assert found(made, "speed") == [[0, 1, 10, 11, 20, 21]] * 3

    left = intervals_lacking(made.pipeline.name, {table: ["pace"]})
    assert len(left) == 2
    for hour in (1, 0):
        made.run(hour, {"2026-11-18": rows("pace", hour)})
        show(made, hive)
    assert renames.shown_names(made.pipeline, table) == {}
    assert found(made, "pace") == [[0, 1, 10, 11, 20, 21]] * 3
    schema = made.load().schema()
    assert schema.find_field("pace").field_id == number
    assert "speed" not in schema.column_names
    # An interval that comes later has the new name alone, by the number of before.
    made.run(3, {"2026-11-18": rows("pace", 3)})
    assert found(made, "pace") == [[0, 1, 10, 11, 20, 21, 30, 31]] * 3
    assert found(made, "speed", snapshot_id=first.snapshot_id) == [[0, 1, 10, 11]]
    assert retired_names(made.pipeline.name, table) == {"speed": {"pace"}}


def test_column_keeps_its_number_when_it_is_renamed_back_and_once_more(before: Written, hive: Hive) -> None:
    number = numbers_of(before.pipeline, before.pipeline.table)["speed"]
    again = BEFORE.replace("speed", "rate")
    for columns, renamed in (
        (NOW, {"pace": "speed"}),
        (BEFORE, {"speed": "pace"}),
        (again, {"rate": ("speed", "pace")}),
    ):
        made = declaring(before, columns, **renamed)
        (name,) = renamed
        for hour in (0, 1):
            made.run(hour, {"2026-11-18": rows(name, hour)})
            show(made, hive)
        assert found(made, name) == [[0, 1, 10, 11]] * 3
        assert made.load().schema().find_field(name).field_id == number


@pytest.mark.parametrize(
    ("columns", "also", "remedy"),
    [(NOW, ("speed",), 'renamed={"pace": "speed"}'), (BEFORE, ("pace",), 'renamed={"speed": "pace"}')],
)
def test_column_is_refused_when_the_name_that_landed_rows_have_is_no_longer_declared(
    before: Written, hive: Hive, columns: str, also: tuple[str, ...], remedy: str
) -> None:
    """The rename is through where the new name stays; it is taken back before that where the former one does."""
    made, table = declaring(before, NOW, pace="speed"), before.pipeline.table
    for hour in (0, 1) if columns == NOW else (1,):
        made.run(hour, {"2026-11-18": rows("pace", hour)})
        show(made, hive)
    assert hive.columns is not None
    with pytest.raises(UsageError, match=f"by the name {also[0]}, which `renamed` does not list") as refused:
        renames.check_renames(declaring(before, columns).pipeline, table, hive.columns)
    assert refused.value.remedy == f"declare {remedy}"
    (name,) = {"pace", "speed"} - {*also}
    renames.check_renames(declaring(before, columns, **{name: also}).pipeline, table, hive.columns)
    delta = declaring(before, columns).pipeline
    with pytest.raises(UsageError) as refused:
        renames.check_renames(
            replace(delta, archive=replace(delta.archive, iceberg=False, delta=True)), table, hive.columns
        )
    assert refused.value.remedy.startswith(f"declare {remedy} and take `delta` out: ")
    beside = f"{columns}, {also[0]} INT"
    with pytest.raises(UsageError, match=f"{also[0]} is declared as another column|by its former name {also[0]}"):
        renames.check_renames(declaring(before, beside).pipeline, table, hive.columns)


def test_files_with_both_names_are_read_when_the_table_is_made_anew(before: Written, hive: Hive) -> None:
    made = declaring(before, NOW, pace="speed")
    for hour in (0, 1):
        made.run(hour, {"2026-11-18": rows("pace", hour)})
        show(made, hive)
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(("lake", made.pipeline.table))
    restore(made.pipeline)
    assert found(made, "pace") == [[0, 1, 10, 11]] * 3
