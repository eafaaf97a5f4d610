"""Reads a quarantine file's records, without those that are being erased."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pyarrow import ArrowInvalid
from pyarrow.parquet import ParquetFile

from include import lake
from include.errors import AnotherWriter, FileUnreadable, one_line
from include.ledger.archive import landing_files
from include.ledger.erasures.coordinates import being_erased
from include.ledger.quarantine import Origin, QuarantineFile, RecordKey, replaced
from include.offsets import OffsetRange, TopicPartition

COORDINATES = ("kafka_topic", "kafka_partition", "kafka_offset")


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@contextmanager
def open_file(pipeline: str, path: str) -> Iterator[ParquetFile]:
    """Open a quarantine file, which whoever holds no lock may find gone: housekeeping and erasures replace files.

    Raises FileUnreadable when it is missing or damaged, AnotherWriter when the ledger no longer names it.
    """
    try:
        with lake.open_parquet(lake.uri(path)) as opened:
            yield opened
    except (OSError, ArrowInvalid) as error:
        if isinstance(error, OSError) and not landing_files.is_to_be_there(pipeline, path):
            raise replaced(pipeline, path) from error
        raise FileUnreadable(
            f"the quarantine's file {path} cannot be read: {one_line(str(error))}",
            remedy="put it back; ./tidemark doctor --deep lists all that is missing or damaged",
            pipeline=pipeline,
        ) from error


def begun_again(read: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let a function that lists and reads files do so once more when one was replaced meanwhile."""

    @wraps(read)
    def reading(*args: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return read(*args, **named)
        except AnotherWriter:
            return read(*args, **named)

    return reading


def read_file(
    pipeline: str, file: QuarantineFile, columns: list[str], within: OffsetRange | None = None
) -> Iterator[dict[str, Any]]:
    """Yield columns of a file's records, or of those at some offsets: a file may hold more than fits into memory.

    Raises like `open_file`.
    """
    with open_file(pipeline, file.path) as opened:
        for batch in lake.rows_within(opened, columns, {} if within is None else lake.bounds_of(within)):
            rows = lake.python_rows(batch)
            gone = being_erased(pipeline)
            yield from (each for each in rows if not gone or record_key(each, file) not in gone)


def record_key(row: Mapping[str, Any], file: QuarantineFile) -> RecordKey:
    """Return the key of the record that a row of a file holds."""
    topic_id = origin_of(row, file).topic_id
    return RecordKey(row["kafka_topic"], topic_id, row["kafka_partition"], row["kafka_offset"])


def origin_of(row: Mapping[str, Any], file: QuarantineFile) -> Origin:
    """Return the micro-batch that a row of a file comes from."""
    return file.origin(TopicPartition(row["kafka_topic"], row["kafka_partition"]), row["kafka_offset"])
