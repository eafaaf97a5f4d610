"""What a driver that lives for weeks leaves behind: files of its committed micro-batches go, those in flight stay."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from include import lake
from include.doctor.landing import check_landing
from include.housekeeping import sweep
from include.housekeeping.in_flight import InFlight
from include.housekeeping.run import keep_house
from include.housekeeping.sweep import NEVER, Done, Times, sweep_landing
from include.lake.scan import Folder
from include.ledger.archive.micro_batches import CommittedBatch
from include.ledger.database import session
from include.ledger.models import LandingFileRow
from include.ledger.streams import writers
from include.pipelines import load_pipeline
from tests.conftest import Home
from tests.support.committed import add_batch

pytestmark = pytest.mark.services

PIPELINE = "isp_hits"
QUERY = "0a1b2c3d-0000-4000-8000-000000000000"


def written(*parts: str) -> Path:
    path = Path(lake.filesystem("/".join((lake.root(), *parts)))[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"rows")
    return path


def landed(folder: str) -> Path:
    return written("landing", PIPELINE, folder, "fate=empty", "part-0.parquet")


def quarantined(name: str) -> Path:
    return written("quarantine", PIPELINE, f"{name}.parquet")


def half_merged(name: str) -> Path:
    """The file that a driver was writing when it was killed."""
    return written("quarantine", PIPELINE, f".{name}.parquet")


def test_merged_files_of_committed_micro_batches_go_when_their_driver_still_lives(postgres: Home) -> None:
    lease, pipeline = writers.acquire(PIPELINE), load_pipeline(PIPELINE)
    known = landed(f"0a1b2c3d-000000007-{lease.token}")
    with session() as ledger:
        batch = add_batch(ledger, PIPELINE, 7, query_id=QUERY, token=lease.token)
        path = str(known.relative_to(postgres.lake))
        ledger.add(LandingFileRow(micro_batch_id=batch, fate="empty", path=path, rows=1, bytes=4))
    merged = [landed(f"0a1b2c3d-000000006-{lease.token}"), quarantined("0a1b2c3d-000000006")]
    of_a_zombie = [landed(f"0a1b2c3d-000000007-{lease.token - 1}"), quarantined("0a1b2c3d-000000007")]
    half = [half_merged("0a1b2c3d-000000006-1"), half_merged("0a1b2c3d-000000007-1")]
    in_flight = [
        landed(f"0a1b2c3d-000000008-{lease.token}"),
        quarantined("0a1b2c3d-000000008"),
        half_merged(f"0a1b2c3d-000000008-{lease.token}"),
        # Of a query that has committed nothing yet.
        landed(f"1a1b2c3d-000000000-{lease.token}"),
        quarantined("1a1b2c3d-000000000"),
        written("landing", PIPELINE, "compacted", "empty", "2026-11-18-0123456789abcdef.parquet"),
    ]
    unknown = [each.location for each in check_landing(pipeline) if each.kind == "landing unknown to the ledger"]
    assert len(unknown) == len([*merged, *of_a_zombie])
    done = keep_house(pipeline, dry_run=False, older_than="0s", progress=lambda _: None)
    writers.release(lease)
    assert not [path for path in [*merged, *of_a_zombie, *half] if path.exists()]
    assert [path for path in [known, *in_flight] if not path.exists()] == []
    assert len(done["orphans"]) == 4


def test_half_merged_quarantine_file_of_a_killed_driver_goes_when_an_erasure_sweeps(postgres: Home) -> None:
    """It holds whole records, under a name that no reader sees and no later driver uses.

    Beside a ledger that was restored from a copy it stays, as all that this one does not know.
    """
    pipeline = load_pipeline(PIPELINE)
    half, others = half_merged("1a1b2c3d-000000003-7"), written("quarantine", PIPELINE, ".not-ours.parquet")
    done = Done(PIPELINE, dry_run=False, check=lambda: None)
    assert sweep_landing(pipeline, replace(Times.all_due(), unknown=NEVER), done, nobody_replays=True)
    assert half.exists()
    assert sweep_landing(pipeline, Times.all_due(), done, nobody_replays=True)
    assert not half.exists()
    assert others.exists()
    others.unlink()


def test_folder_that_a_bucket_lists_without_files_goes_when_its_micro_batch_was_committed(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow's client leaves an empty object with a folder's name where it moves or deletes the last file."""
    names = ["0a1b2c3d-000000007-1", "0a1b2c3d-000000008-1", "1a1b2c3d-000000000-1", "replay-1-1"]
    emptied = [Folder(lake.uri("landing", PIPELINE, name)) for name in names]
    in_flight = InFlight(datetime.now(UTC), None, False, CommittedBatch(QUERY, 7, 1, datetime.now(UTC), None))
    monkeypatch.setattr(InFlight, "of", lambda _: in_flight)
    monkeypatch.setattr(sweep, "scan_landing", lambda _: iter([emptied]))
    deleted: list[str] = []
    monkeypatch.setattr(lake, "delete", deleted.append)
    done = Done(PIPELINE, dry_run=False, check=lambda: None)
    assert sweep_landing(load_pipeline(PIPELINE), Times.all_due(), done)
    # A driver may be about to write to the others.
    assert deleted == [emptied[0].location]
