"""The independent reader: confluent-kafka and pyarrow, nothing of the project.

It reads every record of a topic as a read_committed consumer, decodes it with the standard library, and
holds it against what the registered locations and the quarantine contain.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

Coordinates = tuple[str, int, int]


@dataclass(frozen=True)
class Record:
    key: bytes | None
    value: bytes | None
    timestamp: int


def read_topic(bootstrap: str, topic: str) -> dict[Coordinates, Record]:
    """All visible records of a topic by their coordinates."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "audit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, timeout=15).topics[topic].partitions
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    found, ended = {}, set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        assert message is not None, "the broker stopped answering"
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            ended.add(message.partition())
            continue
        coordinates = (topic, message.partition(), message.offset())
        found[coordinates] = Record(message.key(), message.value(), message.timestamp()[1])
    consumer.close()
    return found


def last_values(bootstrap: str, topic: str) -> dict[str, dict[str, Any]]:
    """The last value of each key of a compacted topic."""
    records = read_topic(bootstrap, topic)
    return {r.key.decode(): json.loads(r.value) for _, r in sorted(records.items()) if r.key and r.value}


def read_parquet(locations: Iterable[str]) -> pa.Table:
    """The rows below the locations, file by file as they lie there."""
    tables = []
    for location in locations:
        folder = Path(unquote(urlsplit(location).path)) if "://" in location else Path(location)
        tables += [pq.ParquetFile(path).read() for path in sorted(folder.rglob("*.parquet"))]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def read_files(paths: Iterable[Path]) -> pa.Table:
    """The identity columns of the files."""
    columns = ["kafka_topic", "kafka_partition", "kafka_offset", "kafka_element"]
    return pa.concat_tables([pq.ParquetFile(path).read(columns=columns) for path in paths])


def cameras(value: bytes | None) -> list[dict[str, Any]] | None:
    """The cameras of a good message; None for one that must be in quarantine."""
    if value is None or len(value) > 1_048_576:
        return None
    try:
        message = json.loads(value.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return None
    if not isinstance(message, dict) or not isinstance(message.get("devices"), dict):
        return None
    found = message["devices"].get("cameras") or {}
    if not isinstance(found, dict):
        return None
    rows = list(found.values())
    for row in rows:
        event = row["last_event"]
        if not row.get("device_id") or not isinstance(event["has_person"], bool):
            return None
        if not "2020" < event["start_time"][:4] < "2090":
            return None
    return rows


def identities(table: pa.Table) -> Counter[tuple[str, int, int, int]]:
    columns = [table[name].to_pylist() for name in ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")]
    return Counter(zip(*columns, strict=True))


def coordinates_of(table: pa.Table) -> Counter[Coordinates]:
    columns = [table[name].to_pylist() for name in ("kafka_topic", "kafka_partition", "kafka_offset")]
    return Counter(zip(*columns, strict=True))


@dataclass
class Fates:
    """What the audit expects of records: rows to be archived, empties, and records for the quarantine."""

    rows: dict[tuple[str, int, int, int], dict[str, Any]]
    archived: set[Coordinates]
    empty: set[Coordinates]
    bad: set[Coordinates]


def expected(records: dict[Coordinates, Record]) -> Fates:
    fates = Fates({}, set(), set(), set())
    for coordinates, record in records.items():
        rows = cameras(record.value)
        if rows is None:
            fates.bad.add(coordinates)
        elif not rows:
            fates.empty.add(coordinates)
        else:
            fates.archived.add(coordinates)
            fates.rows.update({(*coordinates, element): row for element, row in enumerate(rows)})
    return fates


def in_ranges(records: dict[Coordinates, Record], ranges: Iterable[dict[str, Any]]) -> dict[Coordinates, Record]:
    bounds = {(r["topic"], r["partition"]): range(r["from_offset"], r["until_offset"]) for r in ranges}
    return {c: record for c, record in records.items() if c[2] in bounds.get(c[:2], range(0))}
