"""Landing files that no commit names: the doctor leaves those of jobs under way, on a real PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from include import lake
from include.doctor.landing import check_landing
from include.doctor.repair import repair
from include.housekeeping.run import alone
from include.ledger import quarantine
from include.ledger.database import session
from include.ledger.models import LandingFileRow, MicroBatch
from include.ledger.streams import writers
from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from tests.conftest import Home

pytestmark = pytest.mark.services

PIPELINE = "nest_cameras"


def written(*parts: str) -> Path:
    """A file that was written a day ago by the clock of whoever wrote it, which may be wrong."""
    path = Path(lake.filesystem(lake.uri(*parts))[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"rows")
    long_ago = path.stat().st_mtime - timedelta(days=1).total_seconds()
    for each in (path, path.parent, path.parent.parent):
        os.utime(each, (long_ago, long_ago))
    return path


def landed(folder: str) -> Path:
    return written("landing", PIPELINE, folder, "fate=archived", "part-0.parquet")


def unknown() -> list[str]:
    """Names of the folders or files that the doctor would move aside."""
    found = [each for each in check_landing(load_pipeline(PIPELINE)) if each.kind == "landing unknown to the ledger"]
    return sorted(each.location.rsplit("/", 1)[-1] for each in found)


def repaired() -> list[str]:
    """Examine, repair, and what was said meanwhile."""
    said: list[str] = []
    repair([*check_landing(load_pipeline(PIPELINE))], said.append)
    return said


@pytest.fixture
def lease(postgres: Home) -> Iterator[Lease]:
    held = writers.acquire(PIPELINE)
    yield held
    writers.release(held)


def test_files_of_a_replay_stay_while_it_is_under_way(postgres: Home) -> None:
    path = landed("replay-000000007-0a1b2c3d")
    with quarantine.deciding(PIPELINE):
        assert unknown() == []
    disagreements = [*check_landing(load_pipeline(PIPELINE))]
    assert [each.repair for each in disagreements] == ["move landing aside"]
    # A replay that began after the examination.
    with quarantine.deciding(PIPELINE):
        repair(disagreements, lambda _: None)
        assert path.exists()
    repair(disagreements, lambda _: None)
    assert not path.exists()


def test_files_of_a_micro_batch_stay_while_its_driver_lives(postgres: Home, lease: Lease) -> None:
    mine, orphan = landed(f"0a1b2c3d-000000003-{lease.token}"), landed(f"0a1b2c3d-000000003-{lease.token - 1}")
    assert unknown() == [orphan.parent.parent.name]
    said = repaired()
    assert mine.exists()
    assert not orphan.exists()
    assert any("live driver" in line for line in said)


def test_quarantine_file_stays_when_a_live_driver_may_write_it_again(postgres: Home, lease: Lease) -> None:
    """A killed driver's file has the name that its successor gives to the same micro-batch."""
    path = written("quarantine", PIPELINE, "0a1b2c3d-000000004.parquet")
    assert path.name in unknown()
    repaired()
    assert path.exists()
    writers.release(lease)
    repaired()
    assert not path.exists()


def test_files_stay_when_they_are_committed_after_the_examination(postgres: Home) -> None:
    path = landed("0a1b2c3d-000000005-1")
    disagreements = [*check_landing(load_pipeline(PIPELINE))]
    with session() as ledger:
        batch = MicroBatch(pipeline=PIPELINE, query="archive", query_id="late", batch_id=5, token=1)
        ledger.add(batch)
        ledger.flush()
        below = lake.below_lake(lake.uri("landing", PIPELINE, "0a1b2c3d-000000005-1", "fate=archived", path.name))
        ledger.add(LandingFileRow(micro_batch_id=batch.id, fate="archived", path=below, rows=1, bytes=4))
    repair(disagreements, lambda _: None)
    assert path.exists()


def test_files_stay_while_housekeeping_may_be_compacting_them(postgres: Home) -> None:
    path = written("landing", PIPELINE, "compacted", "empty", "2026-11-18-0123456789abcdef.parquet")
    with alone(PIPELINE):
        said = repaired()
    assert path.exists()
    assert any("another housekeeping is under way" in line for line in said)
    repaired()
    assert not path.exists()
