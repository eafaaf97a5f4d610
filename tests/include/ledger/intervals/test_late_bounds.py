"""Which watermark a speed query's micro-batches dropped late rows by, and when it has yet to begin again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.database import engine, session
from include.ledger.intervals.evidence import LateBound, awaits_base, late_bounds_within
from include.ledger.streams import generations, writers
from include.ledger.streams.generations import StreamGeneration
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from tests.conftest import Home
from tests.support.committed import add_batch
from tests.support.ledger_reads import rows_fetched

pytestmark = pytest.mark.services

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 11, 20, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


def commit(
    pipeline: str, query_id: str, number: int, watermark: datetime | None, offset: int, *, partition: int = 0
) -> None:
    """Commit a micro-batch of the second generation that read one record."""
    batch_id = StreamGeneration(pipeline, 2, {}, {}).version(number)
    read = OffsetRange(TopicPartition(pipeline, partition), offset, offset + 1)
    with session() as ledger:
        add_batch(ledger, pipeline, batch_id, read, query="by_zip", query_id=query_id, watermark=watermark)


def bounds(pipeline: str, query_id: str, *ends: datetime) -> list[LateBound]:
    return late_bounds_within(query_id, {TopicPartition(pipeline, 0): (0, 999)}, ends)


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
    by_first, later = OffsetRange(tp, 1, 4), OffsetRange(tp, 4, 5)
    before_all, after_first = datetime(1950, 1, 1, tzinfo=UTC), EPOCH + HOUR
    assert bounds(pipeline, query, before_all) == [LateBound(OffsetRange(tp, 1, 5), before_all, EPOCH, NOW)]
    assert bounds(pipeline, query, EPOCH, after_first) == [
        LateBound(by_first, EPOCH, EPOCH, EPOCH),
        LateBound(later, after_first, NOW, NOW),
    ]
    assert bounds(pipeline, query, after_first) == [LateBound(later, after_first, NOW, NOW)]
    assert bounds(pipeline, query, NOW) == [LateBound(later, NOW, NOW, NOW)]
    assert bounds(pipeline, query, NOW + HOUR) == []
    assert bounds(pipeline, base, before_all) == []


def test_ranges_do_not_grow_with_micro_batches_when_windows_are_days_apart(postgres: Home, pipeline: str) -> None:
    query, minute = f"query-{pipeline}", timedelta(minutes=1)
    old, tp = NOW - 7 * 24 * HOUR, TopicPartition(pipeline, 0)
    watermarks = [*(old + n * minute for n in range(100)), *(NOW + n * minute for n in range(-50, 50))]
    for number, watermark in enumerate(watermarks):
        commit(pipeline, query, number, watermark, number)
    with rows_fetched(engine()) as fetched:
        found = bounds(pipeline, query, old, NOW - HOUR, NOW)
    assert found == [
        LateBound(OffsetRange(tp, 1, 101), old, old, old + 99 * minute),
        LateBound(OffsetRange(tp, 101, 151), NOW - HOUR, NOW - 50 * minute, NOW - minute),
        LateBound(OffsetRange(tp, 151, 200), NOW, NOW, NOW + 48 * minute),
    ]
    assert fetched == [3]


def test_ranges_are_not_merged_when_a_gap_or_topic_partition_separates_them(postgres: Home, pipeline: str) -> None:
    query = f"query-{pipeline}"
    # What drops rows of micro-batch 9 is not known.
    for offset, number in enumerate((0, 1, 2, 9, 10)):
        commit(pipeline, query, number, NOW, offset)
    commit(pipeline, query, 11, NOW, 5, partition=1)
    both = {TopicPartition(pipeline, 0): (0, 9), TopicPartition(pipeline, 1): (0, 9)}
    found = late_bounds_within(query, both, [NOW])
    assert [
        (bound.range.topic_partition.partition, bound.range.from_offset, bound.range.until_offset) for bound in found
    ] == [
        (0, 1, 3),
        (0, 4, 5),
        (1, 5, 6),
    ]


def test_speed_view_awaits_its_base_only_until_it_begins_again_after_a_topic_was_adopted(
    postgres: Home, pipeline: str
) -> None:
    lease = writers.acquire(pipeline)
    topics = {"events": TopicIdentity("events", "id", 1)}
    micro_batches.commit(lease, BatchCommit(pipeline, ARCHIVE, f"query-{pipeline}", 0, topics=topics))
    first = generations.current_or_first(pipeline, "test")
    micro_batches.commit(lease, BatchCommit(pipeline, "by_zip", f"view-{pipeline}", first.version(0), topics=topics))
    assert not awaits_base(pipeline, "by_zip")
    successor = TopicIdentity("events", "other", 1)
    generations.open_with_topic(lease, successor, None, [], adopted_by="test", reason="test")
    assert awaits_base(pipeline, "by_zip")
    generation = generations.current(pipeline)
    assert generation is not None
    base = BatchCommit(pipeline, "by_zip", f"base-{pipeline}", generation.version(-1))
    micro_batches.move_query(lease, base)
    assert not awaits_base(pipeline, "by_zip")
    # In another generation, real differences are to be told again.
    generations.open_generation(lease, started_by="test", reason="test")
    assert not awaits_base(pipeline, "by_zip")
