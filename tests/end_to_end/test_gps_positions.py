"""gps_positions from a topic of three schema versions to the table, with a registry that comes and goes."""

from __future__ import annotations

import io
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, TopicPartition

from include.pipelines.gps_positions import VERSIONS
from include.producing.messages.gps_positions import encode
from include.schemas.registry import SchemaRegistry
from tests.conftest import Home, end_of, last_hours, wait_for
from tests.support import audit
from tests.support.delta_log import read_delta, validated
from tests.support.positions import decoded_by_another_library, is_plausible
from tests.support.registry_gate import Gate, open_gate

pytestmark = [pytest.mark.services, pytest.mark.spark]

HOUR = last_hours(3)
EVENTS = 1500


@pytest.fixture(scope="module")
def gate(home: Home) -> Iterator[Gate]:
    home.run("up", "registry")
    with open_gate(home.address("registry"), "reader", "s3cret-c4nary") as opened:
        yield opened


@pytest.fixture(scope="module")
def registry(gate: Gate) -> SchemaRegistry:
    return SchemaRegistry(gate.target)


@dataclass(frozen=True)
class Streamed:
    """A stream from its start to its end: what it logged, and what was in quarantine while and after it ran."""

    log: str
    versions: list[int]
    """Schema versions when it had caught up for the first time."""
    caught_up: Counter[str]
    waiting: Counter[str]
    ended: Counter[str]


@pytest.fixture(scope="module")
def streamed(home: Home, gate: Gate) -> Streamed:
    """Two hours of three schema versions, one in ten broken, then a version that is registered while the stream runs.

    The registry is away when the first record with that version comes, and comes back.
    """
    home.produce("gps_positions", EVENTS, HOUR, "2h", bad=0.1)
    registry = SchemaRegistry(gate.target)
    log = home.path / "stream.log"
    newer = json.loads(VERSIONS[-1])
    newer["fields"].append({"name": "heading", "type": "int", "default": 0})
    with log.open("w") as output:
        stream = subprocess.Popen(
            home.command("stream", "gps_positions"),
            env=home.environment(TIDEMARK_REGISTRY_URL=gate.url),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for("the records", lambda: committed(home) == EVENTS)
        versions, caught_up = registry.versions("gps-value"), quarantined(home)
        gate.answer = 503
        (newest,) = registry.register("gps-value", [json.dumps(newer)])
        moment = int((HOUR + timedelta(hours=2)).timestamp() * 1000)
        record = {"timestamp": moment, "deviceId": 9, "latitude": 1.0, "longitude": 2.0, "altitude": 3.0, "speed": 4.0}
        body = io.BytesIO()
        fastavro.schemaless_writer(body, newer, {**record, "accuracy": 5.0, "heading": 90})
        producer = home.producer()
        value = b"\0" + newest.to_bytes(4, "big") + body.getvalue()
        producer.produce("gps", value, b"9", partition=0, timestamp=moment)
        assert producer.flush(20) == 0
        wait_for("the stream to wait for the registry", lambda: "waits: the schema registry" in log.read_text())
        waiting = quarantined(home)
        gate.answer = None
        wait_for("the record", lambda: committed(home) == EVENTS + 1)
        stream.terminate()
        assert stream.wait(60) == 0
    finally:
        gate.answer = None
        end_of(stream)
    return Streamed(log.read_text(), versions, caught_up, waiting, quarantined(home))


@pytest.fixture(scope="module")
def published(home: Home, streamed: Streamed) -> dict[str, Any]:
    """The verdict of the first of the two hours."""
    return home.interval("gps_positions", HOUR)


def committed(home: Home) -> int:
    """How many records are archived or in quarantine."""
    return int(home.ledger("SELECT coalesce(sum(next_offset), 0) FROM positions WHERE query = 'archive'")[0][0])


def topic_of(home: Home) -> list[Any]:
    """All records of the topic, read by a client that knows nothing of Tidemark."""
    consumer = Consumer({"bootstrap.servers": home.kafka, "group.id": "oracle", "enable.partition.eof": True})
    metadata = consumer.list_topics("gps", timeout=10).topics["gps"]
    consumer.assign([TopicPartition("gps", partition, 0) for partition in metadata.partitions])
    found, ended = [], 0
    while ended < len(metadata.partitions):
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended += 1
        else:
            found.append(message)
    consumer.close()
    return found


def registered_rows(verdict: dict[str, Any], table: str) -> list[dict[str, Any]]:
    found = []
    for each in verdict["registered"]:
        if each["table"] == table:
            path = Path(each["location"].removeprefix("file://"))
            found += ds.dataset(str(path), format="parquet").to_table().to_pylist()
    return found


def quarantined(home: Home) -> Counter[str]:
    folder = home.lake / "quarantine" / "gps_positions"
    files = [str(path) for path in folder.rglob("*.parquet")]
    rows = ds.dataset(files, format="parquet").to_table(columns=["reason"]).to_pylist() if files else []
    return Counter(row["reason"] for row in rows)


def test_three_versions_and_every_broken_form_have_their_fates_when_stream_and_interval_ran(
    home: Home, registry: SchemaRegistry, streamed: Streamed, published: dict[str, Any]
) -> None:
    verdict = published
    assert streamed.versions == [1, 2, 3]

    messages, decode = topic_of(home), decoded_by_another_library(registry)
    until = int((HOUR + timedelta(hours=1)).timestamp() * 1000)
    expected = {}
    for message in messages:
        record = decode(message.value())
        if record is not None and is_plausible(record, message.timestamp()[1]) and message.timestamp()[1] < until:
            expected[message.partition(), message.offset()] = record
    rows = {(row["kafka_partition"], row["kafka_offset"]): row for row in registered_rows(verdict, "gps_positions")}
    assert rows.keys() == expected.keys()
    for at, record in expected.items():
        moment = rows[at].pop("timestamp")
        assert round(moment.timestamp() * 1000) == record.pop("timestamp")
        assert {name: rows[at][name] for name in record} == record
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["records"]["archived"] == len(expected)
    assert verdict["records"]["quarantined"] == verdict["records"]["in_ranges"] - len(expected)

    decoded = [(decode(message.value()), message.timestamp()[1]) for message in messages]
    bad = sum(record is None or not is_plausible(record, arrived) for record, arrived in decoded)
    table = home.lake / "delta" / "gps_positions"
    assert audit.identities(read_delta(table)).total() == len(messages) - bad
    pinned = validated(read_delta(table, verdict["delta"]["version"]))
    assert pinned.num_rows == len(expected)
    assert set(zip(pinned["kafka_partition"].to_pylist(), pinned["kafka_offset"].to_pylist(), strict=True)) == set(rows)
    assert sum(quarantined(home).values()) == bad
    assert quarantined(home).keys() >= {
        *("null_value", "too_short", "wrong_magic_byte", "unknown_schema", "truncated", "malformed_avro"),
        *("trailing_bytes", "out_of_range", "event_time_out_of_bounds"),
    }
    counted = Counter(record["deviceId"] for record in expected.values())
    views = registered_rows(verdict, "gps_positions_hourly_counts")
    assert {row["deviceId"]: row["positions"] for row in views} == counted


@pytest.mark.slow
def test_same_ranges_give_the_same_bytes_while_the_registry_is_away(home: Home, published: dict[str, Any]) -> None:
    home.run("down", "registry")
    try:
        again = home.interval("gps_positions", HOUR)
    finally:
        home.run("up", "registry")
    assert [each["content_hash"] for each in again["registered"]] == [
        each["content_hash"] for each in published["registered"]
    ]


def test_stream_waits_and_quarantines_nothing_when_the_registry_is_away(streamed: Streamed) -> None:
    assert streamed.waiting == streamed.ended == streamed.caught_up
    assert "starts again with newly resolved schemas" in streamed.log
    assert "1 records, 0 quarantined" in streamed.log
    assert [line for line in streamed.log.splitlines() if not line.startswith("tidemark: ")] == []
    assert "s3cret-c4nary" not in streamed.log
    # Spark logs this for a query that is too large, and interprets it.
    assert "Failed to compile" not in streamed.log


def test_replay_decodes_a_record_when_its_schema_was_registered_since(home: Home, published: dict[str, Any]) -> None:
    """A record that was quarantined keeps its fate in its interval, whatever the registry knows by then."""
    counts = home.json("quarantine", "replay", "gps_positions", "--reason", "unknown_schema")
    assert counts["replayed"] == 0
    assert counts["still_failing"] == quarantined(home)["unknown_schema"]


def test_value_begins_as_the_registry_says_when_it_is_in_wire_format(registry: SchemaRegistry) -> None:
    value = encode(
        258, 0, {"timestamp": 1, "deviceId": 2, "latitude": 0.0, "longitude": 0.0, "altitude": 0.0, "speed": 0.0}
    )
    assert value[:7] == b"\0\0\0\x01\x02\x02\x04"
