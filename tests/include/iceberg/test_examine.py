"""Iceberg tables that somebody changed, or that lag the ledger: each named, and mended by it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo, GreaterThan
from sqlalchemy import update

from include import lake
from include.doctor.open_tables import check_open_tables
from include.errors import MetadataGone, UsageError
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import examine, tables
from include.iceberg.examine import deviations, restore
from include.iceberg.revision_release import release
from include.ledger import proofs
from include.ledger.database import session
from include.ledger.intervals import builds, locks, revisions
from include.ledger.intervals.builds import Changes
from include.ledger.models import IntervalRow
from tests.conftest import Home, settings_of
from tests.support.open_tables import COLUMNS, PASSED, OpenTable, pipeline_named, rows_of

pytestmark = pytest.mark.services


@pytest.fixture
def archive(pipeline: str) -> OpenTable:
    """Two registered intervals."""
    made = OpenTable(pipeline_named(f"t_{pipeline[-40:]}"))
    made.run(0, {"2026-11-18": rows_of(0, 9)})
    made.run(1, {"2026-11-18": rows_of(1, 4)})
    return made


def kinds(archive: OpenTable) -> list[str]:
    return [each.kind for each in deviations(archive.pipeline)]


def assert_mended(archive: OpenTable) -> None:
    assert restore(archive.pipeline)
    assert kinds(archive) == []
    files = {task.file.file_path for task in archive.load().scan().plan_files()}
    assert files == {
        f"{each.location}/{name}" for each in revisions.registered(archive.pipeline.table) for name in each.files
    }
    assert restore(archive.pipeline) == []


def test_nothing_is_found_when_the_tables_follow_the_ledger(archive: OpenTable) -> None:
    assert kinds(archive) == []
    assert list(check_open_tables(archive.pipeline)) == []


def test_nothing_is_found_when_the_table_has_registered_revisions_of_another_pipeline(archive: OpenTable) -> None:
    """Its view had the table before. It was dropped, and the ledger still lists what was registered."""
    spec, built = archive.build(2, {"2026-11-18": rows_of(2, 3)})
    builds.finish_registration(builds.begin_registration(spec, PASSED, archive.changes(spec, built)))
    assert kinds(archive) == ["other files"]
    with session() as ledger:
        ledger.execute(update(IntervalRow).where(IntervalRow.id == spec.pinned.id).values(pipeline="another"))
    assert kinds(archive) == []
    assert restore(archive.pipeline) == []


@pytest.mark.parametrize("content", [None, b"PAR1 and no more"], ids=["missing", "damaged"])
def test_other_intervals_are_in_a_table_that_is_made_anew_when_a_file_of_one_is_gone(
    archive: OpenTable, content: bytes | None
) -> None:
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(("lake", archive.pipeline.table))
    first, second = revisions.registered(archive.pipeline.table)
    [name] = first.files
    file = Path(lake.filesystem(f"{first.location}/{name}")[1])
    file.unlink() if content is None else file.write_bytes(content)
    left, *done = restore(archive.pipeline)
    assert left.startswith(f"left: lake.{archive.pipeline.table} lacks interval 2026-11-18T05: a registered file is ")
    assert left.endswith("; run its interval again")
    assert [each.rsplit(" ", 1)[-1][-2:] for each in done] == ["06"]
    assert archive.load().scan().to_arrow().num_rows == second.rows
    assert kinds(archive) == ["other files"]


def test_append_is_named_and_rolled_back_when_it_is_foreign(archive: OpenTable) -> None:
    table = archive.load()
    with iceberg_catalog.opened() as catalog:
        catalog.load_table(("lake", archive.pipeline.table)).append(table.scan().to_arrow())
    (found, *others) = check_open_tables(archive.pipeline)
    assert "somebody else committed snapshot" in found.what
    assert found.repair == "commit to Iceberg"
    assert len(others) == 2
    assert_mended(archive)


def test_delete_is_named_and_rolled_back_when_it_is_foreign(archive: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        catalog.load_table(("lake", archive.pipeline.table)).delete(EqualTo("interval", "2026-11-18T05"))
    assert kinds(archive) == ["foreign commit", "other files"]
    assert_mended(archive)


def test_table_is_filled_with_a_snapshot_per_interval_when_somebody_dropped_it(archive: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(("lake", archive.pipeline.table))
    assert kinds(archive) == ["missing table"]
    assert_mended(archive)
    assert len(archive.load().snapshots()) == 2


def test_table_is_recreated_when_its_metadata_is_gone(archive: OpenTable) -> None:
    for file in Path(lake.filesystem(lake.uri("iceberg", archive.pipeline.table))[1]).rglob("*.metadata.json"):
        file.unlink()
    assert kinds(archive) == ["missing metadata"]
    (found,) = check_open_tables(archive.pipeline)
    assert (found.repair, found.remedy.startswith("put it back, or ")) == ("commit to Iceberg", True)
    assert_mended(archive)


def test_table_is_named_kept_and_made_anew_when_the_lake_was_moved(postgres: Home, archive: OpenTable) -> None:
    before = archive.load().location()
    due = revisions.registered(archive.pipeline.table)
    with settings_of(postgres, TIDEMARK_LAKE=(postgres.path / "moved").as_uri()):
        (found,) = check_open_tables(archive.pipeline)
        assert f"lies in another lake, or in this one by another spelling: {before}" in found.what
        # A repair makes it anew without its history, though its metadata is there.
        assert found.remedy.startswith("set TIDEMARK_LAKE to the lake that it lies in")
        assert (found.repair, "next publication" in found.remedy) == ("commit to Iceberg", False)
        with pytest.raises(MetadataGone, match=r"set TIDEMARK_LAKE to .*; only if .*doctor --repair"):
            archive.run(2, {"2026-11-18": rows_of(2, 3)})
        expiry = release(archive.pipeline, due, dry_run=False)
        assert (expiry.held, len(expiry.left)) == ({each.location for each in due}, 1)
        assert_mended(archive)
        assert archive.load().location() == iceberg_catalog.location_of(archive.pipeline.table) != before


def test_remedy_is_named_and_the_registration_ends_after_it_when_the_head_s_manifest_list_is_gone(
    archive: OpenTable,
) -> None:
    """PostgreSQL was restored from a copy that is older than the table's snapshots: later commits expired the head."""
    table, due = archive.load(), revisions.registered(archive.pipeline.table)
    head = table.current_snapshot()
    assert head is not None
    table.io.delete(head.manifest_list)
    built = archive.build(2, {"2026-11-18": rows_of(2, 3)})
    with pytest.raises(MetadataGone, match=r"its metadata is gone: .*doctor --repair makes the table anew"):
        archive.publish(*built)
    expiry = release(archive.pipeline, due, dry_run=False)
    assert (expiry.held, len(expiry.left)) == ({each.location for each in due}, 1)
    assert_mended(archive)
    (begun,) = builds.begun_registrations(archive.pipeline.name)
    tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes)
    builds.finish_registration(begun)
    assert kinds(archive) == []
    assert archive.load().scan().to_arrow().num_rows == 16


def test_table_is_recreated_when_a_manifest_is_gone(archive: OpenTable) -> None:
    for file in Path(lake.filesystem(lake.uri("iceberg", archive.pipeline.table))[1]).rglob("*-m0.avro"):
        file.unlink()
    assert kinds(archive) == ["missing metadata"]
    assert_mended(archive)


def test_intervals_are_committed_when_they_were_registered_before_the_declaration(archive: OpenTable) -> None:
    register_only(archive, 2, rows_of(2, 3))
    (found,) = deviations(archive.pipeline)
    assert "interval 2026-11-18T07: 1 registered files are not in it" in found.what
    assert_mended(archive)


def register_only(archive: OpenTable, hour: int, rows: pa.Table) -> None:
    """Register an interval as before Iceberg was declared."""
    spec, built = archive.build(hour, {"2026-11-18": rows})
    builds.finish_registration(builds.begin_registration(spec, PASSED, archive.changes(spec, built)))


def priced(hour: int, *prices: str | None, digits: tuple[int, int] = (10, 2)) -> pa.Table:
    rows = rows_of(hour, len(prices))
    values = pa.array([each and Decimal(each) for each in prices], pa.decimal128(*digits))
    return rows.set_column(rows.column_names.index("price"), "price", values)


def widened(archive: OpenTable, kind: str) -> OpenTable:
    columns = COLUMNS.replace("DECIMAL(10,2)", kind)
    return replace(archive, pipeline=pipeline_named(archive.pipeline.name, columns))


def test_interval_is_left_out_until_it_is_run_again_when_its_decimals_have_fewer_places(
    pipeline: str, caplog: pytest.LogCaptureFixture
) -> None:
    archive = OpenTable(pipeline_named(f"t_{pipeline[-40:]}"))
    register_only(archive, 0, priced(0, "1.50", "99.25"))
    # A rerun has the same rows, and changes nothing.
    register_only(archive, 1, priced(1, "0.00", None))
    register_only(archive, 2, priced(2, None, None))
    archive = widened(archive, "DECIMAL(12,4)")
    register_only(archive, 3, priced(3, "60.5000", "1.0000", digits=(12, 4)))
    left, *done = restore(archive.pipeline)
    assert left.startswith(f"left: lake.{archive.pipeline.table} lacks interval 2026-11-18T05: ")
    assert "price is decimal(10, 2) in it, and decimal(12, 4) in the Iceberg table" in left
    assert left.endswith("; run its interval again")
    assert [each.rsplit(" ", 1)[-1][-2:] for each in done] == ["06", "07", "08"]
    assert kinds(archive) == ["other files"]
    with pytest.raises(UsageError, match="was written with other decimal places"):
        tables.put_registered(archive.pipeline, archive.intervals[0])
    # One that was begun before ends without it: until then, no interval could be published.
    build = proofs.build_to_prove(archive.intervals[0])
    assert build is not None
    assert tables.put_build(archive.pipeline, archive.intervals[0], build, Changes(), {}) == []
    assert f"left: lake.{archive.pipeline.table} lacks interval 2026-11-18T05: " in caplog.text

    archive.run(0, {"2026-11-18": priced(0, "1.5000", "99.2500", digits=(12, 4))})
    assert kinds(archive) == []
    dear = archive.load().scan(row_filter=GreaterThan("price", Decimal("50.0000"))).plan_files()
    assert {"05", "08"} <= {str(task.file.partition[1])[-2:] for task in dear}
    prices = archive.load().scan().to_arrow()["price"].to_pylist()
    assert sorted(each for each in prices if each) == [Decimal(each) for each in ("1", "1.5", "60.5", "99.25")]
    assert len(prices) == 8


def test_interval_is_committed_again_when_its_decimals_were_integers_and_have_too_many_digits_now(
    archive: OpenTable,
) -> None:
    archive.run(2, {"2026-11-18": priced(2, "1.50", "99.25")})
    archive = widened(archive, "DECIMAL(20,2)")
    archive.run(3, {"2026-11-18": priced(3, "60.50", digits=(20, 2))})
    with iceberg_catalog.opened() as catalog:
        catalog.drop_table(("lake", archive.pipeline.table))
    assert_mended(archive)
    dear = archive.load().scan(row_filter=GreaterThan("price", Decimal("50.00")), selected_fields=("price",))
    assert sorted(dear.to_arrow()["price"].to_pylist()) == [Decimal("60.50"), Decimal("99.25")]


def test_interval_is_left_alone_when_it_is_being_registered(archive: OpenTable) -> None:
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 2)})
    begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
    tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes)
    with locks.publishing(archive.pipeline.name, spec.pinned.interval):
        assert kinds(archive) == []
        assert restore(archive.pipeline) == []
        builds.finish_registration(begun)
    assert kinds(archive) == []


def test_interval_has_its_registered_rows_when_its_begun_registration_is_left_until_that_is_finished(
    archive: OpenTable,
) -> None:
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 2)})
    begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
    tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes)
    assert kinds(archive) == ["other files"]
    assert_mended(archive)
    tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes)
    builds.finish_registration(begun)
    assert kinds(archive) == []


def test_interval_is_left_alone_when_its_registration_begins_while_the_lock_is_waited_for(
    archive: OpenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, built = archive.build(0, {"2026-11-18": rows_of(0, 2)})
    registrations = []

    @contextmanager
    def after_its_commit(pipeline: str) -> Iterator[None]:
        begun = builds.begin_registration(spec, PASSED, archive.changes(spec, built))
        tables.put_build(archive.pipeline, begun.pinned.id, begun.build, begun.changes)
        registrations.append(begun)
        with iceberg_catalog.writing(pipeline):
            yield

    monkeypatch.setattr(examine, "writing", after_its_commit)
    with locks.publishing(archive.pipeline.name, spec.pinned.interval):
        assert restore(archive.pipeline) == []
        builds.finish_registration(*registrations)
    assert kinds(archive) == []


def test_table_is_named_and_not_touched_when_it_is_somebody_else_s(archive: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        catalog.load_table(("lake", archive.pipeline.table)).transaction().set_properties(
            {iceberg_catalog.OWNER: "somebody"}
        ).commit_transaction()
    (found,) = check_open_tables(archive.pipeline)
    assert (found.repair, "rename that table" in found.remedy) == ("", True)
    with pytest.raises(UsageError, match="not one that Tidemark made"):
        restore(archive.pipeline)
