"""Commits of micro-batches, on a real PostgreSQL, without Spark."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from include.errors import TidemarkError, TopicRecreated
from include.ledger.archive import micro_batches
from include.ledger.archive.archived_offsets import before_archive, commit_of
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.database import session
from include.ledger.streams import writers
from include.offsets import OffsetRange, TopicIdentity
from tests.support import committed
from tests.support.committed import TP

pytestmark = pytest.mark.services


@pytest.mark.parametrize("begin", [2, 4])
def test_nothing_is_committed_when_a_micro_batch_overlaps_the_last_one_or_leaves_a_hole(
    pipeline: str, begin: int
) -> None:
    lease, topics = writers.acquire(pipeline), {"events": TopicIdentity("events", "id", 1)}

    def commit(number: int, begin: int, until: int) -> None:
        ranges = [OffsetRange(TP, begin, until, "id")]
        micro_batches.commit(lease, BatchCommit(pipeline, ARCHIVE, pipeline, number, ranges, topics))

    commit(0, 0, 3)
    with pytest.raises(TidemarkError, match="the last commit ended at 3"):
        commit(1, begin, 6)
    assert micro_batches.positions(pipeline) == {TP: 3}
    assert not micro_batches.is_committed(pipeline, 1)


def test_nothing_is_committed_when_the_topic_was_created_again_since_the_last_micro_batch(pipeline: str) -> None:
    lease = writers.acquire(pipeline)

    def commit(number: int, begin: int, until: int, topic_id: str) -> None:
        ranges = [OffsetRange(TP, begin, until, topic_id)]
        topics = {"events": TopicIdentity("events", topic_id, 1)}
        micro_batches.commit(lease, BatchCommit(pipeline, ARCHIVE, pipeline, number, ranges, topics))

    commit(0, 0, 3, "id")
    with pytest.raises(TopicRecreated, match="commits have the id id"):
        commit(1, 3, 6, "other")
    assert micro_batches.positions(pipeline) == {TP: 3}
    assert micro_batches.stored_topics(pipeline) == {"events": "id"}
    assert not micro_batches.is_committed(pipeline, 1)


def test_nothing_is_committed_when_the_topic_was_deleted_since_the_last_micro_batch(pipeline: str) -> None:
    lease, topics = writers.acquire(pipeline), {"events": TopicIdentity("events", "id", 1)}

    def commit(query: str, begin: int, until: int, topics: dict[str, TopicIdentity]) -> None:
        ranges = [OffsetRange(TP, begin, until)]
        micro_batches.commit(lease, BatchCommit(pipeline, query, f"{query}-{pipeline}", until, ranges, topics))

    with pytest.raises(TopicRecreated, match=r"topic events \(id unknown\) no longer exists"):
        commit("view", 0, 3, {})
    commit(ARCHIVE, 0, 3, topics)
    with pytest.raises(TopicRecreated, match=r"topic events \(id id\) no longer exists"):
        commit("view", 0, 3, {})
    assert micro_batches.positions(pipeline, "view") == {}


def test_archive_begins_with_its_first_records_when_later_micro_batches_end_at_the_same_offset(pipeline: str) -> None:
    lease, topics = writers.acquire(pipeline), {"events": TopicIdentity("events", "id", 1)}
    for number, begin in enumerate((5, 10, 10)):
        ranges = [OffsetRange(TP, begin, 10, "id")]
        micro_batches.commit(lease, BatchCommit(pipeline, ARCHIVE, pipeline, number, ranges, topics))
    # As an erasure of one of its records leaves the row: behind the others in the table.
    moved = """
        WITH moved AS (
            DELETE FROM micro_batch_ranges r USING micro_batches b
            WHERE b.id = r.micro_batch_id AND b.pipeline = :pipeline AND r.from_offset = 5 RETURNING r.*
        ) INSERT INTO micro_batch_ranges SELECT * FROM moved"""
    with session() as ledger:
        ledger.execute(text(moved), {"pipeline": pipeline})
    assert before_archive(pipeline, [OffsetRange(TP, 3, 20, "id")]) == [OffsetRange(TP, 3, 5, "id")]
    assert before_archive(pipeline, [OffsetRange(TP, 5, 20, "id")]) == []
    assert before_archive(pipeline, [OffsetRange(TP, 0, 3, "id")]) == [OffsetRange(TP, 0, 3, "id")]
    commit = commit_of(pipeline, TP, "id", 7)
    assert commit is not None
    assert (commit.from_offset, commit.until_offset) == (5, 10)
    assert commit_of(pipeline, TP, "id", 10) is None


def test_offsets_between_two_commits_are_not_taken_for_those_before_the_archive_when_none_has_them(
    pipeline: str,
) -> None:
    committed.commit(pipeline, 0, 5, 8)
    committed.commit(pipeline, 1, 12, 20)
    assert before_archive(pipeline, [OffsetRange(TP, 8, 20, "id")]) == []
    assert before_archive(pipeline, [OffsetRange(TP, 0, 20, "id")]) == [OffsetRange(TP, 0, 5, "id")]
