"""The shell's tables in memory: they are brought to now, also while records keep arriving."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from include.errors import UsageError
from include.pipelines import load_pipeline
from spark_jobs.live.memory_tables import MemoryTables
from tests.conftest import Home, iso, last_hours
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

TOPIC = "isp-hits"
PIPELINE = load_pipeline("isp_hits")


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
    tables = MemoryTables(spark, PIPELINE)
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
