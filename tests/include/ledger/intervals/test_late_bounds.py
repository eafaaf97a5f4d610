"""Which watermark a speed query's micro-batches dropped late rows by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.ledger.database import session
from include.ledger.intervals.evidence import LateBound, late_bounds_within
from include.ledger.models import MicroBatch, MicroBatchRange
from include.ledger.streams.generations import StreamGeneration
from include.offsets import OffsetRange, TopicPartition
from tests.conftest import Home

pytestmark = pytest.mark.services

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 20, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


def commit(pipeline: str, query_id: str, number: int, watermark: datetime | None, offset: int) -> None:
    """Commit a micro-batch of the second generation that read one record."""
    batch_id = StreamGeneration(pipeline, 2, {}, {}).version(number)
    with session() as ledger:
        batch = MicroBatch(
            pipeline=pipeline, query="by_zip", query_id=query_id, batch_id=batch_id, token=1, watermark=watermark
        )
        ledger.add(batch)
        ledger.flush()
        where = {"topic": pipeline, "topic_partition": 0, "topic_id": "id"}
        ledger.add(MicroBatchRange(micro_batch_id=batch.id, from_offset=offset, until_offset=offset + 1, **where))


def bounds(pipeline: str, query_id: str, after: datetime) -> list[LateBound]:
    return late_bounds_within(query_id, {TopicPartition(pipeline, 0): (0, 99)}, after)


def test_watermark_is_that_of_the_micro_batch_before_or_1970_when_there_is_none_yet(
    postgres: Home, pipeline: str
) -> None:
    base, query = f"base-{pipeline}", f"query-{pipeline}"
    # A base drops nothing, whatever the watermark.
    commit(pipeline, base, -1, None, 0)
    for number, watermark in enumerate((None, None, NOW, NOW + HOUR)):
        commit(pipeline, query, number, watermark, number + 1)
    # A micro-batch whose predecessor is not known.
    commit(pipeline, query, 9, NOW, 10)
    tp = TopicPartition(pipeline, 0)
    by_first = [LateBound(OffsetRange(tp, n, n + 1), EPOCH) for n in (1, 2, 3)]
    later = [LateBound(OffsetRange(tp, 4, 5), NOW)]
    assert bounds(pipeline, query, datetime(1950, 1, 1, tzinfo=UTC)) == [*by_first, *later]
    assert bounds(pipeline, query, EPOCH) == [*by_first, *later]
    assert bounds(pipeline, query, EPOCH + HOUR) == later
    assert bounds(pipeline, query, NOW + HOUR) == []
    assert bounds(pipeline, base, datetime(1950, 1, 1, tzinfo=UTC)) == []
