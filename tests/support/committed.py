"""Micro-batches and intervals as rows of the ledger, with their landing files, and without Kafka or Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq

from include import lake
from include.ledger.database import session
from include.ledger.models import IntervalRange, IntervalRow, LandingFileRow, MicroBatch, MicroBatchRange
from include.offsets import OffsetRange, TopicPartition

TP = TopicPartition("events", 0)
DAY = datetime(2026, 11, 18, 5, tzinfo=UTC)


def span(begin: int, until: int) -> OffsetRange:
    return OffsetRange(TP, begin, until)


def commit(pipeline: str, number: int, begin: int, until: int, **rows: int) -> int:
    """A micro-batch with a file of the named rows per fate."""
    with session() as ledger:
        batch = MicroBatch(
            pipeline=pipeline, query="archive", query_id=pipeline, batch_id=number, token=1, committed_at=DAY
        )
        ledger.add(batch)
        ledger.flush()
        ledger.add(
            MicroBatchRange(
                micro_batch_id=batch.id,
                topic="events",
                topic_partition=0,
                topic_id="id",
                from_offset=begin,
                until_offset=until,
            )
        )
        for fate, count in rows.items():
            path = f"landing/{pipeline}/{number}/fate={fate}/part.parquet"
            if fate == "quarantined":
                path = f"quarantine/{pipeline}/0a1b2c3d-{number:09d}-0000.parquet"
            table = pa.table({"kafka_offset": range(begin, begin + count), "value": [b"x"] * count})
            system, at = lake.filesystem(lake.uri(path))
            system.create_dir(at.rsplit("/", 1)[0], recursive=True)
            pq.write_table(table, at)
            size = lake.size(lake.uri(path))
            ledger.add(LandingFileRow(micro_batch_id=batch.id, fate=fate, path=path, rows=count, bytes=size))
        return batch.id


def register(pipeline: str, number: int, begin: int, until: int, state: str = "registered") -> int:
    """An interval pinned to the offsets."""
    start = DAY + timedelta(hours=number)
    with session() as ledger:
        row = IntervalRow(
            pipeline=pipeline, from_time=start, to_time=start + timedelta(hours=1), pinned_by="test", state=state
        )
        ledger.add(row)
        ledger.flush()
        ledger.add(
            IntervalRange(
                interval_id=row.id,
                topic="events",
                topic_partition=0,
                topic_id="id",
                from_offset=begin,
                until_offset=until,
            )
        )
        return row.id


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
