"""Which things were down when an interval began."""

from __future__ import annotations

import pytest

from include.ledger.streams.outages import Outage, Place
from include.offsets import TopicPartition
from spark_jobs.reconciliation.outages import _lasts

FIRST_BATCH, BEGINS = 12, {TopicPartition("t", 0): 35}
"""Rows of the present incarnation; the first micro-batch that landed some of them landed earlier ones, too."""


@pytest.mark.parametrize(
    ("began", "micro_batch", "ended", "lasts"),
    [
        (("new", 10), 12, None, True),
        (("new", 10), 12, ("new", 20), False),
        (("new", 10), 12, ("new", 34), False),
        (("new", 10), 12, ("new", 35), True),
        (("new", 35), 12, ("new", 40), False),
        (("old", 63), 1, None, True),
        (("old", 63), 1, ("new", 0), False),
        (("old", 63), 1, ("new", 34), False),
        (("old", 63), 1, ("new", 35), True),
    ],
)
def test_thing_was_down_when_its_outage_began_before_the_rows_and_did_not_end_before_them(
    began: tuple[str, int], micro_batch: int, ended: tuple[str, int] | None, lasts: bool
) -> None:
    outage = Outage(
        "a",
        micro_batch,
        Place("t", 0, began[1], 0),
        began[0],
        Place("t", 0, ended[1], 0) if ended else None,
        ended[0] if ended else None,
    )
    assert _lasts(outage, FIRST_BATCH, BEGINS, {"t": "new"}) == lasts


def test_thing_of_another_topic_partition_was_down_when_an_earlier_micro_batch_found_it() -> None:
    for micro_batch, lasts in ((11, True), (12, False)):
        outage = Outage("a", micro_batch, Place("t", 7, 3, 0), "new", None, None)
        assert _lasts(outage, FIRST_BATCH, BEGINS, {"t": "new"}) == lasts
