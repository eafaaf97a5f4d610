"""Flags whose topic was deleted and made again, or that of their records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from include import kafka
from tests.conftest import Home, wait_for
from tests.support.ledger_history import change
from tests.support.raised_flags import FLAGS, TP, Raised, raising

pytestmark = [pytest.mark.spark, pytest.mark.services]

INCARNATION = """
    INSERT INTO topic_incarnations
        (pipeline, topic, topic_id, topic_partitions, successor_id, closed_at, closed_by, reason)
    VALUES ('auction_bids', '{}', '{}', 1, '{}', now() + interval '{} minutes', 'test', 'a test')
"""


@pytest.fixture(scope="module")
def raised(home: Home, spark: Any) -> Iterator[Raised]:
    """All flags of the interval were raised; the query has committed all rows but the last."""
    with raising(home, spark) as found:
        found.commit(0, 0, 4)
        found.produce(*found.flags())
        yield found


def make_flags_topic_again() -> None:
    client = kafka.admin()
    client.delete_topics([FLAGS])[FLAGS].result(30)
    wait_for("the topic to go", lambda: FLAGS not in kafka.describe_topics([FLAGS]), 30)
    kafka.create_topic(FLAGS, 1)
    wait_for("the topic", lambda: FLAGS in kafka.describe_topics([FLAGS]), 30)


@pytest.mark.parametrize(("closed_id", "successor_id", "minutes"), [("former", "id", 10), ("id", "later", -10)])
def test_flags_are_not_the_interval_s_when_another_incarnation_had_their_records_at_its_offsets(
    raised: Raised, home: Home, closed_id: str, successor_id: str, minutes: int
) -> None:
    def surplus() -> list[str]:
        """Where the topic has a flag that the rows, none of which breaks a rule, do not give."""
        found = raised.reconcile(raised.frame([("Carl", "Sam", False)] * 5))
        assert found.counts.unexplained == len(found.differences)
        return [each.where for each in found.differences]

    flagged = [f"{TP} offset {offset}" for offset in (0, 1, 2, 4)]
    assert surplus() == flagged
    # They were written before the interval's incarnation was adopted, or after it was closed.
    change(home.database, INCARNATION.format(TP.topic, closed_id, successor_id, minutes))
    assert surplus() == []
    change(home.database, f"UPDATE topic_incarnations SET closed_at = now() - interval '{minutes} minutes'")
    assert surplus() == flagged
    change(home.database, "DELETE FROM topic_incarnations")


def test_missing_flag_is_a_gap_only_when_it_was_raised_before_the_topic_was_deleted(raised: Raised) -> None:
    assert raised.reconcile(raised.frame()).counts.matched == 4
    make_flags_topic_again()
    raised.begin(4)
    raised.commit(1, 4, 100)
    found = raised.reconcile(raised.frame())
    assert {each.where: each.cls.value for each in found.differences} == {
        **{f"{TP} offset {offset}": "gap" for offset in (0, 1, 2)},
        f"{TP} offset 4": "unexplained",
    }
    gap = next(each for each in found.differences if each.where == f"{TP} offset 0")
    assert gap.evidence.startswith("the topic was deleted since, and with it the flag that the rules give, {")
