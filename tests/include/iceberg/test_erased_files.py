"""After an erasure no file of an Iceberg table names a value of an erased row, and readers find what is registered."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

import polars as pl
import pyarrow as pa
import pytest

from include import lake
from include.erasure import open_tables
from include.errors import TidemarkError
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import erased_files
from include.iceberg.examine import deviations
from include.iceberg.snapshot_retention import PREVIOUS_VERSIONS, previous_versions
from include.ledger.database import session
from include.ledger.intervals.revisions import as_built
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Revision
from include.pipelines.spec import Pipeline
from tests.support import duckdb_iceberg, remnants
from tests.support.open_tables import OpenTable, comparable, pipeline_named, rows_of

pytestmark = pytest.mark.services

MARK = "Zq7"
NAMES = ("device", "kafka_offset", "date", "interval")
DAY = "2026-11-18"


@pytest.fixture
def archive(pipeline: str) -> OpenTable:
    return OpenTable(pipeline_named("t_" + re.sub(r"\W", "_", pipeline)[-40:]))


def of_person(rows: pa.Table) -> pa.Table:
    """The rows with a person's name in them, longer than the bounds that manifests keep."""
    names = pa.array([f"{MARK} person {number:04d}" for number in range(rows.num_rows)])
    return rows.set_column(rows.column_names.index("device"), "device", names)


def folder(archive: OpenTable) -> Path:
    return Path(unquote(urlsplit(lake.uri("iceberg", archive.pipeline.table)).path))


def traces(archive: OpenTable) -> list[str]:
    return list(remnants.in_files(folder(archive), MARK))


def replaced(archive: OpenTable) -> list[BuiltRevision]:
    """Return the revisions that an erasure has retired: no longer registered ones."""
    with session() as ledger:
        rows = ledger.query(Revision).where(
            Revision.table_name == archive.pipeline.table, Revision.state != "registered"
        )
        return [as_built(row) for row in rows]


@pytest.fixture
def erased(archive: OpenTable) -> OpenTable:
    """Three intervals, whose second held a person's rows and was built again without them."""
    archive.run(0, {DAY: rows_of(0, 9)})
    archive.run(1, {DAY: of_person(rows_of(1, 5)), "2026-11-17": of_person(rows_of(1, 2, 600))})
    archive.run(2, {DAY: rows_of(2, 4)})
    archive.run(1, {DAY: rows_of(1, 3, 500)})
    assert traces(archive)
    return archive


def forget(archive: OpenTable) -> int:
    """What an erasure's sweep does, files included."""
    gone = replaced(archive)
    expired = open_tables.forget(archive.pipeline, gone)
    for each in gone:
        lake.delete(each.location)
    return expired


def assert_forgotten(archive: OpenTable) -> None:
    """Assert that no value is left, all snapshots are readable, the head has the registered rows, and doctor agrees."""
    assert traces(archive) == []
    table = archive.load()
    assert all(table.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows for each in table.snapshots())
    assert comparable(table.scan().to_arrow(), NAMES) == comparable(archive.registered_rows(), NAMES)
    assert list(deviations(archive.pipeline)) == []
    assert table.properties[PREVIOUS_VERSIONS] == previous_versions(archive.pipeline) == "100"
    on_disk = {each.name for each in (folder(archive) / "metadata").glob("*.metadata.json")}
    named = [table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)]
    assert on_disk == {each.rsplit("/", 1)[-1] for each in named}


def test_no_value_is_left_in_any_file_when_its_row_was_erased(erased: OpenTable) -> None:
    before = erased.load()
    tags = sorted(name for name in before.refs() if name != "main")
    assert forget(erased) == 3
    assert_forgotten(erased)
    after = erased.load()
    # Those of the interval before the first erased row, and of the verdict that no longer has one.
    assert sorted(name for name in after.refs() if name != "main") == [tags[0], tags[2]]
    assert after.snapshot_by_name(tags[2]) == after.current_snapshot()
    head = after.current_snapshot()
    was = before.current_snapshot()
    assert head is not None
    assert was is not None
    assert (head.summary or {})["tidemark.build"] == (was.summary or {})["tidemark.build"]
    wanted = comparable(erased.registered_rows(), NAMES)
    columns = ", ".join(NAMES)
    by_duckdb = duckdb_iceberg.query(f"SELECT {columns} FROM iceberg_scan('{after.metadata_location}')")
    assert sorted((tuple(row.values()) for row in by_duckdb), key=repr) == wanted
    assert comparable(pl.scan_iceberg(after).select(NAMES).collect().to_arrow(), NAMES) == wanted
    # Later intervals are committed and reported as usual.
    erased.run(3, {DAY: rows_of(3, 2)})
    assert_forgotten(erased)


def test_no_value_is_left_in_any_file_when_the_clock_of_the_lake_s_store_is_ahead(erased: OpenTable) -> None:
    ahead = time.time() + 600
    for path in (folder(erased) / "metadata").iterdir():
        os.utime(path, (ahead, ahead))
    forget(erased)
    assert_forgotten(erased)


def test_no_value_is_left_in_any_file_when_the_table_is_not_declared_any_more(
    erased: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Pipeline, "tables", property(lambda _: ()))
        assert forget(erased) == 3
    assert_forgotten(erased)


@pytest.mark.parametrize("moment", ["erased_head_said_again", "erased_snapshots_expired", "erased_metadata_dropped"])
def test_forgetting_ends_as_usual_when_it_was_killed_before(
    erased: OpenTable, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def killed(passed: str) -> None:
        if passed == moment:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(erased_files, "crash_point", killed)
        with pytest.raises(KeyboardInterrupt):
            forget(erased)
    forget(erased)
    assert_forgotten(erased)
    assert forget(erased) == 0
    assert_forgotten(erased)


def test_tag_is_named_and_left_when_somebody_else_put_it_on_erased_rows(erased: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", erased.pipeline.table))
        oldest, second = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)[:2]
        table.manage_snapshots().create_tag(oldest.snapshot_id, "before").commit()
        table.manage_snapshots().create_tag(second.snapshot_id, "quarter-end").commit()
        with pytest.raises(TidemarkError, match=r"tag quarter-end .*keeps") as refused:
            forget(erased)
        assert "--resume" in str(refused.value.remedy)
        assert all(lake.exists(each.location) for each in replaced(erased))
        catalog.load_table(("lake", erased.pipeline.table)).manage_snapshots().remove_tag("quarter-end").commit()
    assert forget(erased) == 3
    assert_forgotten(erased)
    assert "before" in erased.load().refs()


def test_foreign_commits_are_removed_and_their_files_reported_when_rows_are_erased(erased: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", erased.pipeline.table))
        table.append(table.scan().to_arrow())
    forget(erased)
    assert_forgotten(erased)
    assert open_tables.files_of_others(erased.pipeline) > 0


def test_table_forgets_too_when_it_is_no_longer_declared(archive: OpenTable) -> None:
    archive.run(0, {DAY: rows_of(0, 9)})
    archive.run(1, {DAY: of_person(rows_of(1, 5))})
    with session() as ledger:
        (gone,) = ledger.query(Revision).where(Revision.table_name == archive.pipeline.table, Revision.rows == 5)
        retired = [as_built(gone)]
    plain = replace(archive.pipeline, archive=replace(archive.pipeline.archive, iceberg=False))
    assert plain.iceberg_tables == ()
    assert open_tables.forget(plain, retired) == 2
    assert traces(archive) == []
    assert archive.load().scan().to_arrow().num_rows == 9


def test_nothing_is_forgotten_when_only_the_folder_of_a_table_is_left(archive: OpenTable) -> None:
    folder(archive).mkdir(parents=True)
    retired = BuiltRevision(archive.pipeline.table, f"date={DAY}", "r1", lake.uri("tables", "r1"), 1, "v2:0", {})
    assert open_tables.forget(archive.pipeline, [retired]) == 0


def test_nothing_is_forgotten_when_a_pipeline_has_no_iceberg_tables(archive: OpenTable) -> None:
    assert open_tables.forget(archive.pipeline, []) == 0
    assert open_tables.files_of_others(archive.pipeline) == 0
