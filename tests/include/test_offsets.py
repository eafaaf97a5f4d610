from __future__ import annotations

import json

import pytest

from include.errors import TopicRecreated
from include.offsets import (
    Fates,
    OffsetRange,
    TopicIdentity,
    TopicPartition,
    assignment_json,
    check_same_topic,
    intersection,
    merged,
    offsets_json,
    parse_offsets_json,
    ranges_between,
    without,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_range_is_refused_when_it_runs_backwards() -> None:
    with pytest.raises(ValueError, match="not an offset range"):
        OffsetRange(A0, 5, 4)


def test_end_is_not_counted_when_a_range_counts_its_offsets() -> None:
    assert len(OffsetRange(A0, 5, 9)) == 4
    assert len(OffsetRange(A0, 5, 5)) == 0


def test_range_holds_its_first_offset_and_not_its_end_when_it_is_asked() -> None:
    at = OffsetRange(A0, 5, 9)
    assert [offset for offset in range(12) if at.holds(A0, offset)] == [5, 6, 7, 8]
    assert not at.holds(A1, 5)
    assert not at.holds(B0, 5)
    assert not OffsetRange(A0, 5, 5).holds(A0, 5)


def test_offsets_stay_when_they_pass_through_spark_s_json() -> None:
    offsets = {A0: 3, A1: 0, B0: 2**40}
    assert parse_offsets_json(offsets_json(offsets)) == offsets
    assert json.loads(assignment_json([OffsetRange(tp, 0, 1) for tp in offsets])) == {"a": [0, 1], "b": [0]}


def test_new_topic_partition_starts_at_zero_when_it_appears_between_two_positions() -> None:
    assert ranges_between({A0: 4}, {A0: 9, A1: 2}) == [OffsetRange(A0, 4, 9), OffsetRange(A1, 0, 2)]


def test_ranges_join_when_they_touch_and_are_cut_when_they_overlap() -> None:
    def span(begin: int, until: int) -> OffsetRange:
        return OffsetRange(A0, begin, until)

    assert merged([span(5, 9), span(0, 5), span(12, 12), span(10, 11)]) == [span(0, 9), span(10, 11)]
    assert merged([span(0, 9), span(2, 4), span(9, 11)]) == [span(0, 11)]
    assert merged([OffsetRange(A1, 3, 9), span(0, 5)]) == [span(0, 5), OffsetRange(A1, 3, 9)]
    assert intersection(span(0, 5), span(3, 9)) == intersection(span(3, 9), span(0, 5)) == span(3, 5)
    assert intersection(span(0, 5), span(5, 9)) is None
    assert intersection(span(0, 5), OffsetRange(A1, 0, 5)) is None


def test_rest_is_kept_by_incarnation_when_others_do_not_hold_it() -> None:
    def span(begin: int, until: int, topic_id: str = "now") -> OffsetRange:
        return OffsetRange(A0, begin, until, topic_id)

    held = [span(3, 5), span(5, 6), span(8, 20), span(0, 4, "gone")]
    left = list(without([span(0, 10), span(2, 9, "gone"), OffsetRange(A1, 1, 2, "now")], held))
    assert left == [span(0, 3), span(6, 8), span(4, 9), OffsetRange(A1, 1, 2)]
    assert [each.topic_id for each in left] == ["now", "now", "gone", "now"]
    assert not list(without([span(9, 12), span(9, 20), span(4, 4)], held))
    assert list(without([span(3, 7), span(0, 6)], held)) == [span(6, 7), span(0, 3)]


def test_erased_records_count_among_those_that_were_visible() -> None:
    assert Fates(archived=1, empty=2, quarantined=3, erased=4).records == 10


@pytest.mark.parametrize("identity", [None, TopicIdentity("a", "other", 1)])
def test_other_cluster_is_thought_of_before_the_topic_is_adopted(identity: TopicIdentity | None) -> None:
    with pytest.raises(TopicRecreated, match="or the Kafka at broker:9092 is another cluster") as error:
        check_same_topic("nest_cameras", identity, "a", "id", asked_at="broker:9092")
    assert error.value.remedy.startswith("set TIDEMARK_KAFKA_BOOTSTRAP to the cluster that was read")
    check_same_topic("nest_cameras", TopicIdentity("a", "id", 1), "a", "id", asked_at="broker:9092")
