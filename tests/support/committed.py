"""Micro-batches and intervals as rows of the ledger, with their landing files, and without Kafka or Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sqlalchemy.orm import Session

from include import lake
from include.ledger.database import session
from include.ledger.models import IntervalRange, IntervalRow, LandingFileRow, MicroBatch, MicroBatchRange
from include.offsets import OffsetRange, TopicPartition

TP = TopicPartition("events", 0)
DAY = datetime(2026, 11, 18, 5, tzinfo=UTC)


def span(begin: int, until: int) -> OffsetRange:
    return OffsetRange(TP, begin, until)


def add_batch(
    ledger: Session,
    pipeline: str,
    number: int,
    *ranges: OffsetRange,
    query: str = "archive",
    token: int = 1,
    **facts: Any,
) -> int:
    """Add a micro-batch that read the ranges, and return its number in the ledger."""
    batch = MicroBatch(pipeline=pipeline, query=query, batch_id=number, token=token, **{"query_id": pipeline, **facts})
    ledger.add(batch)
    ledger.flush()
    ledger.add_all(MicroBatchRange(micro_batch_id=batch.id, **_bounds(each)) for each in ranges)
    return batch.id


def add_interval(ledger: Session, pipeline: str, start: datetime, read: OffsetRange, state: str) -> int:
    """Add an hour that is pinned to the offsets, and return its number in the ledger."""
    end = start + timedelta(hours=1)
    row = IntervalRow(pipeline=pipeline, from_time=start, to_time=end, pinned_by="test", state=state)
    ledger.add(row)
    ledger.flush()
    ledger.add(IntervalRange(interval_id=row.id, **_bounds(read)))
    return row.id


def _bounds(read: OffsetRange) -> dict[str, Any]:
    """Return the columns of a range; a topic without an id has `id`."""
    tp = read.topic_partition
    place = {"topic": tp.topic, "topic_partition": tp.partition, "topic_id": read.topic_id or "id"}
    return {**place, "from_offset": read.from_offset, "until_offset": read.until_offset}


def commit(pipeline: str, number: int, begin: int, until: int, **rows: int) -> int:
    """A micro-batch with a file of the named rows per fate."""
    with session() as ledger:
        batch = add_batch(ledger, pipeline, number, span(begin, until), committed_at=DAY)
        for fate, count in rows.items():
            path = f"landing/{pipeline}/{number}/fate={fate}/part.parquet"
            if fate == "quarantined":
                path = f"quarantine/{pipeline}/0a1b2c3d-{number:09d}-0000.parquet"
            table = pa.table({"kafka_offset": range(begin, begin + count), "value": [b"x"] * count})
            system, at = lake.filesystem(lake.uri(path))
            system.create_dir(at.rsplit("/", 1)[0], recursive=True)
            pq.write_table(table, at)
            size = lake.size(lake.uri(path))
            ledger.add(LandingFileRow(micro_batch_id=batch, fate=fate, path=path, rows=count, bytes=size))
        return batch


def register(pipeline: str, number: int, begin: int, until: int, state: str = "registered") -> int:
    """An interval pinned to the offsets."""
    with session() as ledger:
        return add_interval(ledger, pipeline, DAY + timedelta(hours=number), span(begin, until), state)


def write_quarantined(
    path: str,
    offsets: list[int],
    reason: str = "malformed_json",
    value: bytes = b"x",
    timestamps: pa.Array | None = None,
) -> None:
    """Write a quarantine file with a record per offset, at the path of one that the ledger lists."""
    same = {"kafka_topic": "events", "kafka_partition": 0, "kafka_timestamp": DAY, "reason": reason, "detail": ""}
    _, place = lake.filesystem(lake.uri(path))
    columns = {name: [each] * len(offsets) for name, each in {**same, "key": b"k", "value": value}.items()}
    headers = pa.array([[]] * len(offsets), pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})))
    if timestamps is not None:
        columns["kafka_timestamp"] = timestamps
    pq.write_table(pa.table({**columns, "headers": headers, "kafka_offset": offsets}), place)


def commit_recreated(pipeline: str, older: int = 6, newer: int = 6, offsets: int = 10) -> None:
    """Commit the same offsets of a topic and of its successor, with records in quarantine, `older` and `newer`."""
    counts = {"id": ("older", older), "newer": ("newer", newer)}
    for number, (topic_id, (value, count)) in enumerate(counts.items()):
        batch = commit(pipeline, number, 0, offsets, **({"quarantined": count} if count else {"archived": offsets}))
        with session() as ledger:
            ledger.query(MicroBatchRange).filter_by(micro_batch_id=batch).one().topic_id = topic_id
            files = [row.path for row in ledger.query(LandingFileRow).filter_by(micro_batch_id=batch)]
        if count:
            write_quarantined(files[0], list(range(count)), value=value.encode())
