"""A record that Spark's Kafka source cannot read: it is named, and the runbook's way on keeps all others."""

from __future__ import annotations

from collections import Counter

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.conftest import Home, last_hours
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
TOPIC, PARTITION = "nest-logs", 0
STREAM = ("stream", "nest_cameras", "--until-caught-up")
NANOSECONDS = 1_760_000_000_000_000_000
"""As of a producer that takes nanoseconds for milliseconds."""


def produce(home: Home, seed: int) -> None:
    home.produce("nest_cameras", 100, START, "50m", seed=seed)


def accept_any_timestamp(home: Home) -> None:
    """As brokers before Kafka 4.0 do; the embedded one refuses what Spark cannot read."""
    limit = ConfigEntry("message.timestamp.after.max.ms", str(2**63 - 1), incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[limit])
    # Named, for a client that is collected ends what it was asked.
    client = AdminClient({"bootstrap.servers": home.kafka})
    [altered] = client.incremental_alter_configs([topic]).values()
    altered.result(30)


def test_stream_names_the_record_and_goes_on_without_it_when_its_timestamp_is_in_nanoseconds(home: Home) -> None:
    produce(home, 1)
    home.run(*STREAM)
    [committed] = [
        each["committed"]
        for each in home.json("lag", "nest_cameras", "--json")
        if (each["query"], each["partition"]) == ("archive", PARTITION)
    ]
    produce(home, 2)
    accept_any_timestamp(home)
    producer = home.producer()
    at: list[int] = []
    producer.produce(
        TOPIC, b"{}", partition=PARTITION, timestamp=NANOSECONDS, on_delivery=lambda _, sent: at.append(sent.offset())
    )
    assert producer.flush(30) == 0
    produce(home, 3)

    for _ in range(2):
        refused = home.run(*STREAM, expect=1).stderr
        assert f"{TOPIC}-{PARTITION} offset {at[0]} cannot be read by Spark, undecoded: " in refused
        assert "long overflow" in refused
        assert "“A record that cannot be read” in include/docs/runbook.md" in refused

    every = audit.read_topic(home.kafka, TOPIC)
    before = [every[place] for place in sorted(every) if place[1] == PARTITION and committed <= place[2] < at[0]]
    assert before
    for record in before:
        producer.produce(TOPIC, record.value, record.key, timestamp=record.timestamp)
    assert producer.flush(30) == 0
    client = AdminClient({"bootstrap.servers": home.kafka})
    [done] = client.delete_records([TopicPartition(TOPIC, PARTITION, at[0] + 1)]).values()
    done.result(30)
    home.run("accept-loss", "nest_cameras", "--reason", "a timestamp in nanoseconds")
    home.run(*STREAM)

    verdict = home.interval("nest_cameras", START, "--source", "archive")
    assert verdict["reconciliation"]["unexplained"] == 0
    table = audit.read_parquet(each["location"] for each in verdict["registered"] if each["table"] == "nest_cameras")
    here = {(topic, partition, offset) for topic, partition, offset, _ in audit.identities(table)}
    records = {**audit.read_topic(home.kafka, TOPIC), **every}
    # The other records with rows, each once: as they were, or as they were produced again.
    assert Counter(records[place].value for place in here) == Counter(
        record.value for record in every.values() if audit.cameras(record.value)
    )
