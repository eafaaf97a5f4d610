"""The last records of a topic as `tail` shows them: all of them, with the fates that the archive would give."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from include import kafka
from include.errors import UsageError
from include.ledger.quarantine import RecordKey
from include.offsets import Fate
from include.pipelines import load_pipeline
from spark_jobs.live.tail import TailedRecord, TopicTail, print_records
from spark_jobs.transforms import nest_cameras
from tests.conftest import Home, end_of, last_hours
from tests.support import audit
from tests.support.erased_records import being_erased

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

TOPIC = "nest-logs"
PIPELINE = load_pipeline("nest_cameras")


@pytest.fixture(scope="module")
def produced(in_process: Home) -> Home:
    in_process.produce("nest_cameras", 60, last_hours(2), "30m", bad=0.3)
    return in_process


def coordinates(records: list[TailedRecord]) -> set[audit.Coordinates]:
    return {(each.topic_partition.topic, each.topic_partition.partition, each.offset) for each in records}


def test_record_is_shown_with_its_rows_or_its_reason_when_it_comes(produced: Home, spark: SparkSession) -> None:
    records = TopicTail(spark, PIPELINE, 1000).next_records()
    topic = audit.read_topic(produced.kafka, TOPIC)
    assert coordinates(records) == set(topic)
    expected = audit.expected(topic)
    told = Counter(each.fate for each in records)
    assert (told[Fate.QUARANTINED], told[Fate.EMPTY]) == (len(expected.bad), len(expected.empty))
    rows = Counter((each.offset, each.row["device_id"]) for each in records if each.row)
    assert rows == Counter((at[2], row["device_id"]) for at, row in expected.rows.items())
    for each in records:
        assert (each.reason is not None) == (each.fate is Fate.QUARANTINED)
        assert each.in_words().isprintable()


def test_record_is_shown_once_and_without_its_rows_when_it_was_erased(produced: Home, spark: SparkSession) -> None:
    topic = audit.read_topic(produced.kafka, TOPIC)
    rows = Counter(at[:3] for at in audit.expected(topic).rows)
    (erased_at, several), *_ = rows.most_common(1)
    assert several > 1
    topic_id = kafka.describe_topics([TOPIC])[TOPIC].topic_id
    with being_erased(PIPELINE.name, RecordKey(TOPIC, topic_id, *erased_at[1:])):
        records = TopicTail(spark, PIPELINE, 1000).next_records()
    assert coordinates(records) == set(topic)
    (shown,) = (each for each in records if coordinates([each]) == {erased_at})
    assert (shown.fate, shown.row, shown.value) == ("erased", None, None)


def test_records_are_shown_when_their_topic_is_gone_since_its_offsets_were_looked_up(
    produced: Home, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = kafka.describe_topics([TOPIC])
    looked_up = iter([topics])
    monkeypatch.setattr(kafka, "describe_topics", lambda _: next(looked_up, {}))
    with being_erased(PIPELINE.name, RecordKey(TOPIC, topics[TOPIC].topic_id, 0, 0)):
        assert TopicTail(spark, PIPELINE, 1).next_records()


def test_only_later_records_are_shown_when_earlier_ones_were(produced: Home, spark: SparkSession) -> None:
    tail = TopicTail(spark, PIPELINE, 2)
    ends = tail.ends()
    first = coordinates(tail.next_records())
    assert first == {(TOPIC, tp.partition, offset) for tp, end in ends.items() for offset in range(end)[-2:]}
    assert tail.next_records() == []
    producer = produced.producer()
    producer.produce(TOPIC, b"\x00\xff no JSON \x1b[31m", b"k", partition=1)
    assert producer.flush(30) == 0
    (record,) = tail.next_records()
    assert (record.topic_partition.partition, record.fate) == (1, Fate.QUARANTINED)
    assert record.in_words().isprintable()
    assert json.loads(record.as_json())["offset"] == record.offset


def test_records_are_told_when_it_began_at_the_very_end(produced: Home, spark: SparkSession) -> None:
    tail = TopicTail(spark, PIPELINE, 0)
    assert tail.next_records() == []
    producer = produced.producer()
    for number in range(3):
        producer.produce(TOPIC, f"later {number}".encode(), b"k", partition=0)
    assert producer.flush(30) == 0
    assert [each.value for each in tail.next_records()] == ["later 0", "later 1", "later 2"]


@pytest.mark.slow
def test_record_that_makes_the_decoding_throw_is_named_and_the_others_are_told(
    produced: Home, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: Callable[..., Column] = getattr(nest_cameras, PIPELINE.archive.rows)
    producer = produced.producer()
    value = next(r.value for r in audit.read_topic(produced.kafka, TOPIC).values() if audit.cameras(r.value))
    document: dict[str, Any] = json.loads(value or b"")
    next(iter(document["devices"]["cameras"].values()))["device_id"] = "cam-throws"
    for number in (0, 1):
        document["number"] = number
        producer.produce(TOPIC, json.dumps(document).encode() if number else value, b"k", partition=2)
    assert producer.flush(30) == 0

    def throwing(message: Column) -> Column:
        def each(camera: Column) -> Column:
            is_bad = camera["device_id"] == "cam-throws"
            return camera.withField("device_id", F.when(is_bad, F.raise_error(F.lit("bad"))).otherwise("fine"))

        return F.transform(rows(message), each)

    monkeypatch.setattr(nest_cameras, PIPELINE.archive.rows, throwing)
    records = [each for each in TopicTail(spark, PIPELINE, 2).next_records() if each.topic_partition.partition == 2]
    *good, bad = records
    assert {each.fate for each in good} == {Fate.ARCHIVED}
    assert {each.row["device_id"] for each in good if each.row} == {"fine"}
    assert (bad.fate, bad.reason) == (Fate.QUARANTINED, "poison")


def test_tail_ends_when_its_reader_has_ended(
    produced: Home, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as nobody:
        monkeypatch.setattr("sys.stdout", nobody)
        assert print_records(TopicTail(spark, PIPELINE, 1000), once=False, as_json=True) == 0


def test_missing_topic_is_named_with_the_remedy_when_tail_starts(produced: Home, spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="no topic gps exists"):
        TopicTail(spark, load_pipeline("gps_positions"), 1).ends()


def test_command_follows_until_ctrl_c_and_writes_nothing_when_it_runs(produced: Home) -> None:
    command = produced.command("tail", "nest_cameras", "--json", "--last", "1")
    process = subprocess.Popen(
        command, env=produced.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout
        assert json.loads(process.stdout.readline())["topic"] == TOPIC
        producer = produced.producer()
        producer.produce(TOPIC, b"the last one", b"k", partition=3)
        assert producer.flush(30) == 0
        told: dict[str, Any] = {}
        while told.get("value") != "the last one":
            told = json.loads(process.stdout.readline())
        assert told["fate"] == "quarantined"
        # Like a terminal: to all foreground processes.
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "Traceback" not in said
    finally:
        end_of(process)
    assert not (produced.lake / "landing").exists()
