"""Commits leave the metadata that PyIceberg's own catalog would leave, without copying what they do not touch."""

from __future__ import annotations

import json
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog as AnyCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from include.iceberg import catalog as iceberg_catalog
from include.iceberg.examine import deviations
from include.lake import object_store
from tests.conftest import SetSettings
from tests.support import s3_server
from tests.support.open_tables import OpenTable, pipeline_named, rows_of

pytestmark = pytest.mark.services


@pytest.fixture
def archive(pipeline: str) -> OpenTable:
    """A table of four snapshots, one of them a swap."""
    made = OpenTable(pipeline_named(f"t_{pipeline[-40:]}"))
    for hour in (0, 1, 0, 2):
        made.run(hour, {"2026-11-18": rows_of(hour, 2 + len(made.intervals))})
    return made


def told(metadata: TableMetadata) -> dict[str, Any]:
    """The metadata without the moment of the change."""
    found: dict[str, Any] = json.loads(metadata.model_dump_json())
    found["last-updated-ms"] = found["metadata-log"][-1]["timestamp-ms"] = None
    for each in found["snapshot-log"]:
        each["timestamp-ms"] = None
    return found


def staged(of: type[AnyCatalog], table: Table, *updates: TableUpdate) -> TableMetadata:
    """Return what a commit of these updates by one of the classes would leave."""
    stage = getattr(of, "_update_and_stage_table")  # noqa: B009
    metadata: TableMetadata = stage(table.catalog, table, table.name(), (), updates).metadata
    return metadata


def updates_of(table: Table, at: int) -> dict[str, tuple[TableUpdate, ...]]:
    """Updates of each kind; a snapshot that is added has that time."""
    first, second, third, head = table.snapshots()
    again = head.model_copy(
        update={"snapshot_id": 7, "parent_snapshot_id": head.snapshot_id, "sequence_number": 99, "timestamp_ms": at}
    )
    branch = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=7)
    added = (AddSnapshotUpdate(snapshot=again), branch)
    tag = SetSnapshotRefUpdate(ref_name="mine", type="tag", snapshot_id=7)
    oldest = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [first.snapshot_id, second.snapshot_id]})
    between = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [third.snapshot_id]})
    properties = (
        SetPropertiesUpdate(updates={"a": "b"}),
        RemovePropertiesUpdate(removals=["write.metadata.previous-versions-max"]),
    )
    older = SetSnapshotRefUpdate(ref_name="older", type="tag", snapshot_id=second.snapshot_id)
    back = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=third.snapshot_id)
    return {
        "a commit": (*added, tag, *properties),
        "a commit that expires": (*added, tag, oldest),
        "one between is expired": (between,),
        "an old one gets a tag": (older,),
        "the head goes back": (back,),
        "properties alone": properties,
    }


def test_result_equals_pyiceberg_s_but_for_gaps_in_its_log_when_a_commit_is_made(archive: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", archive.pipeline.table))
        before = table.metadata.model_dump_json()
        for what, updates in updates_of(table, table.metadata.last_updated_ms + 1).items():
            ours, theirs = (told(staged(each, table, *updates)) for each in (type(catalog), SqlCatalog))
            if what == "one between is expired":
                assert len(theirs["snapshot-log"]) == 3
                theirs["snapshot-log"] = theirs["snapshot-log"][2:]
            assert ours == theirs, what
            assert table.metadata.model_dump_json() == before, what


class _Past(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> _Past:
        return cls(2026, 1, 1, tzinfo=tz)


def test_times_do_not_go_back_when_the_clock_does(archive: OpenTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyiceberg.table.update.datetime", _Past)
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", archive.pipeline.table))
        # It did before, too, under earlier code.
        first, *others = table.metadata.snapshot_log
        late = first.model_copy(update={"timestamp_ms": first.timestamp_ms + 3_600_000})
        table.metadata = table.metadata.model_copy(update={"snapshot_log": [late, *others]})
        every = updates_of(table, at=1)
        moved = SetLocationUpdate(location=table.location())
        for updates in (*every.values(), (*every["a commit"], moved), (*every["the head goes back"], moved)):
            after = staged(type(catalog), table, *updates)
            for log in (after.snapshot_log, after.metadata_log):
                times = [each.timestamp_ms for each in log]
                assert [*times, after.last_updated_ms] == sorted([*times, after.last_updated_ms]), updates
            assert after.last_updated_ms >= table.metadata.last_updated_ms
            assert all(each.timestamp_ms > 1 for each in after.snapshots)


def test_cached_metadata_equals_the_file_when_it_is_read_once(archive: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        first, second = (catalog.load_table(("lake", archive.pipeline.table)) for _ in range(2))
        assert first.metadata is second.metadata
        archive.run(3, {"2026-11-18": rows_of(3, 1)})
        third = catalog.load_table(("lake", archive.pipeline.table))
        assert len(third.snapshots()) == len(first.snapshots()) + 1
        assert third.metadata == FromInputFile.table_metadata(third.io.new_input(third.metadata_location))


def test_commit_is_refused_when_its_head_is_older(archive: OpenTable) -> None:
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", archive.pipeline.table))
        expected = AssertRefSnapshotId(ref="main", snapshot_id=table.snapshots()[0].snapshot_id)
        with pytest.raises(CommitFailedException):
            catalog.commit_table(table, (expected,), (SetPropertiesUpdate(updates={"a": "b"}),))
        assert "a" not in archive.load().properties


@pytest.mark.usefixtures("pipeline")
def test_metadata_is_written_to_the_store_of_the_lake_when_it_is_self_hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyIceberg does not read the store's address from the environment, and would ask AWS for the bucket."""
    for name, value in {"URL": "http://127.0.0.1:9", "URL_S3": ""}.items():
        monkeypatch.setenv(f"AWS_ENDPOINT_{name}", value)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    with iceberg_catalog.opened() as catalog:
        properties = catalog.properties
    assert properties["s3.endpoint"] == "http://127.0.0.1:9"
    assert properties["s3.region"] == "eu-central-1"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "")
    with iceberg_catalog.opened() as catalog:
        assert not {"s3.endpoint", "s3.region"} & catalog.properties.keys()


@pytest.mark.slow
def test_table_in_a_bucket_has_its_rows_when_intervals_are_registered(
    pipeline: str, tmp_path: Path, set_settings: SetSettings
) -> None:
    with s3_server.serving(tmp_path) as server:
        set_settings(**server.environment, TIDEMARK_LAKE=f"s3a://{s3_server.BUCKET}/lake")
        object_store._store.cache_clear()
        table = OpenTable(pipeline_named(f"t_{pipeline[-40:]}"))
        for hour, rows in ((0, 3), (1, 4), (0, 5)):
            table.run(hour, {"2026-11-18": rows_of(hour, rows)})
        assert table.load().scan().to_arrow().num_rows == 9
        assert table.load().metadata_location.startswith(f"s3a://{s3_server.BUCKET}/lake/iceberg/")
        assert list(deviations(table.pipeline)) == []
    object_store._store.cache_clear()
