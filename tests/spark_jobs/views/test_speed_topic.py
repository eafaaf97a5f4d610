"""The last values of a compacted topic whose topic partitions were added to."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from include import kafka
from include.kafka.fenced_producer import FencedProducer
from include.pipelines import load_pipeline
from include.pipelines.spec import CompactedTopic
from spark_jobs.sinks.compacted_topic import CompactedTopicTarget
from spark_jobs.spark.frames import frame_of
from spark_jobs.views.speed_topic import speed_values
from tests.conftest import Home
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.slow]

TOPIC = "grown"
KEYS = [f"key-{number}" for number in range(30)]


def test_last_value_of_a_key_is_the_newest_one_when_topic_partitions_were_added(in_process: Home, spark: Any) -> None:
    view = replace(load_pipeline("nest_cameras").views[0], speed=CompactedTopic(TOPIC, "1h"))
    target = CompactedTopicTarget(view, FencedProducer("nest_cameras", "grown", lambda: None))

    def values(count: int, keys: list[str] = KEYS) -> Any:
        return frame_of(spark, [(key, count) for key in keys], "key STRING, count BIGINT")

    def last(version: int = 9) -> dict[str, int | None]:
        return {row["key"]: row["count"] for row in speed_values(spark, view, version).collect()}

    kafka.create_topic(TOPIC, 2, compacted=True)
    # Many messages before, so that offsets of the older topic partitions are the larger ones.
    for version in range(3):
        target.write(values(10 + version), version)
    client = kafka.admin()
    client.create_partitions([NewPartitions(TOPIC, 6)])[TOPIC].result(30)
    newer = CompactedTopicTarget(view, FencedProducer("nest_cameras", "grown", lambda: None))
    newer.write(values(20), 3)
    assert {partition for _, partition, _ in audit.read_topic(in_process.kafka, TOPIC)} > {0, 1}
    assert last() == dict.fromkeys(KEYS, 20)
    # What the ledger does not know yet does not count.
    assert last(2) == dict.fromkeys(KEYS, 12)
    newer.replace(values(30, KEYS[:10]), 4)
    assert last() == {**dict.fromkeys(KEYS, None), **dict.fromkeys(KEYS[:10], 30)}
    assert last(3) == dict.fromkeys(KEYS, 20)
    # A deletion reaches the topic partition that it is in: one that compaction removes must leave no older value.
    held: defaultdict[bytes, set[int]] = defaultdict(set)
    deleted: defaultdict[bytes, set[int]] = defaultdict(set)
    for (_, partition, _), record in audit.read_topic(in_process.kafka, TOPIC).items():
        (deleted if record.value is None else held)[record.key].add(partition)
    gone = [key.encode() for key in KEYS[10:]]
    assert any(len(held[key]) == 2 for key in gone)
    assert deleted == {key: held[key] for key in gone}
