"""Flags that were lost with their topic, which was deleted and made again."""

from __future__ import annotations

from typing import Any

import pytest

from include import kafka
from tests.conftest import Home, wait_for
from tests.support.raised_flags import FLAGS, TP, raising

pytestmark = [pytest.mark.spark, pytest.mark.services]


def make_flags_topic_again() -> None:
    client = kafka.admin()
    client.delete_topics([FLAGS])[FLAGS].result(30)
    wait_for("the topic to go", lambda: FLAGS not in kafka.describe_topics([FLAGS]), 30)
    kafka.create_topic(FLAGS, 1)
    wait_for("the topic", lambda: FLAGS in kafka.describe_topics([FLAGS]), 30)


def test_missing_flag_is_a_gap_only_when_it_was_raised_before_the_topic_was_deleted(home: Home, spark: Any) -> None:
    with raising(home, spark) as raised:
        raised.commit(0, 0, 4)
        raised.produce(*raised.flags())
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
