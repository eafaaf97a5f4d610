"""Reads a quarantine file's records, without those that are being erased."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyarrow import ArrowInvalid

from include import lake
from include.errors import FileUnreadable, one_line
from include.ledger.erasures.coordinates import being_erased
from include.ledger.quarantine import Origin, QuarantineFile, RecordKey
from include.offsets import OffsetRange, TopicPartition

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")


def read_file(
    pipeline: str, file: QuarantineFile, columns: list[str], within: OffsetRange | None = None
) -> Iterator[dict[str, Any]]:
    """Yield columns of a file's records, or of those at some offsets: a file may hold more than fits into memory.

    Raises FileUnreadable when the file is missing or damaged.
    """
    try:
        with lake.open_parquet(lake.uri(file.path)) as opened:
            for batch in lake.rows_within(opened, columns, {} if within is None else lake.bounds_of(within)):
                rows = lake.python_rows(batch)
                gone = being_erased(pipeline)
                yield from (each for each in rows if not gone or record_key(each, file) not in gone)
    except (OSError, ArrowInvalid) as error:
        raise FileUnreadable(
            f"the quarantine's file {file.path} cannot be read: {one_line(str(error))}",
            remedy="put it back; ./tidemark doctor --deep lists all that is missing or damaged",
            pipeline=pipeline,
        ) from error


def record_key(row: Mapping[str, Any], file: QuarantineFile) -> RecordKey:
    """Return the key of the record that a row of a file holds."""
    topic_id = origin_of(row, file).topic_id
    return RecordKey(row["kafka_topic"], topic_id, row["kafka_partition"], row["kafka_offset"])


def origin_of(row: Mapping[str, Any], file: QuarantineFile) -> Origin:
    """Return the micro-batch that a row of a file comes from."""
    return file.origin(TopicPartition(row["kafka_topic"], row["kafka_partition"]), row["kafka_offset"])
