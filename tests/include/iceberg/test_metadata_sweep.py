"""Manifests, lists and metadata that no kept snapshot needs leave the disk, and nothing else does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include import lake
from include.housekeeping.run import keep_house
from include.iceberg import catalog as iceberg_catalog
from include.iceberg.examine import deviations
from include.iceberg.metadata_sweep import sweep_metadata
from include.pipelines.spec import Retention
from tests.support.open_tables import OpenTable, comparable, pipeline_named, rows_of

pytestmark = pytest.mark.services

NAMES = ("device", "kafka_offset", "date", "interval")


@pytest.fixture
def archive(pipeline: str) -> OpenTable:
    """A table that keeps two snapshots, after six commits, one of them a swap."""
    declared = pipeline_named(f"t_{pipeline[-40:]}")
    made = OpenTable(replace(declared, retention=Retention(snapshots=2)))
    for hour in (0, 1, 2, 1, 3, 4):
        made.run(hour, {"2026-11-18": rows_of(hour, 3 + len(made.intervals))})
    return made


def folder(archive: OpenTable) -> Path:
    return Path(lake.filesystem(archive.load().metadata_location)[1]).parent


def names(archive: OpenTable) -> set[str]:
    return {each.name for each in folder(archive).iterdir()}


def needed(archive: OpenTable) -> set[str]:
    """Return the names of files that kept snapshots need, and of metadata that the catalog and the log name."""
    table = archive.load()
    paths = [table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)]
    for each in table.snapshots():
        paths += [each.manifest_list, *(manifest.manifest_path for manifest in each.manifests(table.io))]
    return {path.rsplit("/", 1)[-1] for path in paths}


def sweep(archive: OpenTable, *, dry_run: bool = False, age: timedelta = timedelta()) -> set[str]:
    swept = sweep_metadata(archive.pipeline, datetime.now(UTC) - age, dry_run=dry_run)
    return {each.location.rsplit("/", 1)[-1] for each in swept.files}


def assert_whole(archive: OpenTable) -> None:
    """Assert that all kept snapshots are readable, the head has the registered rows, and doctor finds nothing."""
    table = archive.load()
    assert all(table.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows for each in table.snapshots())
    assert comparable(table.scan().to_arrow(), NAMES) == comparable(archive.registered_rows(), NAMES)
    assert list(deviations(archive.pipeline)) == []


def test_file_is_removed_only_when_no_kept_snapshot_needs_it(archive: OpenTable) -> None:
    # Files of failed commits, and somebody's note.
    (folder(archive) / "00099-0.metadata.json").write_text("{}")
    (folder(archive) / "0-m0.avro").write_bytes(b"")
    (folder(archive) / "note.txt").write_text("mine")
    before = names(archive)
    superfluous = before - needed(archive) - {"note.txt"}
    assert {"00099-0.metadata.json", "0-m0.avro"} < superfluous
    assert any(name.endswith("-m0.avro") and len(name) > 20 for name in superfluous), "an expired snapshot's manifest"
    assert sweep(archive, dry_run=True) == superfluous
    assert names(archive) == before
    assert sweep(archive) == superfluous
    assert names(archive) == needed(archive) | {"note.txt"}
    assert sweep(archive) == set()
    assert_whole(archive)
    archive.run(5, {"2026-11-18": rows_of(5, 2)})
    assert_whole(archive)


def test_nothing_is_removed_when_it_is_too_new(archive: OpenTable) -> None:
    assert sweep(archive, age=timedelta(hours=1)) == set()
    for path in folder(archive).iterdir():
        os.utime(path, (0, 0))
    assert sweep(archive, age=timedelta(hours=1))
    assert_whole(archive)


def test_next_run_deletes_leftovers_when_a_run_was_killed(archive: OpenTable, monkeypatch: pytest.MonkeyPatch) -> None:
    due, deleted = sweep(archive, dry_run=True), 0
    assert len(due) > 1
    real: Callable[[str], None] = lake.delete

    def killed_at_the_second(location: str) -> None:
        nonlocal deleted
        if deleted == 1:
            raise KeyboardInterrupt
        deleted += 1
        real(location)

    with monkeypatch.context() as patch:
        patch.setattr(lake, "delete", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            sweep(archive)
    assert_whole(archive)
    assert len(sweep(archive)) == len(due) - 1
    assert_whole(archive)


def test_file_stays_when_somebody_else_s_tag_needs_it(archive: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", archive.pipeline.table))
        head = table.current_snapshot()
        assert head is not None
        table.manage_snapshots().create_tag(head.snapshot_id, "quarter-end").commit()
    for hour in (0, 5, 6):
        archive.run(hour, {"2026-11-18": rows_of(hour, 2)})
    sweep(archive)
    assert archive.load().scan(snapshot_id=head.snapshot_id).to_arrow().num_rows
    assert_whole(archive)


def test_housekeeping_names_and_counts_files_when_it_removes_them(archive: OpenTable) -> None:
    def keep(*, dry_run: bool) -> list[str]:
        done = keep_house(archive.pipeline, dry_run=dry_run, older_than="0s", progress=lambda line: None)
        found: list[str] = done["metadata"]
        assert done["deleted"]["files"] >= len(found)
        return found

    due = keep(dry_run=True)
    assert due
    assert all(each.startswith(f"iceberg/{archive.pipeline.table}/metadata/") for each in due)
    assert keep(dry_run=False) == due
    assert keep(dry_run=True) == []
    assert_whole(archive)


def test_table_is_left_alone_when_its_metadata_is_gone(archive: OpenTable) -> None:
    table = archive.load()
    Path(lake.filesystem(table.metadata_location)[1]).unlink()
    at = Path(lake.filesystem(table.metadata_location)[1]).parent
    before = {each.name for each in at.iterdir()}
    swept = sweep_metadata(archive.pipeline, datetime.now(UTC), dry_run=False)
    assert (swept.files, len(swept.left)) == ((), 1)
    assert "its metadata is gone" in swept.left[0]
    assert {each.name for each in at.iterdir()} == before
