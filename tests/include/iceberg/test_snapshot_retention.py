"""Tables keep as many snapshots as declared; one that somebody else expired is named, and told again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from include.errors import UsageError
from include.iceberg import catalog as iceberg_catalog
from include.iceberg.examine import deviations, restore
from include.iceberg.snapshot_retention import PREVIOUS_VERSIONS
from include.ledger.intervals.findings import IcebergSnapshot
from include.pipelines.spec import Retention
from tests.support.open_tables import OpenTable, pipeline_named, rows_of

pytestmark = pytest.mark.services


@pytest.fixture
def archive(pipeline: str) -> OpenTable:
    """A table that keeps three snapshots."""
    declared = pipeline_named(f"t_{pipeline[-40:]}")
    return OpenTable(replace(declared, retention=Retention(snapshots=3)))


def intervals_told(archive: OpenTable) -> list[str]:
    """The hours of the kept snapshots, oldest first; each must be readable."""
    table = archive.load()
    kept = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
    assert all(table.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows for each in kept)
    return [each.summary["tidemark.interval"][-2:] for each in kept if each.summary]


def kinds(archive: OpenTable) -> list[str]:
    return [each.kind for each in deviations(archive.pipeline)]


def forget(archive: OpenTable, put: IcebergSnapshot, *, snapshot: bool) -> None:
    """Remove a verdict's tag, and maybe expire its snapshot, as somebody's maintenance does."""
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", archive.pipeline.table))
        table.manage_snapshots().remove_tag(put.tag).commit()
        if snapshot:
            table.maintenance.expire_snapshots().by_id(put.snapshot_id).commit()


def test_oldest_snapshots_and_tags_are_removed_and_rows_stay_when_too_many_are_kept(archive: OpenTable) -> None:
    for hour in range(5):
        archive.run(hour, {"2026-11-18": rows_of(hour, 2)})
    assert intervals_told(archive) == ["07", "08", "09"]
    assert {name[:13] for name in archive.load().refs() if name != "main"} == {
        "2026-11-18T07", "2026-11-18T08", "2026-11-18T09",
    }  # fmt: skip
    assert archive.load().scan().to_arrow().num_rows == 10
    assert kinds(archive) == []
    assert restore(archive.pipeline) == []


@pytest.mark.parametrize(("snapshots", "versions"), [(3, "20"), (30, "60")])
def test_table_keeps_metadata_of_its_snapshots_when_another_number_is_declared(
    archive: OpenTable, snapshots: int, versions: str
) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 2)})
    archive.pipeline = replace(archive.pipeline, retention=Retention(snapshots=snapshots))
    archive.run(1, {"2026-11-18": rows_of(1, 2)})
    assert archive.load().properties[PREVIOUS_VERSIONS] == versions


def test_expiry_goes_on_when_a_manifest_list_is_already_gone(archive: OpenTable) -> None:
    for hour in range(3):
        archive.run(hour, {"2026-11-18": rows_of(hour, 2)})
    table = archive.load()
    first = min(table.snapshots(), key=lambda each: each.sequence_number or 0)
    table.io.delete(first.manifest_list)
    archive.run(3, {"2026-11-18": rows_of(3, 2)})
    assert intervals_told(archive) == ["06", "07", "08"]


def test_snapshot_stays_with_the_entries_of_its_files_when_somebody_else_tagged_it(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", archive.pipeline.table))
        head = table.current_snapshot()
        assert head is not None
        table.manage_snapshots().create_tag(head.snapshot_id, "quarter-end").commit()
    archive.run(0, {"2026-11-18": rows_of(0, 8)})
    for hour in (1, 2, 3, 4):
        archive.run(hour, {"2026-11-18": rows_of(hour, 2)})
    # The swap of hour 5 shows which file the tagged snapshot needs.
    assert intervals_told(archive) == ["05", "05", "07", "08", "09"]


def assert_told_again(archive: OpenTable, *, snapshot: bool) -> None:
    """Assert that doctor names and restores a verdict whose tag, and maybe snapshot, is gone."""
    first = archive.run(0, {"2026-11-18": rows_of(0, 9)})
    archive.run(1, {"2026-11-18": rows_of(1, 4)})
    said = archive.load().snapshots()[0].summary
    forget(archive, first, snapshot=snapshot)
    (found,) = deviations(archive.pipeline)
    assert (found.kind, found.remedy) == ("expired summary", "")
    assert "interval 2026-11-18T05: the snapshot of build" in found.what
    assert len(restore(archive.pipeline)) == 1
    assert kinds(archive) == []
    table = archive.load()
    again = table.snapshot_by_id(table.refs()[first.tag].snapshot_id)
    assert again is not None
    assert again.summary is not None
    assert {
        key: value for key, value in again.summary.additional_properties.items() if key.startswith("tidemark.")
    } == {key: value for key, value in said.additional_properties.items() if key.startswith("tidemark.")}
    assert (again.snapshot_id == first.snapshot_id) is not snapshot
    assert table.scan().to_arrow().num_rows == 13


def test_tag_is_named_and_restored_when_somebody_removed_it(archive: OpenTable) -> None:
    assert_told_again(archive, snapshot=False)


def test_verdict_is_named_and_repeated_at_the_head_when_somebody_expired_its_snapshot(archive: OpenTable) -> None:
    assert_told_again(archive, snapshot=True)


def test_table_keeps_one_snapshot_when_fewer_are_declared() -> None:
    with pytest.raises(UsageError, match="whole number from 1 on"):
        Retention(snapshots=0)
