"""The shell's tables in memory: they are brought to now, also while records keep arriving."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from include import kafka
from include.errors import UsageError
from include.ledger.database import session
from include.ledger.models import Position, Topic
from include.ledger.quarantine import RecordKey
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics
from spark_jobs.live.memory_tables import MemoryTables
from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.committed import TP, commit
from tests.support.erased_records import being_erased

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

TOPIC = "isp-hits"
PIPELINE = load_pipeline("isp_hits")
TOTALS = tuple(view for view in PIPELINE.views if view.name == "zip_totals")
HOURS = [last_hours(count) for count in (5, 4, 3, 2, 1)]


@contextmanager
def producing_on_and_on(home: Home) -> Iterator[None]:
    """Write the topic's first record again, every few milliseconds."""
    value = next(record.value for record in audit.read_topic(home.kafka, TOPIC).values())
    producer, ended = home.producer(), threading.Event()

    def produce() -> None:
        while not ended.wait(0.005):
            producer.produce(TOPIC, value, b"k")
            producer.poll(0)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        producer.flush(30)


def test_tables_hold_what_was_there_when_records_keep_arriving(in_process: Home, spark: SparkSession) -> None:
    tables = MemoryTables(spark, replace(PIPELINE, views=TOTALS, reports=()))
    with pytest.raises(UsageError, match=f"isp_hits: no topic {TOPIC} exists"):
        tables.refresh()
    in_process.run("produce", "isp_hits", "--events", "300", "--start", iso(last_hours(2)), "--span", "30m")
    tables.start()
    try:
        with producing_on_and_on(in_process):
            refreshing = threading.Thread(target=tables.refresh, daemon=True)
            refreshing.start()
            refreshing.join(240)
            is_answered = not refreshing.is_alive()
        refreshing.join(240)
        assert is_answered
        tables.refresh()
        # Each hit counts once; all good ones have a zip code.
        (total,) = spark.sql("SELECT sum(hits) FROM zip_totals").first() or (0,)
        assert total == len(audit.read_topic(in_process.kafka, TOPIC))
    finally:
        for query in spark.streams.active:
            query.stop()


@pytest.mark.parametrize(
    ("begin", "archived", "counted"),
    [
        ({"starting_offsets": {TP.topic: {0: 2}}}, False, 3 + 5),
        ({"starting_time": iso(HOURS[-1])}, False, 1 + 1),
        # Where the archive begins is where the source began when the stream first started.
        ({"starting_offsets": "latest"}, True, 4 + 0),
    ],
)
def test_tables_begin_where_the_pipeline_does_when_it_does_not_read_the_topic_s_beginning(
    in_process: Home, spark: SparkSession, begin: dict[str, Any], archived: bool, counted: int
) -> None:
    source = KafkaTopics(subscribe=(TP.topic,), **begin)
    pipeline = replace(PIPELINE, name="late_hits", declared_as=PIPELINE.name, source=source, views=TOTALS, reports=())
    _write_five_hits_to_each_of_two_topic_partitions(in_process)
    if archived:
        batch = commit(pipeline.name, 0, 1, 4)
        with session() as ledger:
            ledger.add(Topic(pipeline=pipeline.name, topic=TP.topic, topic_id="id", topic_partitions=2))
            position = {"topic": TP.topic, "topic_partition": 0, "next_offset": 4, "micro_batch_id": batch}
            ledger.add(Position(pipeline=pipeline.name, query="archive", **position))
    tables = MemoryTables(spark, pipeline)
    tables.start()
    try:
        tables.refresh()
        assert spark.sql("SELECT coalesce(sum(hits), 0) FROM zip_totals").collect() == [(counted,)]
    finally:
        for query in spark.streams.active:
            query.stop()


def test_tables_leave_out_a_record_when_it_was_erased(in_process: Home, spark: SparkSession) -> None:
    source = KafkaTopics(subscribe=(TP.topic,))
    pipeline = replace(PIPELINE, name="some_hits", declared_as=PIPELINE.name, source=source, views=TOTALS, reports=())
    _write_five_hits_to_each_of_two_topic_partitions(in_process)
    topic_id = kafka.describe_topics([TP.topic])[TP.topic].topic_id
    tables = MemoryTables(spark, pipeline)
    try:
        with being_erased(pipeline.name, RecordKey(TP.topic, topic_id, 1, 3)):
            tables.start()
            tables.refresh()
        assert spark.sql("SELECT sum(hits) FROM zip_totals").collect() == [(9,)]
    finally:
        for query in spark.streams.active:
            query.stop()


def _write_five_hits_to_each_of_two_topic_partitions(home: Home) -> None:
    """Write one of each hour, once."""
    if not kafka.create_topic(TP.topic, 2):
        return
    producer = home.producer()
    for topic_partition in range(2):
        for at in HOURS:
            hit = {"zipcode": "94103", "hittime": iso(at), "isp": "one", "user": "u"}
            millis = int(at.timestamp() * 1000)
            producer.produce(TP.topic, json.dumps(hit), partition=topic_partition, timestamp=millis)
    assert producer.flush(30) == 0
