"""Reads of an archive whose topic was created again while a record of the old topic is being erased."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.erasure.keys import Keys
from include.ledger.archive import landing_files
from include.ledger.database import session
from include.ledger.erasures import intent
from include.ledger.erasures.intent import Found, Request
from include.ledger.models import LandingFileRow, MicroBatch, MicroBatchRange, Replay, Topic, TopicIncarnation
from include.ledger.quarantine import REPLAY, RecordKey
from include.pipelines import load_pipeline
from include.pipelines.spec import EVENT_TIMES
from spark_jobs.archive.reader import read_archived, read_archived_by_event_time, read_replayed
from tests.conftest import Home
from tests.support.committed import TP, commit, span
from tests.support.leases import held_lease

pytestmark = [pytest.mark.spark, pytest.mark.services]

NAME = "wiki_changes"
DAY = datetime(2026, 11, 18, tzinfo=UTC)

TIMES = {"g": None, "h": datetime(9999, 12, 31, tzinfo=UTC)}
"""Of users without an event time, and with one of a year that is not permitted, as earlier code landed."""


def write(path: str, users: list[str]) -> None:
    """A landing file with a record of each user, at the offsets from 0."""
    columns = {
        "kafka_topic": [TP.topic] * len(users),
        "kafka_partition": pa.array([0] * len(users), pa.int32()),
        "kafka_offset": pa.array(range(len(users)), pa.int64()),
        "kafka_element": pa.array([0] * len(users), pa.int32()),
        "user": users,
        "changed_at": pa.array(
            [TIMES.get(user, DAY + timedelta(hours=5)) for user in users], pa.timestamp("us", "UTC")
        ),
    }
    lake.make_parents(lake.uri(path))
    pq.write_table(pa.table(columns), lake.filesystem(lake.uri(path))[1])


@pytest.fixture(scope="module")
def being_erased(postgres: Home) -> str:
    """The old topic's record 1 and record 2, which a replay delivered, are being erased; files still hold them.

    The path of the replay's file.
    """
    old, new, replay = (commit(NAME, number, 0, 4, archived=1) for number in range(3))
    with session() as ledger:
        ledger.add(Topic(pipeline=NAME, topic=TP.topic, topic_id="id", topic_partitions=1))
        ledger.add(
            TopicIncarnation(
                pipeline=NAME, topic=TP.topic, topic_id="old", topic_partitions=1, successor_id="id",
                closed_by="me@here", reason="moved",
            )
        )  # fmt: skip
        ledger.get_one(MicroBatchRange, (old, TP.topic, 0)).topic_id = "old"
        ledger.delete(ledger.get_one(MicroBatchRange, (replay, TP.topic, 0)))
        ledger.get_one(MicroBatch, replay).query = REPLAY
        for offset in (0, 2):
            ledger.add(
                Replay(
                    pipeline=NAME, topic=TP.topic, topic_id="old", topic_partition=0, record_offset=offset,
                    fate="archived", replayed_by="me@here", decoder_version="1", micro_batch_id=replay,
                )
            )  # fmt: skip
        paths = {row.micro_batch_id: row.path for row in ledger.query(LandingFileRow)}
    write(paths[old], ["a", "person", "b", "c"])
    write(paths[new], ["e", "f", "g", "h"])
    write(paths[replay], ["kept", "not there", "person"])
    request = Request(NAME, ["user"], "asked", "me@here", "00" * 16, [], False)
    with held_lease(NAME) as lease:
        landed = {RecordKey(TP.topic, "old", 0, offset) for offset in (1, 2)}
        intent.begin(lease, request, Found(landed, set(), set(), 2), Keys(["person"]))
    return paths[replay]


def users_of(rows: Any) -> list[str]:
    return sorted(row["user"] for row in rows.select("user").collect())


def test_only_the_old_topic_s_rows_are_left_out_when_they_are_being_erased(spark: Any, being_erased: str) -> None:
    pipeline = load_pipeline(NAME)
    rows = (
        read_archived_by_event_time(spark, pipeline, *EVENT_TIMES).select("user", "tidemark_closed_topic_id").collect()
    )
    assert sorted((row["user"], row["tidemark_closed_topic_id"]) for row in rows) == [
        ("a", "old"),
        ("c", "old"),
        *((user, "") for user in "efg"),
    ]
    assert users_of(read_archived(spark, pipeline, [span(0, 4)])) == ["e", "f", "g", "h"]
    # Only who asks for all event times asks for rows without one.
    of_day = read_archived_by_event_time(spark, pipeline, DAY, DAY + timedelta(days=1))
    assert users_of(of_day) == ["a", "c", "e", "f"]


def test_replayed_row_is_left_out_when_it_is_being_erased(spark: Any, being_erased: str) -> None:
    assert landing_files.topic_ids_of_files([being_erased]) == {being_erased: {TP.topic: "old"}}
    assert users_of(read_replayed(spark, load_pipeline(NAME), [being_erased])) == ["kept"]
