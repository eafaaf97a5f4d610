"""What Spark's checkpoint says about a micro-batch: its exact offset ranges and its watermark.

Source: the checkpoint's `offsets/<batch>` (written before the batch runs) and `sources/0/0` (initial offsets).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include import lake
from include.errors import TidemarkError
from include.offsets import OffsetRange, TopicPartition, parse_offsets_json, ranges_between


@dataclass(frozen=True)
class PlannedBatch:
    """A micro-batch as planned in the write-ahead log."""

    ranges: list[OffsetRange]
    watermark: datetime | None


def read_batch(checkpoint: str, batch_id: int) -> PlannedBatch:
    """The exact ranges and the watermark of a micro-batch. Raises TidemarkError when the log lacks it."""
    try:
        metadata, until = _offsets(f"{checkpoint}/offsets/{batch_id}")
        before = _offsets(f"{checkpoint}/offsets/{batch_id - 1}")[1] if batch_id else _initial(checkpoint)
    except FileNotFoundError as error:
        raise TidemarkError(f"the checkpoint {checkpoint} lacks batch {batch_id}: {error}") from error
    milliseconds = int(metadata.get("batchWatermarkMs", 0))
    watermark = datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
    return PlannedBatch(ranges_between(before, until), watermark)


def checkpoint_id(checkpoint: str) -> str | None:
    """Spark's id of the query that the checkpoint belongs to; None when there is no checkpoint yet."""
    if not lake.exists(f"{checkpoint}/metadata"):
        return None
    return str(json.loads(lake.read_text(f"{checkpoint}/metadata"))["id"])


def _offsets(location: str) -> tuple[dict[str, Any], dict[TopicPartition, int]]:
    _, metadata, *sources = lake.read_text(location).split("\n")
    return json.loads(metadata), parse_offsets_json(sources[0])


def _initial(checkpoint: str) -> dict[TopicPartition, int]:
    # The file begins with a zero byte for the sake of Spark 2.0.
    return parse_offsets_json(lake.read_text(f"{checkpoint}/sources/0/0").lstrip("\0").split("\n", 1)[1])
