"""Numbers of fields: the ledger gives them, files tell them, and the Iceberg table has them, also when made anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from include import lake
from include.catalog.columns import declared_columns
from include.errors import UsageError
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import tables
from include.iceberg.catalog import OWNER
from include.iceberg.examine import restore
from include.iceberg.field_ids import numbers_of
from include.iceberg.schema import partition_spec, schema_of
from include.ledger.columns import field_numbers
from include.ledger.database import session
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.lineage import BuiltRevision
from include.ledger.models import FieldNumber
from tests.conftest import Home
from tests.support import duckdb_iceberg
from tests.support.field_ids import numbers_in
from tests.support.open_tables import COLUMNS, OpenTable, comparable, pipeline_named, rows_of

pytestmark = [pytest.mark.services, pytest.mark.spark]

NAMES = ("date", "interval", "device", "speed", "at", "local", "day", "price", "small", "raw", "tags", "place", "facts")
DEEP = "many ARRAY<STRUCT<a: INT, b: ARRAY<ARRAY<STRING>>>>, of MAP<STRING, STRUCT<x: MAP<STRING, INT>>>"


@dataclass
class WrittenBySpark(OpenTable):
    """Its files are written like an interval's."""

    spark: Any = None

    def _write(self, spec: AttemptSpec, date: str, rows: pa.Table) -> BuiltRevision:
        from pyspark.sql import functions as F

        from spark_jobs.intervals.write import archive_layout, write_revisions

        layout = replace(archive_layout(self.pipeline), numbers=numbers_of(self.pipeline, self.pipeline.table))
        frame = self.spark.createDataFrame(rows).withColumn("date", F.lit(date))
        (built,) = write_revisions(frame, layout, spec.pinned.interval, f"r-{spec.id}")
        return built


@pytest.fixture(scope="module", autouse=True)
def timestamps_as_in_the_projects_sessions(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    yield
    spark.conf.unset("spark.sql.parquet.outputTimestampType")


def file_of(built: BuiltRevision) -> Path:
    (name,) = built.files
    return Path(lake.filesystem(f"{built.location}/{name}")[1])


@dataclass
class Mixed:
    archive: WrittenBySpark
    plain: BuiltRevision
    """Written before files held numbers."""
    numbered: BuiltRevision
    metadata: str


@pytest.fixture(scope="module")
def mixed(postgres: Home, spark: Any) -> Mixed:
    before = OpenTable(pipeline_named("with_and_without_numbers"))
    spec, (plain,) = before.build(0, {"2026-11-18": rows_of(0, 9)})
    before.publish(spec, [plain])
    archive = WrittenBySpark(before.pipeline, before.intervals, spark)
    spec, (numbered,) = archive.build(1, {"2026-11-18": rows_of(1, 5)})
    return Mixed(archive, plain, numbered, archive.publish(spec, [numbered]).metadata)


def written_with_numbers(spark: Any, folder: Path, columns: str, row: tuple[Any, ...]) -> Path:
    """Write a file only with Spark, its columns numbered from 1, with the options that Delta also sets."""
    from pyspark.sql.types import StructField, StructType

    plain = StructType.fromDDL(columns)
    nested = {"parquet.field.nested.ids": {f"{each.name}.element": 9 for each in plain}}
    said = [StructField(f.name, f.dataType, True, {"parquet.field.id": n, **nested}) for n, f in enumerate(plain, 1)]
    support = {"parquet.write.support.class": "org.apache.spark.sql.delta.DeltaParquetWriteSupport"}
    spark.createDataFrame([row], StructType(said)).coalesce(1).write.options(**support).parquet(str(folder))
    (file,) = folder.glob("*.parquet")
    return file


def test_spark_gives_elements_keys_and_values_no_numbers_when_named_fields_have_them(
    spark: Any, tmp_path: Path
) -> None:
    """As long as this passes, footers have to be written for these (decision 015)."""
    columns = "tags ARRAY<STRING>, facts MAP<STRING, BIGINT>"
    file = written_with_numbers(spark, tmp_path / "files", columns, (["a"], {"k": 1}))
    assert numbers_in(file) == {
        "tags": 1, "tags.element": None, "facts": 2, "facts.key": None, "facts.value": None,
    }  # fmt: skip


def test_spark_reads_a_renamed_column_as_null_when_its_session_does_not_go_by_numbers(
    spark: Any, tmp_path: Path
) -> None:
    """As long as this passes, the Hive catalog cannot show a column of older files by another name (decision 015)."""
    from pyspark.sql.types import LongType, StructField, StructType

    file = written_with_numbers(spark, tmp_path / "files", "before BIGINT", (7,))
    now = StructType([StructField("now", LongType(), True, {"parquet.field.id": 1})])
    setting = "spark.sql.parquet.fieldId.read.enabled"
    by_table = spark.read.schema(now).option(setting, "true").parquet(str(file))
    assert [row["now"] for row in by_table.collect()] == [None]
    spark.conf.set(setting, "true")
    try:
        assert [row["now"] for row in spark.read.schema(now).parquet(str(file)).collect()] == [7]
    finally:
        spark.conf.unset(setting)


def test_file_holds_the_table_s_number_of_every_field_when_it_is_written(mixed: Mixed) -> None:
    schema = mixed.archive.load().schema()
    own = [name for name in schema.column_names if name not in ("date", "interval")]
    assert numbers_in(file_of(mixed.numbered)) == {name: schema.find_field(name).field_id for name in own}
    assert set(numbers_in(file_of(mixed.plain)).values()) == {None}


def test_data_stay_byte_for_byte_when_the_footer_gets_numbers(
    mixed: Mixed, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.intervals import write

    kept: list[bytes] = []
    give = write.give_ids

    def remembering(session: Any, location: str, numbers: Any) -> None:
        kept.append(lake.read_bytes(location))
        give(session, location, numbers)

    monkeypatch.setattr(write, "give_ids", remembering)
    _, (built,) = mixed.archive.build(7, {"2026-11-18": rows_of(7, 50)})
    (before,), after = kept, file_of(built).read_bytes()
    until = len(before) - 8 - int.from_bytes(before[-8:-4], "little")
    assert after[:until] == before[:until]
    assert after != before
    assert built.files[file_of(built).name]["bytes"] == len(after)
    assert pq.read_metadata(file_of(built)).metadata == pq.read_metadata(pa.BufferReader(before)).metadata


def test_field_has_its_number_when_it_is_deeply_nested(postgres: Home, spark: Any) -> None:
    archive = WrittenBySpark(pipeline_named("deeply_numbered", f"at TIMESTAMP, {DEEP}"), spark=spark)
    plain = ["at", "kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_element"]
    rows = rows_of(0, 2).select(plain).to_pylist()
    deep = {"many": [{"a": 1, "b": [["x"], []]}], "of": [("k", {"x": [("y", 2)]})]}
    of = pa.map_(pa.string(), pa.struct({"x": pa.map_(pa.string(), pa.int32())}))
    many = pa.list_(pa.struct({"a": pa.int32(), "b": pa.list_(pa.list_(pa.string()))}))
    table = rows_of(0, 2).select(plain).append_column("many", pa.array([deep["many"]] * len(rows), many))
    table = table.append_column("of", pa.array([deep["of"]] * len(rows), of))
    spec, (built,) = archive.build(0, {"2026-11-18": table})
    archive.publish(spec, [built])
    schema = archive.load().schema()
    found = numbers_in(file_of(built))
    assert found["many.element.b.element.element"] == schema.find_field("many.element.b.element.element").field_id
    assert found["of.value.x.value"] == schema.find_field("of.value.x.value").field_id
    assert None not in found.values()
    assert archive.load().scan().to_arrow()["many"].to_pylist() == [deep["many"]] * 2


def test_readers_find_the_same_rows_when_some_files_tell_numbers_and_others_do_not(mixed: Mixed) -> None:
    wanted = comparable(mixed.archive.registered_rows(), NAMES)
    assert len(wanted) == 14
    assert comparable(mixed.archive.load().scan().to_arrow(), NAMES) == wanted
    by_polars = pl.scan_iceberg(mixed.metadata, reader_override="pyiceberg").collect().to_arrow()
    plain = [name for name in NAMES if name != "facts"]
    assert comparable(by_polars, plain) == comparable(mixed.archive.registered_rows(), plain)
    paths = [task.file.file_path.removeprefix("file://") for task in mixed.archive.load().scan().plan_files()]
    own = [name for name in NAMES if name not in ("date", "interval")]
    by_pyarrow = ds.dataset(paths).to_table()
    assert comparable(by_pyarrow, own) == comparable(mixed.archive.registered_rows(), own)


@pytest.mark.slow
def test_duckdb_finds_the_same_rows_when_some_files_tell_numbers_and_others_do_not(mixed: Mixed) -> None:
    columns = "device, speed, price::VARCHAR AS price, list_sum([len(x) FOR x IN tags]) AS tags, place.lat AS lat, "
    columns += "map_values(facts)[1] AS n"
    found = duckdb_iceberg.query(f"SELECT {columns} FROM iceberg_scan('{mixed.metadata}')")
    rows = mixed.archive.registered_rows().to_pylist()
    wanted = [
        {
            "device": row["device"],
            "speed": row["speed"],
            "price": str(row["price"]) if row["price"] is not None else None,
            "tags": sum(len(each) for each in row["tags"] if each) if row["tags"] is not None else None,
            "lat": row["place"] and row["place"]["lat"],
            "n": row["facts"][0][1] if row["facts"] is not None else None,
        }
        for row in rows
    ]
    assert sorted(map(str, found)) == sorted(map(str, wanted))


def test_numbered_file_is_read_by_its_numbers_when_the_table_has_no_name_mapping(postgres: Home, spark: Any) -> None:
    archive = WrittenBySpark(pipeline_named("by_number_alone"), spark=spark)
    archive.run(0, {"2026-11-18": rows_of(0, 5)})
    with archive.load().transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    assert comparable(archive.load().scan().to_arrow(), NAMES) == comparable(archive.registered_rows(), NAMES)


def test_table_made_anew_has_the_same_numbers_when_columns_were_added_meanwhile(postgres: Home, spark: Any) -> None:
    archive = WrittenBySpark(pipeline_named("made_anew"), spark=spark)
    archive.run(0, {"2026-11-18": rows_of(0, 5)})
    first = {name: archive.load().schema().find_field(name).field_id for name in archive.load().schema().column_names}
    # In front of others, and inside of one.
    wider = "heading DOUBLE, " + COLUMNS.replace("place STRUCT<", "place STRUCT<floor: INT, ")
    newer = WrittenBySpark(pipeline_named("made_anew", wider), archive.intervals, spark)
    places = [each and {"floor": 3, **each} for each in rows_of(1, 4)["place"].to_pylist()]
    rows = rows_of(1, 4).drop_columns(["place"]).append_column("heading", pa.array([1.5] * 4))
    kind = pa.struct({"floor": pa.int32(), "zip": pa.string(), "lat": pa.float64()})
    newer.run(1, {"2026-11-18": rows.append_column("place", pa.array(places, kind))})
    before = newer.load().schema()
    assert {name: before.find_field(name).field_id for name in first} == first
    assert {before.find_field(name).field_id for name in ("heading", "place.floor")}.isdisjoint(first.values())
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(("lake", "made_anew"))
    restore(newer.pipeline)
    after = newer.load()
    assert after.schema().fields == before.fields
    assert after.metadata.last_column_id == max(before.field_ids)
    found = after.scan().to_arrow().sort_by("kafka_offset")
    assert found["heading"].to_pylist() == [None] * 5 + [1.5] * 4
    assert [each["floor"] for each in found["place"].to_pylist() if each] == [None] * 4 + [3] * 3
    assert found["speed"].to_pylist() == [0, 1, None, 3, 4, 0, 1, None, 3]


def test_numbers_stay_and_new_columns_get_others_when_earlier_code_made_the_table(postgres: Home, spark: Any) -> None:
    pipeline = pipeline_named("counted_by_pyiceberg")
    columns = declared_columns(pipeline, pipeline.table)
    by_name = {path: 100 + n for n, path in enumerate(numbers_of(pipeline_named("as_they_are"), "as_they_are"))}
    schema = schema_of(columns, by_name)
    with iceberg_catalog.opened() as catalog:
        made = catalog.create_table(
            ("lake", pipeline.table),
            schema,
            iceberg_catalog.location_of(pipeline.table),
            partition_spec(schema, columns),
            properties={"format-version": "2", OWNER: pipeline.name},
        )
        with made.transaction() as transaction:
            transaction.set_properties({"schema.name-mapping.default": made.schema().name_mapping.model_dump_json()})
    before = {name: made.schema().find_field(name).field_id for name in made.schema().column_names}
    archive = WrittenBySpark(pipeline_named("counted_by_pyiceberg", f"{COLUMNS}, heading DOUBLE"), spark=spark)
    archive.run(0, {"2026-11-18": rows_of(0, 4).append_column("heading", pa.array([1.5] * 4))})
    after = archive.load().schema()
    assert {name: after.find_field(name).field_id for name in before} == before
    assert after.find_field("heading").field_id == max(before.values()) + 1
    assert comparable(archive.load().scan().to_arrow(), NAMES) == comparable(archive.registered_rows(), NAMES)


def test_table_is_refused_and_recreated_when_its_numbers_are_not_the_ledger_s(postgres: Home, spark: Any) -> None:
    archive = WrittenBySpark(pipeline_named("others_numbers"), spark=spark)
    archive.run(0, {"2026-11-18": rows_of(0, 4)})
    with session() as ledger:
        ledger.get_one(FieldNumber, ("others_numbers", "speed")).number = 900
    with pytest.raises(UsageError, match=r"speed has the number \d+ there, 900 in the ledger") as refused:
        tables.prepare(archive.pipeline)
    assert "doctor --repair" in refused.value.remedy
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(("lake", "others_numbers"))
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 5)})
    archive.publish(spec, built)
    assert archive.load().schema().find_field("speed").field_id == 900
    assert comparable(archive.load().scan().to_arrow(), NAMES) == comparable(archive.registered_rows(), NAMES)


def test_number_is_not_given_again_when_it_was_given_once(postgres: Home) -> None:
    assert field_numbers.give("given_once", ["a", "b"], {}) == {"a": 1, "b": 2}
    assert field_numbers.give("given_once", ["c", "b"], {}) == {"a": 1, "b": 2, "c": 3}
    # One of them is used for another field, and the last is larger than the declared ones.
    assert field_numbers.give("given_once", ["d", "e"], {"x": 2, "e": 7}, last=9) == {
        "a": 1, "b": 2, "c": 3, "e": 7, "d": 10,
    }  # fmt: skip
    assert field_numbers.numbers("given_once") == {"a": 1, "b": 2, "c": 3, "e": 7, "d": 10}


def test_every_field_has_a_number_when_paths_are_counted(postgres: Home) -> None:
    pipeline = pipeline_named("paths", f"at TIMESTAMP, {DEEP}")
    numbers = numbers_of(pipeline, pipeline.table)
    schema = schema_of(declared_columns(pipeline, pipeline.table), numbers)
    assert {name: schema.find_field(name).field_id for name in schema.column_names} == numbers
    assert isinstance(schema, Schema)
    assert NestedField(numbers["kafka_topic"], "kafka_topic", StringType(), required=False) in schema.fields
    assert schema.find_type("kafka_offset") == LongType()
