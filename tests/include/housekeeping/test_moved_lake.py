"""A lake that was moved, or is reached by another spelling: the ledger names its revisions by other locations."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, update

from include import lake
from include.doctor.repair import repair
from include.doctor.tables import check_tables
from include.erasure.run import Wish, erase
from include.errors import UsageError
from include.housekeeping.run import keep_house
from include.intervals.lake_of_ledger import TO_ITS_LAKE
from include.ledger.database import session
from include.ledger.models import Attempt, LandingFileRow
from include.offsets import Fate, OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from tests.conftest import Home, settings_of
from tests.support.attempts import TOPIC
from tests.support.committed import add_batch
from tests.support.proved import PIPELINE, register_hour

pytestmark = pytest.mark.services


def link(there: Path, here: Path) -> None:
    here.symlink_to(there)


def land(number: int) -> str:
    """A micro-batch with half of an hour that `register_hour` pins; its file's path below the lake."""
    path = f"landing/{PIPELINE}/0a1b2c3d-{number:09d}-1/fate=archived/part-0.parquet"
    lake.write_bytes(lake.uri(path), b"rows")
    with session() as ledger:
        read = OffsetRange(TopicPartition(TOPIC, 0), 100 * number, 100 * number + 100)
        batch = add_batch(ledger, PIPELINE, number, read, query_id="moved")
        ledger.add(LandingFileRow(micro_batch_id=batch, fate=Fate.ARCHIVED, path=path, rows=95, bytes=4))
    return path


@pytest.mark.parametrize(("number", "reach"), [(0, link), (1, shutil.move)], ids=["link", "moved"])
def test_registered_revisions_and_landing_stay_when_the_lake_has_another_location(
    postgres: Home, number: int, reach: Callable[[Path, Path], None]
) -> None:
    register_hour(number)
    with session() as ledger:
        ledger.execute(update(Attempt).values(ended_at=func.now()))
    landed, pipeline = land(number), load_pipeline(PIPELINE)
    before, here = postgres.lake, postgres.path / f"lake-{number}"
    reach(before, here)
    files = sorted(path.relative_to(here) for path in here.rglob("*") if path.is_file())

    with settings_of(postgres, TIDEMARK_LAKE=here.as_uri()):
        done = keep_house(pipeline, dry_run=False, older_than="0s", progress=lambda _: None)
        unknown = [each for each in check_tables(pipeline, deep=False) if each.kind == "revision unknown to the ledger"]
        repair(unknown, lambda _: None)
        with pytest.raises(UsageError, match=r"outside of the lake .*, and nothing was changed"):
            erase(pipeline, Wish(("somebody",), ("camera",), "asked", "test@host"), print)
    assert sorted(path.relative_to(here) for path in here.rglob("*") if path.is_file()) == files
    assert done["landing"]["micro_batches"] == 0
    assert [line for line in done["kept"] if line.startswith("landing of ") and "outside of the lake" in line]
    assert [line for line in done["kept"] if before.as_uri() in line and line.endswith(TO_ITS_LAKE)]
    assert len(unknown) == number + 1
    assert all(each.remedy.endswith(TO_ITS_LAKE) for each in unknown)

    if here.is_symlink():
        here.unlink()
    else:
        shutil.move(here, before)
    done = keep_house(pipeline, dry_run=False, older_than="0s", progress=lambda _: None)
    assert (done["landing"]["micro_batches"], done["orphans"], done["kept"]) == (1, [], [])
    assert not (before / landed).exists()


def test_extra_file_is_left_when_it_lies_in_another_lake(postgres: Home) -> None:
    register_hour(2)
    extra = next(postgres.lake.rglob("r-*/part-0.parquet")).with_name("extra.parquet")
    extra.write_bytes(b"rows")
    said: list[str] = []
    with settings_of(postgres, TIDEMARK_LAKE=(postgres.path / "another").as_uri()):
        found = [each for each in check_tables(load_pipeline(PIPELINE), deep=False) if each.kind == "extra file"]
        repair(found, said.append)
    assert extra.exists()
    assert any("lies outside of the lake" in line for line in said)
