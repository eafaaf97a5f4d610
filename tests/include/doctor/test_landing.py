"""Landing files that no commit names: the doctor leaves those of jobs under way, on a real PostgreSQL."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import delete, select, update

from include import lake
from include.doctor.disagreement import Disagreement
from include.doctor.landing import check_landing
from include.doctor.repair import plan, repair
from include.housekeeping.run import holding_files
from include.intervals.lake_of_ledger import OF_OTHER_LEDGER
from include.ledger import quarantine
from include.ledger.archive import snapshots
from include.ledger.database import session
from include.ledger.models import LandingFileRow, MicroBatch, Topic, TopicIncarnation
from include.ledger.streams import writers
from include.ledger.streams.writers import Lease
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from tests.conftest import Home
from tests.support.attempts import TOPIC
from tests.support.committed import add_batch
from tests.support.leases import held_lease
from tests.support.proved import register_hour

pytestmark = pytest.mark.services

PIPELINE = "nest_cameras"


def written(*parts: str) -> Path:
    """A file that was written a day ago by its writer's clock, which may be wrong."""
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
    """Examine and repair; return the output."""
    said: list[str] = []
    repair([*check_landing(load_pipeline(PIPELINE))], said.append)
    return said


@pytest.fixture
def lease(postgres: Home) -> Iterator[Lease]:
    with held_lease(PIPELINE) as held:
        yield held


def test_files_stay_when_their_replay_is_under_way(postgres: Home) -> None:
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


def test_files_of_a_micro_batch_stay_when_their_driver_lives(postgres: Home, lease: Lease) -> None:
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
        batch = add_batch(ledger, PIPELINE, 5, query_id="late")
        below = lake.below_lake(lake.uri("landing", PIPELINE, "0a1b2c3d-000000005-1", "fate=archived", path.name))
        ledger.add(LandingFileRow(micro_batch_id=batch, fate="archived", path=below, rows=1, bytes=4))
    repair(disagreements, lambda _: None)
    assert path.exists()


def test_files_stay_when_the_lake_keeps_checkpoints_of_another_ledger(postgres: Home) -> None:
    """They may be the only copy of records, and an erasure deletes them where they lie, once nobody needs them."""
    paths = [landed("0a1b2c3d-000000006-1"), written("quarantine", PIPELINE, "0a1b2c3d-000000006.parquet")]
    checkpoint = lake.uri("checkpoints", PIPELINE, "g0", "archive")
    lake.write_text(f"{checkpoint}/metadata", '{"id": "of another ledger"}')
    lake.write_text(f"{checkpoint}/commits/6", "v1\n{}")
    found = [*check_landing(load_pipeline(PIPELINE))]
    assert {(each.repair, each.remedy) for each in found} == {("", f"checkpoints/{PIPELINE}/g0: {OF_OTHER_LEDGER}")}
    assert repaired() == []
    assert all(path.exists() for path in paths)
    lake.delete(lake.uri("checkpoints", PIPELINE))
    repaired()
    assert not any(path.exists() for path in paths)


def test_files_stay_when_housekeeping_may_be_compacting_them(postgres: Home) -> None:
    path = written("landing", PIPELINE, "compacted", "empty", "2026-11-18-0123456789abcdef.parquet")
    with holding_files(PIPELINE):
        said = repaired()
    assert path.exists()
    assert any("another housekeeping is under way" in line for line in said)
    repaired()
    assert not path.exists()


def lost_file(number: int) -> str:
    """Remove a landing file of an hour that `register_hour` pins, and return its path."""
    path = f"landing/{PIPELINE}/0a1b2c3d-{number:09d}-1/fate=archived/part-0.parquet"
    with session() as ledger:
        read = OffsetRange(TopicPartition(TOPIC, 0), 100 * number, 100 * number + 100)
        batch = add_batch(ledger, PIPELINE, number, read, query_id="lost")
        ledger.add(LandingFileRow(micro_batch_id=batch, fate="archived", path=path, rows=95, bytes=4))
    return path


@pytest.fixture
def created_again(postgres: Home) -> Iterator[None]:
    """The topic was deleted, and the pipeline has adopted the one that was created again."""
    who = {"closed_by": "test", "reason": "test", "topic_partitions": 2}
    with session() as ledger:
        ledger.add(Topic(pipeline=PIPELINE, topic=TOPIC, topic_id="new", topic_partitions=2))
        ledger.add(TopicIncarnation(pipeline=PIPELINE, topic=TOPIC, topic_id="id", successor_id="new", **who))
    yield
    with session() as ledger:
        for model in (Topic, TopicIncarnation):
            ledger.execute(delete(model).where(model.pipeline == PIPELINE))


def test_rows_are_read_from_revisions_when_a_landing_file_was_lost(postgres: Home) -> None:
    register_hour(0)
    path = lost_file(0)
    [found] = [each for each in check_landing(load_pipeline(PIPELINE)) if each.location == path]
    assert found.repair == "read from revisions"
    repair([found], lambda _: None)
    offsets = OffsetRange(TopicPartition(TOPIC, 0), 0, 50)
    assert snapshots.rows_of_ranges(PIPELINE, PIPELINE, [offsets]).removed == [offsets]


def test_lost_file_is_to_be_restored_when_other_code_built_its_interval(postgres: Home) -> None:
    register_hour(7, decoder_versions=("newer",))
    path = lost_file(7)
    with session() as ledger:
        landed_by = select(LandingFileRow.micro_batch_id).where(LandingFileRow.path == path).scalar_subquery()
        ledger.execute(update(MicroBatch).where(MicroBatch.id == landed_by).values(decoder_version="older"))
    [found] = [each for each in check_landing(load_pipeline(PIPELINE)) if each.location == path]
    assert (found.repair, plan([found])) == ("", [])
    assert "restore the file; its registered build read Kafka with other code" in found.remedy
    said: list[str] = []
    # The finding of an examination before the interval was run by other code.
    repair([replace(found, repair="read from revisions")], said.append)
    assert said == [
        f"{PIPELINE}: micro-batch {found.micro_batch} is left: other code than landed it has read what is registered"
    ]
    offsets = OffsetRange(TopicPartition(TOPIC, 0), 700, 750)
    assert snapshots.rows_of_ranges(PIPELINE, PIPELINE, [offsets]).removed == []


@pytest.mark.parametrize("written_by_spark", [True, False], ids=["checksums beside it", "checksums in its pages"])
def test_damaged_landing_file_is_found_only_when_the_look_is_deep(postgres: Home, written_by_spark: bool) -> None:
    number = 3 if written_by_spark else 4
    register_hour(number)
    path = lost_file(number)
    file = Path(lake.filesystem(lake.uri(path))[1])
    file.parent.mkdir(parents=True)
    table = pa.table({"text": [f"a text of its own: {n:050d}" for n in range(95)]})
    pq.write_table(table, file, compression="none", write_page_checksum=True, use_dictionary=False)
    content = bytearray(file.read_bytes())
    if written_by_spark:
        parts = [content[at : at + 512] for at in range(0, len(content), 512)]
        noted = b"crc\0" + (512).to_bytes(4, "big") + b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)
        file.with_name(f".{file.name}.crc").write_bytes(noted)
    with session() as ledger:
        ledger.execute(update(LandingFileRow).where(LandingFileRow.path == path).values(bytes=len(content)))

    def found(**deep: bool) -> list[Disagreement]:
        return [each for each in check_landing(load_pipeline(PIPELINE), **deep) if each.location == path]

    assert found(deep=True) == []
    # Hadoop's checksums cover the footer, too. The text of a row in the middle is in no statistics.
    content[-40 if written_by_spark else content.index(b"%050d" % 50)] ^= 1
    file.write_bytes(content)
    assert found() == []
    [damaged] = found(deep=True)
    assert (damaged.kind, damaged.repair) == ("landing file damaged", "read from revisions")
    assert f"{path} (archived, 95 rows" in damaged.what
    repair([damaged], lambda _: None)
    assert found(deep=True) == []


def test_rows_of_a_lost_file_are_not_read_from_revisions_when_its_topic_was_created_again(
    postgres: Home, created_again: None
) -> None:
    """Tables identify rows only by offset: rows of the new topic at the same offsets would be mistaken for these."""
    register_hour(1)
    path = lost_file(1)
    [found] = [each for each in check_landing(load_pipeline(PIPELINE)) if each.location == path]
    said: list[str] = []
    # The finding of an examination before the topic was adopted.
    repair([found, replace(found, repair="read from revisions")], said.append)
    of_new_topic = OffsetRange(TopicPartition(TOPIC, 0), 100, 150, "new")
    assert snapshots.rows_of_ranges(PIPELINE, PIPELINE, [of_new_topic]).removed == []
    assert found.repair == ""
    assert "restore the file" in found.remedy
    assert any("created again" in line for line in said)
