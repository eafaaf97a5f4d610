"""Looking into the quarantine: what lies there, and one record whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy import func, select

from include import lake
from include.errors import UsageError
from include.intervals import format_time
from include.ledger.database import session
from include.ledger.models import LandingFile, MicroBatch
from include.offsets import TopicPartition

_SHOWN = ["kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp", "reason", "detail"]


def records(pipeline: str, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    """Quarantined records of committed micro-batches, oldest batch first; `whole` adds key, value and headers."""
    with session() as ledger:
        paths = ledger.scalars(
            select(LandingFile.path)
            .join(MicroBatch, MicroBatch.id == LandingFile.micro_batch_id)
            .where(MicroBatch.pipeline == pipeline, LandingFile.outcome == "quarantined")
            # A compacted file holds the records of many micro-batches: it is read once.
            .group_by(LandingFile.path)
            .order_by(func.min(LandingFile.id))
        ).all()
    columns = [*_SHOWN, *(["key", "value", "headers"] if whole else [])]
    for path in paths:
        system, at = lake.filesystem(lake.uri(path))
        with system.open_input_file(at) as file:
            for row in pq.ParquetFile(file).read(columns=columns).to_pylist():
                yield {**row, "kafka_timestamp": format_time(row["kafka_timestamp"])}


def find(pipeline: str, topic_partition: TopicPartition, offset: int) -> dict[str, Any]:
    """One record whole. Raises UsageError when it is not in quarantine."""
    wanted = (topic_partition.topic, topic_partition.partition, offset)
    for row in records(pipeline, whole=True):
        if (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) == wanted:
            return row
    raise UsageError(
        f"{topic_partition} offset {offset} is not in quarantine",
        remedy=f"./tidemark quarantine list {pipeline}",
        pipeline=pipeline,
    )


def printable(value: bytes | None, limit: int = 4000) -> str:
    """Bytes as text that is safe on a terminal: what is not printable ASCII or UTF-8 is escaped."""
    if value is None:
        return "(null)"
    text = value[:limit].decode("utf-8", "backslashreplace")
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return safe + (f" … ({len(value)} bytes)" if len(value) > limit else "")
