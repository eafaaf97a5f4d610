"""The independent reader: confluent-kafka and pyarrow, nothing of the project.

It reads every record of a topic as a read_committed consumer, decodes it with the standard library, and
holds it against what the registered locations and the quarantine contain.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from pyarrow import fs

Coordinates = tuple[str, int, int]


@dataclass(frozen=True)
class Record:
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes], ...] = ()


def topics(bootstrap: str) -> set[str]:
    """Names of the topics that hold at least one record."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "audit"})
    found = {
        name
        for name, topic in consumer.list_topics(timeout=15).topics.items()
        if any(consumer.get_watermark_offsets(TopicPartition(name, p), timeout=15)[1] for p in topic.partitions)
    }
    consumer.close()
    return found


def read_topic(bootstrap: str, topic: str, *, isolation: str = "read_committed") -> dict[Coordinates, Record]:
    """All visible records of a topic by their coordinates; `read_uncommitted`: aborted ones, too."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "audit",
            "enable.auto.commit": False,
            "isolation.level": isolation,
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
        found[coordinates] = Record(
            message.key(), message.value(), message.timestamp()[1], tuple(message.headers() or ())
        )
    consumer.close()
    return found


def last_values(bootstrap: str, topic: str) -> dict[str, dict[str, Any]]:
    """The last value of each key of a compacted topic that was not deleted."""
    last = {r.key.decode(): r.value for _, r in sorted(read_topic(bootstrap, topic).items()) if r.key}
    return {key: json.loads(value) for key, value in last.items() if value}


def read_parquet(locations: Iterable[str], store: fs.FileSystem | None = None) -> pa.Table:
    """Return the rows of all files below the locations, on disk or in a store."""
    tables = []
    for location in locations:
        if store is not None:
            below = store.get_file_info(fs.FileSelector(location.partition("://")[2], recursive=True))
            paths = sorted(each.path for each in below if each.path.endswith(".parquet"))
            tables += [pq.ParquetFile(path, filesystem=store).read() for path in paths]
            continue
        folder = Path(unquote(urlsplit(location).path)) if location.startswith("file:") else Path(location)
        tables += [pq.ParquetFile(path).read() for path in sorted(folder.rglob("*.parquet"))]
    return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})


def read_files(paths: Iterable[PurePath], store: fs.FileSystem | None = None) -> pa.Table:
    """The identity columns of the files."""
    columns = ["kafka_topic", "kafka_partition", "kafka_offset", "kafka_element"]
    return pa.concat_tables([pq.ParquetFile(str(path), filesystem=store).read(columns=columns) for path in paths])


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
        if not 1 <= len((row.get("device_id") or "").encode()) <= 200 or not isinstance(event["has_person"], bool):
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


def counts_by_partition(fates: Fates) -> Counter[tuple[int, str]]:
    """Count the records of a topic by topic partition and fate."""
    named = {"archived": fates.archived, "empty": fates.empty, "quarantined": fates.bad}
    return Counter((partition, fate) for fate, found in named.items() for _, partition, _ in found)


def in_ranges(records: dict[Coordinates, Record], ranges: Iterable[dict[str, Any]]) -> dict[Coordinates, Record]:
    bounds = {(r["topic"], r["partition"]): range(r["from_offset"], r["until_offset"]) for r in ranges}
    return {c: record for c, record in records.items() if c[2] in bounds.get(c[:2], range(0))}


def check_archive(
    bootstrap: str,
    database: str,
    lake: PurePath,
    topic: str = "nest-logs",
    fates_of: Callable[[dict[Coordinates, Record]], Fates] = expected,
    store: fs.FileSystem | None = None,
    queries: str = "%",
) -> int:
    """Compare everything that the archive query committed with the topic, record by record; return their number.

    Every visible record is landed row by row, empty, or whole in quarantine, once; the commits of every query
    (whose name is like `queries`: a view's begin again with a new generation) tile per topic partition and reach the
    end.
    """
    records = read_topic(bootstrap, topic)
    fates = fates_of(records)
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT fate, path FROM landing_files f WHERE EXISTS (SELECT 1 FROM micro_batch_ranges r "
            "WHERE r.micro_batch_id = f.micro_batch_id AND r.topic = %s) ORDER BY id",
            (topic,),
        )
        files: dict[str, list[PurePath]] = {"archived": [], "empty": [], "quarantined": []}
        for fate, path in cursor.fetchall():
            files[fate].append(lake / path)
        cursor.execute(
            "SELECT b.query, r.topic_partition, r.from_offset, r.until_offset, r.archived, r.empty, r.quarantined "
            "FROM micro_batch_ranges r JOIN micro_batches b ON b.id = r.micro_batch_id "
            "WHERE r.topic = %s AND b.query LIKE %s ORDER BY b.query, r.topic_partition, b.id",
            (topic, queries),
        )
        commits = cursor.fetchall()
    assert identities(read_files(files["archived"], store)) == Counter(fates.rows.keys())
    for fate, wanted in (("empty", fates.empty), ("quarantined", fates.bad)):
        landed = read_coordinates(files[fate], store)
        assert landed == Counter(wanted), f"{fate}: {len(landed)} landed, {len(wanted)} in Kafka"
    at: dict[tuple[str, int], int] = {}
    counted: Counter[tuple[int, str]] = Counter()
    for query, partition, begin, until, archived, empty, quarantined in commits:
        assert at.get((query, partition), begin) == begin, f"{query} {partition}: {at[query, partition]} then {begin}"
        at[query, partition] = until
        if query == "archive":
            counted.update({(partition, "archived"): archived, (partition, "empty"): empty})
            counted.update({(partition, "quarantined"): quarantined})
    ends = {c[1]: 0 for c in records}
    for _, partition, offset in records:
        ends[partition] = max(ends[partition], offset + 1)
    for (query, partition), until in at.items():
        assert until >= ends.get(partition, 0), f"{query} ends at {until} of topic partition {partition}"
    assert counted == counts_by_partition(fates), "the ledger's counts"
    return len(records)


def read_coordinates(paths: Iterable[PurePath], store: fs.FileSystem | None = None) -> Counter[Coordinates]:
    """Coordinates of the files' rows."""
    columns = ["kafka_topic", "kafka_partition", "kafka_offset"]
    found: Counter[Coordinates] = Counter()
    for path in paths:
        found += coordinates_of(pq.ParquetFile(str(path), filesystem=store).read(columns=columns))
    return found


def zip_codes() -> dict[str, str]:
    """The zip code of each camera that has one."""
    with (Path(__file__).parents[2] / "include/pipelines/nest_cameras.device_locations.csv").open() as file:
        return {row["device_id"]: row["zip_code"] for row in csv.DictReader(file)}


def sightings(records: dict[Coordinates, Record], zip_codes: dict[str, str]) -> Counter[tuple[str, str]]:
    """The oracle of the hourly counts: sightings per zip code and hour, late ones included."""
    counts: Counter[tuple[str, str]] = Counter()
    for row in expected(records).rows.values():
        event = row["last_event"]
        if event["has_person"] and row["device_id"] in zip_codes:
            hour = datetime.fromisoformat(event["start_time"]).astimezone(UTC).strftime("%Y-%m-%dT%H:00:00Z")
            counts[zip_codes[row["device_id"]], hour] += 1
    return counts


def by_zip_and_hour(values: dict[str, dict[str, Any]]) -> Counter[tuple[str, str]]:
    """The counts in a compacted topic's last values, in the form of `sightings`."""
    found: Counter[tuple[str, str]] = Counter()
    for key, value in values.items():
        parts = json.loads(key)
        found[parts["zip_code"], parts["window"]["start"]] += value["count"]
    return found
