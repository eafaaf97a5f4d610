"""What a driver that lives for weeks leaves behind: files of its committed micro-batches go, those in flight stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from include import lake
from include.doctor.landing import check_landing
from include.housekeeping.run import keep_house
from include.ledger.database import session
from include.ledger.models import LandingFileRow, MicroBatch
from include.ledger.streams import writers
from include.pipelines import load_pipeline
from tests.conftest import Home

pytestmark = pytest.mark.services

PIPELINE = "isp_hits"
QUERY = "0a1b2c3d-0000-4000-8000-000000000000"


def written(*parts: str) -> Path:
    path = Path(lake.filesystem(lake.uri(*parts))[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"rows")
    return path


def landed(folder: str) -> Path:
    return written("landing", PIPELINE, folder, "fate=empty", "part-0.parquet")


def quarantined(name: str) -> Path:
    return written("quarantine", PIPELINE, f"{name}.parquet")


def test_merged_files_of_committed_micro_batches_go_when_their_driver_still_lives(postgres: Home) -> None:
    lease, pipeline = writers.acquire(PIPELINE), load_pipeline(PIPELINE)
    known = landed(f"0a1b2c3d-000000007-{lease.token}")
    with session() as ledger:
        batch = MicroBatch(pipeline=PIPELINE, query="archive", query_id=QUERY, batch_id=7, token=lease.token)
        ledger.add(batch)
        ledger.flush()
        path = str(known.relative_to(postgres.lake))
        ledger.add(LandingFileRow(micro_batch_id=batch.id, fate="empty", path=path, rows=1, bytes=4))
    merged = [landed(f"0a1b2c3d-000000006-{lease.token}"), quarantined("0a1b2c3d-000000006")]
    of_a_zombie = [landed(f"0a1b2c3d-000000007-{lease.token - 1}"), quarantined("0a1b2c3d-000000007")]
    in_flight = [
        landed(f"0a1b2c3d-000000008-{lease.token}"),
        quarantined("0a1b2c3d-000000008"),
        # Of a query that has committed nothing yet.
        landed(f"1a1b2c3d-000000000-{lease.token}"),
        quarantined("1a1b2c3d-000000000"),
        written("landing", PIPELINE, "compacted", "empty", "2026-11-18-0123456789abcdef.parquet"),
    ]
    unknown = [each.location for each in check_landing(pipeline) if each.kind == "landing unknown to the ledger"]
    assert len(unknown) == len([*merged, *of_a_zombie])
    done = keep_house(pipeline, dry_run=False, older_than="0s", progress=lambda _: None)
    writers.release(lease)
    assert not [path for path in [*merged, *of_a_zombie] if path.exists()]
    assert [path for path in [known, *in_flight] if not path.exists()] == []
    assert len(done["orphans"]) == 4
