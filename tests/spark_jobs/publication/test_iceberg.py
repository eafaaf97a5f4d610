"""A recorded registration changes Hive's catalog and Iceberg's tables, and is finished by whoever comes next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import psycopg2
import pyarrow.parquet as pq
import pytest

from include import completeness, lake
from include.errors import LockLost, UsageError
from include.iceberg import commit, tables
from include.ledger.completeness.properties import table_properties
from include.ledger.held_locks import held_names
from include.ledger.intervals import attempts, builds, pins, revisions
from include.ledger.intervals.builds import Changes
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import Pipeline
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.iceberg import follow_in_iceberg
from spark_jobs.publication.register import finish_interval
from tests.conftest import Home
from tests.support.ledger_faults import Killed, end_lock
from tests.support.open_tables import PASSED, OpenTable, pipeline_named, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.services


class Pointers:
    """Where Hive's catalog would point, in memory: the Spark side has its own tests."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.at: dict[str, str] = {}

    def location(self, revision: BuiltRevision) -> str | None:
        return self.at.get(revision.partition)

    def prepare(self, revision: BuiltRevision) -> None:
        """A dictionary has no columns."""

    def point_at(self, revision: BuiltRevision) -> None:
        self.at[revision.partition] = revision.location

    def drop(self, revision: BuiltRevision) -> None:
        self.at.pop(revision.partition, None)

    def follow_renames(self) -> bool:
        return False


def finish(archive: OpenTable, pointers: Pointers, hour: int) -> None:
    pinned = pins.pinned_interval(archive.intervals[hour])
    finish_interval(pinned, cast(Catalog, pointers), lambda: None)


def test_next_publication_finishes_when_a_kill_came_between_hive_and_iceberg(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = OpenTable(pipeline_named("killed_between"))
    pointers = Pointers(archive.pipeline)
    archive.run(0, {"2026-11-18": rows_of(0, 9), "2026-11-17": rows_of(0, 3, 500)})
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 8)})
    begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
    for point in ("before", "after"):
        with monkeypatch.context() as patch:

            def killed(*arguments: Any) -> None:
                raise Killed

            patch.setattr(tables, "commit_interval" if point == "before" else "crash_point", killed)
            with pytest.raises(Killed):
                finish(archive, pointers, 0)
        assert [each.build for each in builds.begun_registrations(archive.pipeline.name)] == [begun.build]
    finish(archive, pointers, 0)
    finish(archive, pointers, 0)
    (registered,) = revisions.registered(archive.pipeline.table)
    assert pointers.at == {registered.partition: registered.location}
    table = archive.load()
    assert len(table.snapshots()) == 2
    assert table.scan().to_arrow().num_rows == registered.rows == 8
    (noted,) = attempts.load_attempt(spec.id).findings.iceberg
    assert table.refs()[noted.tag].snapshot_id == noted.snapshot_id


def test_both_catalogs_have_what_is_registered_when_a_registration_is_refused_after_its_commit(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = OpenTable(pipeline_named("refused_late"))
    pointers = Pointers(archive.pipeline)
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    (before,) = revisions.registered(archive.pipeline.table)
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 8)})
    builds.begin_registration(spec, PASSED, archive.changes(spec, built))

    def refuse(*_: object) -> list[str]:
        raise UsageError("another's table")

    with monkeypatch.context() as patch:
        patch.setattr(completeness, "put_hive_properties", refuse)
        with pytest.raises(UsageError):
            finish(archive, pointers, 0)
    assert pointers.at == {before.partition: before.location}
    assert archive.load().scan().to_arrow().num_rows == 9
    finish(archive, pointers, 0)
    assert archive.load().scan().to_arrow().num_rows == 8


@pytest.mark.parametrize("at", ["pointer", "commit", "properties"])
def test_later_build_stays_in_both_catalogs_when_a_publication_lost_its_lock_before_its_last(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, at: Literal["pointer", "commit", "properties"]
) -> None:
    """Its host was frozen meanwhile: another finished what it had begun, and published a later build."""
    archive, is_held = OpenTable(pipeline_named(f"frozen_at_{at}")), True
    pointers, told = Pointers(archive.pipeline), list[Any]()
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    spec, built = archive.build(0, {"2026-11-17": rows_of(0, 8)})
    builds.begin_registration(spec, PASSED, archive.changes(spec, built))

    def late(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            nonlocal is_held
            if is_held:
                is_held = False
                with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
                    for lock in held_names({f"{kind}:{archive.pipeline.name}" for kind in ("completeness", "iceberg")}):
                        end_lock(cursor, lock)
                finish(archive, pointers, 0)
                later, parts = archive.build(0, {"2026-11-18": rows_of(0, 7)})
                builds.begin_registration(later, PASSED, archive.changes(later, parts))
                finish(archive, pointers, 0)
            return change(*arguments)

        return changed

    def check() -> None:
        if not is_held:
            raise LockLost("frozen")

    def tell(_: Pipeline, properties: Any) -> list[str]:
        told.append(properties)
        return []

    monkeypatch.setattr(completeness, "put_hive_properties", tell)
    where: Any
    where, name = {
        "pointer": (pointers, "point_at"),
        "commit": (commit, "_commit"),
        "properties": (completeness, "put_hive_properties"),
    }[at]
    monkeypatch.setattr(where, name, late(getattr(where, name)))
    with pytest.raises(LockLost):
        finish_interval(pins.pinned_interval(archive.intervals[0]), cast(Catalog, pointers), check)
    (registered,) = revisions.registered(archive.pipeline.table)
    assert registered.rows == archive.load().scan().to_arrow().num_rows == 7
    assert pointers.at == {registered.partition: registered.location}
    assert told[-1] == table_properties(archive.pipeline.name)


def test_interval_has_what_is_registered_when_a_build_is_committed_after_a_later_one(postgres: Home) -> None:
    archive = OpenTable(pipeline_named("committed_late"))
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 9)})
    archive.publish(spec, built)
    archive.run(0, {"2026-11-18": rows_of(0, 7)})
    changes = Changes(points=tuple(built))
    tables.put_build(archive.pipeline, spec.pinned.id, attempts.load_attempt(spec.id).build or 0, changes)
    assert archive.load().scan().to_arrow().num_rows == 7


def test_interval_is_put_back_when_somebody_removed_it_and_it_is_published_again(postgres: Home) -> None:
    archive = OpenTable(pipeline_named("published_again"))
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    table = archive.load()
    table.delete("interval = '2026-11-18T05'")
    assert archive.load().scan().to_arrow().num_rows == 0
    follow_in_iceberg(archive.pipeline, pins.pinned_interval(archive.intervals[0]), lambda: None)
    assert archive.load().scan().to_arrow().num_rows == 9


def test_filters_find_all_rows_when_a_row_group_s_statistics_do_not_tell_of_them(
    postgres: Home, spark: SparkSession, tmp_path: Path
) -> None:
    """Parquet's writer leaves out those of long texts, and takes NaN for the greatest number."""
    archive = OpenTable(pipeline_named("partly_bounded", "device STRING, heading DOUBLE, at TIMESTAMP"))
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 9)})
    device = "CASE WHEN id < 100 THEN 'a' WHEN id = 100 THEN repeat('z', 5000) WHEN id < 199 THEN 'y' END AS device"
    heading = "CASE WHEN id = 0 THEN double('NaN') WHEN id < 100 THEN 100D ELSE 5D END AS heading"
    rows = spark.range(0, 200, 1, 1).selectExpr(device, heading, "id AS kafka_offset")
    # A row group is written when it is full, which is looked at after 100 rows.
    rows.write.option("parquet.block.size", 1).parquet(f"{tmp_path}/written")
    (file,) = (tmp_path / "written").glob("*.parquet")
    assert pq.read_metadata(file).num_row_groups == 2
    file.replace(f"{lake.filesystem(built[0].location)[1]}/{next(iter(built[0].files))}")
    archive.publish(spec, built)
    table = archive.load()
    filters = ("device = 'y'", "device is null", "device > 'y'", "heading = 100", "kafka_offset = 199")
    found = {each: table.scan(row_filter=each).to_arrow().num_rows for each in filters}
    assert list(found.values()) == [98, 1, 1, 99, 1], found
    (task,) = table.scan().plan_files()
    assert [table.schema().find_column_name(each) for each in task.file.upper_bounds] == ["kafka_offset"]
