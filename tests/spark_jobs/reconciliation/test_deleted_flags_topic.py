"""Which flags were written to a topic that is gone: without services."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from include.ledger.streams.flags import InForce
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from spark_jobs.views import cut_flags
from spark_jobs.views.cut_flags import of_deleted_topics

TP = TopicPartition("auction-bids", 0)


def in_force(begin: int, until: int, flags_topic_id: str | None) -> InForce:
    return InForce(OffsetRange(TP, begin, until), 1, "code", datetime(2026, 11, 20, tzinfo=UTC), flags_topic_id)


FORCES = [in_force(0, 5, None), in_force(5, 20, "first"), in_force(20, 30, "second")]


@pytest.mark.parametrize(
    ("present", "lost"),
    [("second", [(5, 20)]), ("first", [(20, 30)]), ("third", [(5, 20), (20, 30)]), (None, [(5, 20), (20, 30)])],
)
def test_flags_are_lost_with_their_topic_when_it_is_known_and_not_the_present_one(
    monkeypatch: pytest.MonkeyPatch, present: str | None, lost: list[tuple[int, int]]
) -> None:
    described = {"flags": TopicIdentity("flags", present, 1)} if present else {}
    monkeypatch.setattr(cut_flags.kafka, "describe_topics", lambda topics: described)
    found = of_deleted_topics("flags", FORCES)
    assert [(each.from_offset, each.until_offset) for each in found] == lost
