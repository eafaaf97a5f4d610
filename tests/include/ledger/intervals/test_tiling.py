"""Adjacent intervals leave no offset between them, on a real PostgreSQL, without Kafka."""

from __future__ import annotations

import pytest

from include.errors import TidemarkError
from include.ledger.intervals import pins
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import OffsetRange
from tests.support.attempts import hour
from tests.support.committed import span

pytestmark = pytest.mark.services


def write(pipeline: str, number: int, *ranges: OffsetRange) -> PinnedInterval | None:
    between = pins.find_neighbours(pipeline, hour(number))
    return pins.write_interval(pipeline, hour(number), ranges, {"events": "id"}, pinned_by="test", between=between)


@pytest.mark.parametrize("wrong", [span(12, 20), span(10, 18), span(8, 20), span(10, 22)], ids=str)
def test_interval_is_not_written_when_it_leaves_a_hole_or_overlaps_on_either_side(
    pipeline: str, wrong: OffsetRange
) -> None:
    # The offsets between intervals that are not adjacent are another interval's.
    assert write(pipeline, 0, span(0, 10))
    assert write(pipeline, 2, span(20, 30))
    with pytest.raises(TidemarkError, match="does not tile"):
        write(pipeline, 1, wrong)
    assert write(pipeline, 1, span(10, 20))


def test_interval_is_not_written_when_it_has_no_range_of_a_topic_partition_that_its_neighbour_has(
    pipeline: str,
) -> None:
    assert write(pipeline, 0, span(0, 10))
    with pytest.raises(TidemarkError, match="does not tile"):
        write(pipeline, 1)


def test_interval_is_not_written_when_another_one_was_pinned_beside_it_since_it_was_resolved(pipeline: str) -> None:
    between = pins.find_neighbours(pipeline, hour(2))
    assert write(pipeline, 0, span(0, 10))
    known = {"pinned_by": "test", "between": between}
    assert pins.write_interval(pipeline, hour(2), [span(10, 20)], {"events": "id"}, **known) is None  # type: ignore[arg-type]
    assert pins.find_interval(pipeline, hour(2).from_time) is None


def test_ranges_stay_as_somebody_else_has_resolved_them_again_when_two_do_so_at_once(pipeline: str) -> None:
    known = write(pipeline, 0, span(0, 10))
    assert known is not None
    again = pins.replace_ranges(known, [span(0, 15)], repinned_by="one")
    assert pins.replace_ranges(known, [span(0, 12)], repinned_by="other") is None
    assert pins.find_interval(pipeline, hour(0).from_time) == again


def test_interval_begins_anywhere_when_its_topic_was_created_again(pipeline: str) -> None:
    assert write(pipeline, 0, span(0, 10))
    between = pins.find_neighbours(pipeline, hour(1))
    other = {"events": "other"}
    assert pins.write_interval(pipeline, hour(1), [span(3, 5)], other, pinned_by="test", between=between)
