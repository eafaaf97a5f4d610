"""Files of retired revisions leave the disk only when no kept snapshot needs them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sqlalchemy import func, update

from include import lake
from include.housekeeping.run import keep_house
from include.iceberg import catalog as iceberg_catalog
from include.iceberg.revision_release import release
from include.ledger import inventory
from include.ledger.database import session
from include.ledger.inventory import KnownRevision
from include.ledger.models import Attempt
from tests.support.open_tables import OpenTable, pipeline_named, rows_of

pytestmark = pytest.mark.services


@pytest.fixture
def archive(pipeline: str) -> OpenTable:
    return OpenTable(pipeline_named(f"t_{pipeline[-40:]}"))


def due(archive: OpenTable) -> list[KnownRevision]:
    return inventory.revisions_no_longer_needed([archive.pipeline.table], datetime.now(UTC))


def every_snapshot_reads(archive: OpenTable) -> list[int]:
    """Rows of each kept snapshot, oldest first; its files must be there."""
    table = archive.load()
    kept = sorted(table.snapshots(), key=lambda each: each.sequence_number or 0)
    return [table.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows for each in kept]


def keep(archive: OpenTable) -> dict:
    with session() as ledger:
        ledger.execute(update(Attempt).values(ended_at=func.now()))
    return keep_house(archive.pipeline, dry_run=False, older_than="0s", progress=lambda line: None)


def test_snapshot_expires_only_when_it_needs_the_replaced_files(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    second = archive.run(1, {"2026-11-18": rows_of(1, 4)})
    archive.run(2, {"2026-11-18": rows_of(2, 2)})
    last = archive.run(1, {"2026-11-18": rows_of(1, 5)})
    assert every_snapshot_reads(archive) == [9, 13, 15, 16]
    done = keep(archive)
    assert done["snapshots"] == {"expired": 2}
    assert not [each for each in due(archive) if lake.exists(each.location)]
    assert every_snapshot_reads(archive) == [9, 16]
    refs = archive.load().refs()
    assert second.tag not in refs
    assert last.tag in refs
    assert keep(archive)["snapshots"] == {"expired": 0}


def test_no_snapshot_is_found_for_a_time_when_the_one_of_then_has_expired(archive: OpenTable) -> None:
    for hour, count in ((0, 9), (1, 4), (1, 5)):
        archive.run(hour, {"2026-11-18": rows_of(hour, count)})
    every = sorted(archive.load().snapshots(), key=lambda each: each.sequence_number or 0)
    assert keep(archive)["snapshots"] == {"expired": 1}
    found = [archive.load().snapshot_as_of_timestamp(each.timestamp_ms) for each in every]
    assert [each and each.snapshot_id for each in found] == [None, None, every[2].snapshot_id]


def test_nothing_expires_when_no_files_were_replaced(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    archive.run(1, {"2026-11-18": rows_of(1, 4)})
    assert keep(archive)["snapshots"] == {"expired": 0}
    assert every_snapshot_reads(archive) == [9, 13]


def test_later_rerun_is_recognised_when_the_interval_s_first_swap_expired(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    archive.run(1, {"2026-11-18": rows_of(1, 4)})
    archive.run(0, {"2026-11-18": rows_of(0, 8)})
    archive.run(1, {"2026-11-18": rows_of(1, 3)})
    assert every_snapshot_reads(archive) == [9, 13, 12, 11]
    first_swapped = [each for each in due(archive) if each.partition.endswith("T06")]
    assert release(archive.pipeline, first_swapped, dry_run=True).expired == 3
    assert release(archive.pipeline, first_swapped, dry_run=False).held == frozenset()
    assert every_snapshot_reads(archive) == [11]
    assert keep(archive)["snapshots"] == {"expired": 0}
    assert every_snapshot_reads(archive) == [11]


def test_snapshot_and_files_stay_when_somebody_else_tagged_it(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    with iceberg_catalog.opened() as catalog:
        table = catalog.load_table(("lake", archive.pipeline.table))
        head = table.current_snapshot()
        assert head is not None
        table.manage_snapshots().create_tag(head.snapshot_id, "quarter-end").commit()
    archive.run(0, {"2026-11-18": rows_of(0, 8)})
    done = keep(archive)
    assert done["snapshots"] == {"expired": 0}
    assert [line for line in done["kept"] if "a snapshot of its Iceberg table needs" in line]
    assert every_snapshot_reads(archive) == [9, 8]


def test_files_are_left_when_the_head_still_needs_them(archive: OpenTable) -> None:
    archive.run(0, {"2026-11-18": rows_of(0, 9)})
    (revision,) = inventory.revisions_of(archive.pipeline.table)
    assert release(archive.pipeline, [revision], dry_run=False).held == {revision.location}
    assert every_snapshot_reads(archive) == [9]
