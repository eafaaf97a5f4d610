"""Outages after an erasure: a thing that others share is left out where their rows may give what it deleted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select

from include.erasure.keys import Keys, hashes_of
from include.ledger.database import session
from include.ledger.erasures import intent
from include.ledger.erasures.intent import Found, Request
from include.ledger.intervals import attempts
from include.ledger.models import Erasure, OutageRow
from include.ledger.quarantine import RecordKey
from include.ledger.streams import outages
from include.ledger.streams.outages import Watched
from include.offsets import OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.versions import decoder_version
from tests.conftest import Home
from tests.support.attempts import START, TOPIC, begin_attempt, hour
from tests.support.committed import add_batch
from tests.support.leases import held_lease

pytestmark = [pytest.mark.spark, pytest.mark.services]

PIPELINE = load_pipeline("nest_cameras")
NAME = PIPELINE.name
(REPORT,) = PIPELINE.watched_reports
GONE, LEFT = "house-7", "house-8"


def key(camera: str) -> str:
    return json.dumps({"device_id": camera})


def land(number: int) -> int:
    """Commit the micro-batch of an hour."""
    with session() as ledger:
        offsets = OffsetRange(TopicPartition(TOPIC, 0), 100 * number, 100 * number + 100)
        watched = REPORT.watched_as(PIPELINE.archive.formerly)[:1]
        version = decoder_version(NAME)
        return add_batch(ledger, NAME, number, offsets, watched=watched, decoder_version=version)


def unexplained(spark: Any, number: int, *rows: tuple[str, int, bool]) -> list[str]:
    """Return where rows of an hour differ from what the stream noted: cameras, offsets, and whether they are online."""
    from spark_jobs.reconciliation.interval_run import IntervalRun
    from spark_jobs.reconciliation.outages import reconcile_outages

    attempt = begin_attempt(NAME, hour(number), topic_partitions=1)
    columns = "device_id STRING, is_online BOOLEAN, kafka_topic STRING, kafka_partition INT, kafka_offset LONG"
    frame = spark.createDataFrame(
        [(camera, is_up, TOPIC, 0, offset, 0) for camera, offset, is_up in rows], f"{columns}, kafka_element INT"
    )
    run = IntervalRun(spark, PIPELINE, attempts.load_attempt(attempt))
    found = reconcile_outages(run, REPORT, frame)
    assert found.counts.unexplained == len(found.differences)
    return [each.evidence for each in found.differences]


@pytest.fixture(scope="module")
def erased(postgres: Home, spark: Any) -> tuple[int, int]:
    """The micro-batches of two hours. In the first, the erased house found two cameras down, and one of them up again.

    The other house's records find these cameras down, too, which the stream did not note: they were down already.
    """
    first, second = land(0), land(1)
    place = {"topic": TOPIC, "topic_id": "id", "topic_partition": 0, "element": 0, "began_at": START}
    up = {"end_topic": TOPIC, "end_topic_id": "id", "end_partition": 0, "end_element": 0, "ended_at": START}
    began = {"pipeline": NAME, "report": REPORT.title, "micro_batch": first, "row": {"structure_id": GONE}}
    with session() as ledger:
        ledger.add(OutageRow(key=key("cam-1"), record_offset=2, **began, **place))
        ended = {"end_micro_batch": first, "end_offset": 8, "end_row": {"structure_id": GONE}}
        ledger.add(OutageRow(key=key("cam-2"), record_offset=3, **began, **place, **up, **ended))
    log = [("cam-1", 2, False), ("cam-2", 3, False), ("cam-1", 5, False), ("cam-2", 6, False), ("cam-2", 8, True)]
    assert unexplained(spark, 0, *log) == []
    asked = Request(NAME, ["structure_id"], "asked", "me@here", "00" * 16, hashes_of([GONE], "00" * 16), False)
    records = {RecordKey(TOPIC, "id", 0, offset) for offset in (2, 3, 8)}
    with held_lease(NAME) as lease:
        intent.begin(lease, asked, Found(records, set(), set(), 3), Keys([GONE]))
    return first, second


def test_outage_is_deleted_and_its_thing_is_kept_as_a_hash_when_its_house_is_erased(erased: tuple[int, int]) -> None:
    first, second = erased
    with session() as ledger:
        assert ledger.scalars(select(OutageRow).where(OutageRow.pipeline == NAME)).all() == []
        kept = ledger.scalars(select(Erasure.outages).where(Erasure.pipeline == NAME)).one()
    assert [(title, *batches) for title, _, *batches in kept] == [
        (REPORT.title, first, second),
        (REPORT.title, first, first),
    ]
    assert "cam-" not in json.dumps(kept)
    # The key's column was called otherwise then.
    renamed = json.dumps({"camera_id": "cam-1"})
    assert outages.deleted_of(NAME, REPORT.title, [renamed], Watched((), first, first)) == {renamed}


def test_rows_of_others_are_explained_when_they_give_a_deleted_outage(spark: Any, erased: tuple[int, int]) -> None:
    assert unexplained(spark, 0, ("cam-1", 5, False), ("cam-2", 6, False)) == []
    # It was down when the second hour began, as far as the stream knew.
    assert unexplained(spark, 1, ("cam-1", 105, False)) == []


def test_other_outages_stay_unexplained_when_one_was_deleted(spark: Any, erased: tuple[int, int]) -> None:
    [other] = unexplained(spark, 0, ("cam-1", 5, False), ("cam-3", 7, False))
    assert key("cam-3") in other
    [after_its_end] = unexplained(spark, 1, ("cam-1", 105, False), ("cam-2", 106, False))
    assert key("cam-2") in after_its_end
    land(2)
    [after_the_erasure] = unexplained(spark, 2, ("cam-1", 205, False))
    assert key("cam-1") in after_the_erasure
