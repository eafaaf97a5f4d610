"""Topics that were deleted and created again: what a speed view knows of the adoption."""

from __future__ import annotations

import pytest

from include.ledger.database import session
from include.ledger.intervals.evidence import awaits_base
from include.ledger.models import MicroBatch, TopicIncarnation
from include.ledger.streams import generations, writers

pytestmark = pytest.mark.services

VIEW = "hourly_counts"


def commit(pipeline: str, batch_id: int) -> None:
    with session() as ledger:
        ledger.add(MicroBatch(pipeline=pipeline, query=VIEW, query_id="q", batch_id=batch_id, token=1))


def test_view_awaits_its_base_until_it_has_begun_again_and_not_in_later_generations(pipeline: str) -> None:
    lease = writers.acquire(pipeline)
    generations.current_or_first(pipeline, "test")
    commit(pipeline, 0)
    assert not awaits_base(pipeline, VIEW)
    # As when a topic is adopted.
    generations.open_generation(lease, started_by="test", reason="adopted")
    closed = {"topic": "events", "topic_id": "old", "topic_partitions": 1, "successor_id": "new"}
    with session() as ledger:
        ledger.add(TopicIncarnation(pipeline=pipeline, closed_by="test", reason="recreated", **closed))
    assert awaits_base(pipeline, VIEW)
    commit(pipeline, generations.current_or_first(pipeline, "test").version(-1))
    assert not awaits_base(pipeline, VIEW)
    # In another generation, real differences are to be told again.
    generations.open_generation(lease, started_by="test", reason="a test")
    assert not awaits_base(pipeline, VIEW)
    writers.release(lease)
