"""Reads of an archive whose landing was removed, before its topic was moved to another cluster and adopted."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.erasure.keys import Keys
from include.ledger.archive import removal
from include.ledger.database import session
from include.ledger.erasures import intent, unfinished
from include.ledger.erasures.intent import Found, Request
from include.ledger.intervals import attempts, pins
from include.ledger.intervals.evidence import SpeedPosition
from include.ledger.models import (
    IntervalRange,
    LandingFileRow,
    MicroBatchRange,
    Revision,
    Topic,
    TopicIncarnation,
)
from include.ledger.quarantine import RecordKey
from include.pipelines import load_pipeline
from include.pipelines.spec import EVENT_TIMES
from spark_jobs.archive.reader import read_archived_by_event_time
from spark_jobs.archive.replayed import Replayed
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.reconciliation.view_parts import Meeting
from tests.conftest import Home
from tests.support.committed import DAY, TP, commit, register
from tests.support.leases import held_lease

pytestmark = [pytest.mark.spark, pytest.mark.services]

PIPELINE = load_pipeline("wiki_changes")
NAME = PIPELINE.name


def write(uri: str, begin: int, users: str) -> int:
    """Write a record of each user, at the offsets from `begin`, and return the file's bytes."""
    columns = {
        "kafka_topic": [TP.topic] * len(users),
        "kafka_partition": pa.array([0] * len(users), pa.int32()),
        "kafka_offset": pa.array(range(begin, begin + len(users)), pa.int64()),
        "kafka_element": pa.array([0] * len(users), pa.int32()),
        "user": list(users),
        "changed_at": pa.array([DAY] * len(users), pa.timestamp("us", "UTC")),
    }
    lake.make_parents(uri)
    pq.write_table(pa.table(columns), lake.filesystem(uri)[1])
    return lake.size(uri)


@pytest.fixture(scope="module")
def moved(postgres: Home) -> int:
    """The number of the old topic's interval: its rows, at offsets 0 to 4, lie in its revision alone."""
    old, new = (commit(NAME, number, 4 * number, 4 * number + 4, archived=4) for number in range(2))
    interval, later = (register(NAME, number, 4 * number, 4 * number + 4) for number in range(2))
    folder = lake.uri("tables", NAME, "r-old")
    files = {"part-0.parquet": {"rows": 4, "bytes": write(f"{folder}/part-0.parquet", 0, "abcd")}}
    pinned = pins.find_interval(NAME, DAY)
    assert pinned is not None
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1", source="archive")
    with session() as ledger:
        ledger.add(
            Revision(
                id="r-old", attempt_id=attempt, code_version="1", table_name=PIPELINE.table, location=folder,
                table_partition=f"date={DAY.date()}/interval=0", interval_id=interval, state="registered", rows=4,
                content_hash="hash", files=files,
            )
        )  # fmt: skip
    assert removal.mark_removed(NAME, [old]) == {old}
    with session() as ledger:
        ledger.add(Topic(pipeline=NAME, topic=TP.topic, topic_id="other", topic_partitions=1))
        ledger.add(
            TopicIncarnation(
                pipeline=NAME, topic=TP.topic, topic_id="id", topic_partitions=1, successor_id="other",
                closed_by="me@here", reason="moved",
            )
        )  # fmt: skip
        ledger.get_one(MicroBatchRange, (new, TP.topic, 0)).topic_id = "other"
        ledger.get_one(IntervalRange, (later, TP.topic, 0)).topic_id = "other"
        path = ledger.query(LandingFileRow).where(LandingFileRow.micro_batch_id == new).one().path
    write(lake.uri(path), 4, "efgh")
    return attempt


@pytest.fixture
def erasing(moved: int) -> Iterator[None]:
    """The old topic's record 1, and the new one's record 5, are being erased."""
    request = Request(NAME, ["user"], "asked", "me@here", "00" * 16, [], False)
    with held_lease(NAME) as lease:
        landed, registered = {RecordKey(TP.topic, "other", 0, 5)}, {RecordKey(TP.topic, "id", 0, 1)}
        erasure = intent.begin(lease, request, Found(landed, registered, set(), 2), Keys(["b", "f"]))
    yield
    unfinished.finish(erasure, {})


def test_rows_whose_landing_was_removed_are_the_old_topic_s_when_it_was_adopted(spark: Any, moved: int) -> None:
    rows = (
        read_archived_by_event_time(spark, PIPELINE, *EVENT_TIMES).select("user", "tidemark_closed_topic_id").collect()
    )
    found = sorted((row["user"], row["tidemark_closed_topic_id"]) for row in rows)
    assert found == [*((user, "id") for user in "abcd"), *((user, "") for user in "efgh")]


def test_interval_of_the_old_topic_holds_its_rows_when_it_is_run_again(spark: Any, moved: int) -> None:
    (view,) = (view for view in PIPELINE.views if view.name == "user_edits")
    run = IntervalRun(spark, PIPELINE, attempts.load_attempt(moved))
    meeting = Meeting(run, view, SpeedPosition({TP: 6}, "query", 1), Replayed(cast("Any", None), 0, ""))
    rows = (
        meeting._reached_rows([(DAY, DAY + timedelta(minutes=10))])
        .select("user", "tidemark_reached", "tidemark_inside")
        .collect()
    )
    assert {row["user"] for row in rows if row["tidemark_inside"]} == set("abcd")
    assert {row["user"] for row in rows if row["tidemark_reached"]} == set("abcdef")


def test_row_whose_landing_was_removed_is_left_out_when_it_is_being_erased(
    spark: Any, moved: int, erasing: None
) -> None:
    rows = read_archived_by_event_time(spark, PIPELINE, *EVENT_TIMES).select("user").collect()
    assert sorted(row["user"] for row in rows) == list("acdegh")
