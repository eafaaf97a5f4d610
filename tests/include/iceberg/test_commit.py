"""Registered intervals as snapshots of an Iceberg table: files without a copy, swaps in one commit, tags."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.expressions.visitors import _ManifestEvalVisitor
from pyiceberg.table import Table

from include import lake
from include.errors import ServiceUnreachable, UsageError
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import tables
from include.ledger.intervals import attempts, builds, revisions
from tests.conftest import Home, settings_of
from tests.support.open_tables import COLUMNS, PASSED, OpenTable, comparable, lay_files, pipeline_named, rows_of

pytestmark = pytest.mark.services


@pytest.fixture
def archive(pipeline: str) -> OpenTable:
    return OpenTable(pipeline_named(f"t_{pipeline[-40:]}"))


def files_of(table: Table) -> set[str]:
    return {task.file.file_path for task in table.scan().plan_files()}


def registered_files(archive: OpenTable) -> set[str]:
    every = revisions.registered(archive.pipeline.table)
    return {f"{each.location}/{name}" for each in every for name in each.files}


def test_one_snapshot_over_its_own_files_is_made_when_an_interval_is_registered(archive: OpenTable) -> None:
    put = archive.run(0, {"2026-11-18": rows_of(0, 9), "2026-11-17": rows_of(0, 3, 500)})
    table = archive.load()
    (snapshot,) = table.snapshots()
    assert files_of(table) == registered_files(archive)
    assert not list(Path(lake.filesystem(lake.uri("iceberg"))[1]).rglob(f"{archive.pipeline.table}/**/*.parquet"))
    names = table.schema().column_names
    wanted = archive.registered_rows()
    assert comparable(table.scan().to_arrow(), [n for n in wanted.column_names if n in names]) == comparable(
        wanted, wanted.column_names
    )
    said = snapshot.summary.additional_properties if snapshot.summary else {}
    assert (said["tidemark.interval"], said["tidemark.rows"]) == ("2026-11-18T05", "12")
    assert json.loads(said["tidemark.ranges"]) == [
        {"topic": "events", "topic_id": "id", "partition": 0, "from_offset": 0, "until_offset": 1000}
    ]
    assert json.loads(said["tidemark.records"])["empty"] == 988
    assert len(json.loads(said["tidemark.content-hashes"])) == 2
    assert put.tag == f"2026-11-18T05-{said['tidemark.build']}"
    assert table.refs()[put.tag].snapshot_id == snapshot.snapshot_id == put.snapshot_id


def test_files_are_swapped_and_partitions_dropped_in_one_commit_when_a_rerun_differs(archive: OpenTable) -> None:
    first = archive.run(0, {"2026-11-18": rows_of(0, 9), "2026-11-17": rows_of(0, 3, 500)})
    archive.run(1, {"2026-11-18": rows_of(1, 4)})
    before = files_of(archive.load())
    second = archive.run(0, {"2026-11-18": rows_of(0, 8)})
    table = archive.load()
    assert len(table.snapshots()) == 3
    assert files_of(table) == registered_files(archive)
    assert table.scan().to_arrow().num_rows == 12
    assert table.scan(snapshot_id=table.refs()[first.tag].snapshot_id).to_arrow().num_rows == 12
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (head.summary["added-data-files"], head.summary["deleted-data-files"]) == ("1", "2")
    assert table.refs()[second.tag].snapshot_id == head.snapshot_id
    assert len(before - files_of(table)) == 2


def test_interval_is_committed_without_a_column_s_bounds_when_they_cannot_be_held_or_written(
    archive: OpenTable,
) -> None:
    rows, far = rows_of(0, 9), 1763615107000 * 1_000_000
    odd = {
        "day": pa.array([far // 86_400_000_000] * 9, pa.int32()).cast(pa.date32()),
        "local": pa.array([far] * 9, pa.timestamp("us")),
        "kafka_timestamp": pa.array([0] * 8 + [far], pa.timestamp("us", "UTC")),
        "device": pa.array([b"\xff\xfe"] * 9).cast(pa.binary()).view(pa.string()),
        # Cut off after 16 characters, the last one would become a surrogate.
        "kafka_topic": pa.array(["\U0010ffff" * 15 + "\ud7ff."] * 9),
    }
    for name, values in odd.items():
        rows = rows.set_column(rows.column_names.index(name), name, values)
    put = archive.run(0, {"2026-11-18": rows})
    assert builds.begun_registrations(archive.pipeline.name) == []
    table = archive.load()
    assert table.refs()[put.tag].snapshot_id == put.snapshot_id
    (task,) = table.scan().plan_files()
    bounded = {table.schema().find_column_name(each) for each in task.file.lower_bounds}
    counted = {table.schema().find_column_name(each) for each in task.file.value_counts}
    assert bounded.isdisjoint(odd)
    assert counted >= {*odd, "speed"}
    assert bounded >= {"speed", "at", "kafka_offset"}
    archive.run(1, {"2026-11-18": rows_of(1, 4)})
    assert files_of(archive.load()) == registered_files(archive)


def test_files_are_swapped_when_the_threads_that_look_for_them_take_turns_at_any_moment(
    archive: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = _ManifestEvalVisitor.visit_equal

    def slowly(self: _ManifestEvalVisitor, **named: Any) -> bool:
        # Another thread sets the bounds of its manifest meanwhile.
        time.sleep(0.002)
        return looked(self, **named)

    monkeypatch.setattr(_ManifestEvalVisitor, "visit_equal", slowly)
    for hour in range(4):
        archive.run(hour, {"2026-11-18": rows_of(hour, 3)})
    for seed in range(6):
        archive.run(seed % 4, {"2026-11-18": rows_of(seed % 4, 4, 100 * seed)})
    assert files_of(archive.load()) == registered_files(archive)


def test_existing_snapshot_is_only_tagged_when_a_rerun_has_the_same_rows(archive: OpenTable) -> None:
    first = archive.run(0, {"2026-11-18": rows_of(0, 9)})
    again = archive.run(0, {"2026-11-18": rows_of(0, 9)})
    assert first.tag != again.tag
    assert first.snapshot_id == again.snapshot_id
    assert len(archive.load().snapshots()) == 1


def test_snapshot_is_made_when_an_interval_has_no_rows(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    put = archive.run(1, {})
    again = archive.publish(*archive.build(1, {}))
    table = archive.load()
    assert put.snapshot_id == again.snapshot_id
    assert [each.summary and each.summary["tidemark.interval"] for each in table.snapshots()] == [
        "2026-11-18T05",
        "2026-11-18T06",
    ]
    assert table.scan().to_arrow().num_rows == 9


def test_second_commit_changes_nothing_when_it_follows_a_crash(archive: OpenTable) -> None:
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 9)})
    tables.prepare(archive.pipeline)
    begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
    first = tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes)
    # Killed here: the next publication finishes the intent.
    (found,) = builds.begun_registrations(archive.pipeline.name)
    assert tables.put_build(archive.pipeline, found.pinned.id, found.build, found.changes) == first
    builds.finish_registration(found)
    assert tables.put_registered(archive.pipeline, begun.pinned.id) == first
    assert len(archive.load().snapshots()) == 1


@pytest.mark.slow
def test_merging_small_manifests_writes_none_again_that_is_full(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 2)})
    lay_files(archive.load(), 1_300, at_once=650)

    def manifests() -> dict[str, int]:
        table = archive.load()
        head = table.current_snapshot()
        return {each.manifest_path: each.manifest_length for each in head.manifests(table.io)} if head else {}

    full = {path for path, length in manifests().items() if length > 200_000}
    assert len(full) == 2
    written = []
    for hour in range(1, 121):
        before = set(manifests())
        archive.run(hour, {"2026-11-18": rows_of(hour, 2)})
        written.append(len(manifests().keys() - before))
    assert full < manifests().keys()
    # There would be one per interval without merging.
    assert len(manifests()) < 80
    # Merged once: the other commits write the manifest of their own file.
    assert sum(count > 1 for count in written) == 1
    assert len(files_of(archive.load())) == 1_421


def test_table_gets_the_properties_of_a_new_one_when_earlier_code_made_it(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 2)})
    wanted = {"commit.manifest.target-size-bytes": str(256 * 1024), "gc.enabled": "false"}
    with archive.load().transaction() as transaction:
        transaction.remove_properties(*wanted)
    archive.run(1, {"2026-11-18": rows_of(1, 2)})
    assert archive.load().properties.items() >= wanted.items()


def test_only_that_interval_s_files_are_read_when_a_filter_names_it(archive: OpenTable) -> None:
    for hour in range(3):
        archive.run(hour, {"2026-11-18": rows_of(hour, 5)})
    tasks = list(archive.load().scan(row_filter=EqualTo("interval", "2026-11-18T06")).plan_files())
    assert ["interval=2026-11-18T06" in task.file.file_path for task in tasks] == [True]


def test_next_interval_leaves_a_foreign_commit_behind_when_one_was_made(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    table = archive.load()
    foreign = table.scan().to_arrow()
    with iceberg_catalog.opened() as catalog:
        catalog.load_table(("lake", archive.pipeline.table)).append(foreign)
    assert archive.load().scan().to_arrow().num_rows == 18
    archive.run(1, {"2026-11-18": rows_of(1, 4)})
    assert files_of(archive.load()) == registered_files(archive)


def test_foreign_commit_is_left_behind_when_it_came_before_the_first(archive: OpenTable) -> None:
    tables.prepare(archive.pipeline)
    with iceberg_catalog.opened() as catalog:
        empty = catalog.load_table(("lake", archive.pipeline.table))
        empty.append(empty.scan().to_arrow())
        empty.append(pa.Table.from_pylist([{"device": "x"}], empty.schema().as_arrow()))
    archive.run(0, {"2026-11-18": rows_of(0, 4)})
    assert files_of(archive.load()) == registered_files(archive)


def test_old_files_are_read_when_columns_were_added_or_widened(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    wider = COLUMNS.replace("speed INT", "speed BIGINT") + ", heading DOUBLE"
    newer = OpenTable(pipeline_named(archive.pipeline.name, wider), archive.intervals)
    rows = rows_of(1, 4, speed=pa.int64()).append_column("heading", pa.array([1.5] * 4))
    newer.run(1, {"2026-11-18": rows})
    found = newer.load().scan().to_arrow()
    assert found.num_rows == 13
    assert found.schema.field("speed").type == pa.int64()
    assert sorted(found["heading"].to_pylist(), key=str) == [1.5] * 4 + [None] * 9
    assert sorted(each for each in found["speed"].to_pylist() if each is not None) == [0, 0, 1, 1, 3, 3, 4, 6, 7]


def test_type_is_refused_before_registration_when_iceberg_cannot_widen_it(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    changed = pipeline_named(archive.pipeline.name, COLUMNS.replace("DECIMAL(10,2)", "DECIMAL(12,4)"))
    with pytest.raises(UsageError, match="cannot follow its declaration"):
        tables.prepare(changed)
    assert archive.load().schema().find_type("price").__repr__() == "DecimalType(precision=10, scale=2)"


def test_table_is_made_anew_when_nothing_was_registered_in_it_and_its_columns_are_others(archive: OpenTable) -> None:
    tables.prepare(archive.pipeline)
    changed = pipeline_named(archive.pipeline.name, COLUMNS.replace("DECIMAL(10,2)", "DECIMAL(12,4)"))
    tables.prepare(changed)
    assert archive.load().schema().find_type("price").__repr__() == "DecimalType(precision=12, scale=4)"
    before = archive.load().metadata_location
    tables.prepare(changed)
    assert archive.load().metadata_location == before
    # Somebody committed to it.
    with iceberg_catalog.opened() as catalog:
        empty = catalog.load_table(("lake", archive.pipeline.table))
        empty.append(empty.scan().to_arrow())
    with pytest.raises(UsageError, match="cannot follow its declaration"):
        tables.prepare(archive.pipeline)


def test_table_is_refused_and_left_alone_when_it_is_somebody_else_s(archive: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        other = catalog.create_table(("lake", archive.pipeline.table), pa.schema({"a": pa.int64()}))
    with pytest.raises(UsageError, match="not one that Tidemark made"):
        tables.prepare(archive.pipeline)
    assert archive.load().metadata_location == other.metadata_location


def test_catalog_counts_as_unreachable_when_it_does_not_answer(archive: OpenTable, postgres: Home) -> None:
    with (
        settings_of(postgres, TIDEMARK_DATABASE_URL="postgresql://a:b@127.0.0.1:9"),
        pytest.raises(ServiceUnreachable, match="PostgreSQL") as refused,
    ):
        tables.prepare(archive.pipeline)
    assert refused.value.exit_code == 6
    with settings_of(postgres):
        assert builds.begun_registrations(archive.pipeline.name) == []


@pytest.mark.parametrize("kind", ["INTERVAL DAY TO SECOND", "GEOMETRY(4326)", "STRUCT<a: ARRAY<VOID>>"])
def test_column_that_iceberg_cannot_hold_is_refused_when_declared(kind: str) -> None:
    with pytest.raises(UsageError, match="does not fit an Iceberg table"):
        pipeline_named("p", f"{COLUMNS}, odd {kind}")


def test_other_file_formats_are_refused_when_declared() -> None:
    with pytest.raises(UsageError, match="parquet"):
        replace(pipeline_named("p", "at TIMESTAMP").archive, file_format="orc")


def test_verdict_keeps_the_snapshot_when_it_was_committed(archive: OpenTable) -> None:
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 2)})
    put = archive.publish(spec, built)
    assert attempts.load_attempt(spec.id).findings.iceberg == (put,)
