"""A micro-batch in Spark's checkpoint: its exact offset ranges and its watermark.

Source: the checkpoint's `offsets/<batch>` (written before the batch runs) and `sources/0/0` (initial offsets).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include import lake
from include.catalog import comparable_location
from include.errors import CheckpointDamaged, one_line
from include.lake.checkpoints import damaged
from include.offsets import OffsetRange, TopicPartition, parse_offsets_json, ranges_between
from spark_jobs.spark.thrown import Thrown

_READERS = {
    "org.apache.spark.sql.execution.streaming.checkpointing.HDFSMetadataLog",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
}
"""Classes of Spark that throw an IllegalStateException when a plan or a commit is missing or cannot be read."""

_METADATA_LOST = "STREAMING_CHECKPOINT_MISSING_METADATA_FILE"
_STATE_LOST = ("STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY", "CANNOT_LOAD_STATE_STORE.CANNOT_READ_")
"""Beginnings of Spark's error classes for a state that lacks files, or has damaged ones."""

_STATE_UNREADABLE = "CANNOT_LOAD_STATE_STORE.UNCATEGORIZED"
_CUT_SHORT = {"java.io.EOFException", "org.apache.hadoop.fs.ChecksumException"}
"""What a file of the state throws that is empty, cut short or altered; other causes may pass."""

_LOG_FILE = re.compile(r"^Failed to read log file (\S+)\. ")


@dataclass(frozen=True)
class PlannedBatch:
    """A micro-batch as planned in the write-ahead log."""

    ranges: list[OffsetRange]
    watermark: datetime | None


def read_batch(checkpoint: str, batch_id: int) -> PlannedBatch:
    """Return the exact ranges and the watermark of a micro-batch. Raises CheckpointDamaged when the log lacks it."""
    metadata, until = _entry(checkpoint, batch_id)
    before = parse_offsets_json(_entry(checkpoint, batch_id - 1)[1]) if batch_id else _initial(checkpoint)
    return PlannedBatch(ranges_between(before, parse_offsets_json(until)), _watermark(metadata))


def ends_of(checkpoint: str, batch_id: int) -> dict[TopicPartition, int]:
    """Return the end offsets of a micro-batch. Raises CheckpointDamaged when the log lacks it."""
    return parse_offsets_json(_entry(checkpoint, batch_id)[1])


@dataclass(frozen=True)
class PlannedLines:
    """A micro-batch of lines as planned in the write-ahead log: files of the ledger after one, up to another."""

    after_file: int
    until_file: int
    watermark: datetime | None


def read_line_batch(checkpoint: str, batch_id: int, since: int) -> PlannedLines:
    """Return the files that a micro-batch of lines reads; the first micro-batch begins after file `since`."""
    metadata, until = _entry(checkpoint, batch_id)
    before = int(json.loads(_entry(checkpoint, batch_id - 1)[1])["file"]) if batch_id else since
    return PlannedLines(before, int(json.loads(until)["file"]), _watermark(metadata))


def _entry(checkpoint: str, batch_id: int) -> tuple[dict[str, Any], str]:
    """Return the metadata of a micro-batch, and its end offsets in the form of its source."""
    file = f"{checkpoint}/offsets/{batch_id}"
    with _reading(file):
        _, metadata, source, *_ = lake.read_text(file).split("\n")
        json.loads(source)
        return json.loads(metadata), source


def _initial(checkpoint: str) -> dict[TopicPartition, int]:
    file = f"{checkpoint}/sources/0/0"
    with _reading(file):
        # The file begins with a zero byte for compatibility with Spark 2.0.
        return parse_offsets_json(lake.read_text(file).lstrip("\0").split("\n", 1)[1])


@contextmanager
def _reading(file: str) -> Iterator[None]:
    """Raise CheckpointDamaged when the file is missing, or does not have the form in which Spark writes it."""
    try:
        yield
    except FileNotFoundError:
        raise damaged(file, "is missing") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        raise damaged(file) from None


def _watermark(metadata: dict[str, Any]) -> datetime | None:
    milliseconds = int(metadata.get("batchWatermarkMs", 0))
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


def checkpoint_damaged(thrown: Thrown) -> CheckpointDamaged | None:
    """Return the error that Spark means when it cannot read a file of a checkpoint; None for any other failure."""
    file, of_state = "", thrown.condition == _STATE_UNREADABLE and thrown.cause in _CUT_SHORT
    if thrown.kinds[0] == "java.lang.IllegalStateException" and thrown.thrower in _READERS:
        named = _LOG_FILE.search(thrown.message)
        file = named[1] if named else ""
    elif thrown.condition == _METADATA_LOST and "checkpointLocation" in thrown.parameters:
        file = f"{thrown.parameters['checkpointLocation']}/metadata"
    elif not of_state and not thrown.condition.startswith(_STATE_LOST):
        return None
    if file := file or thrown.parameters.get("fileToRead", ""):
        return damaged(comparable_location(file), "is missing, or cannot be read")
    what = "the state of a speed view cannot be read" if of_state else one_line(thrown.message)
    return CheckpointDamaged(
        f"Spark cannot take up a stream's checkpoint: {what}",
        remedy="put back from a copy of the lake of the same moment what is lost or damaged, or begin without it: "
        './tidemark new-generation PIPELINE --reason "…"',
    )
