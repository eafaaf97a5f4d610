"""Flags after an erasure: those of erased records, and of limits that named the person, are explained, no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from include.erasure.keys import Keys, hashes_of
from include.ledger.erasures import intent
from include.ledger.erasures.intent import Found, Request
from include.ledger.quarantine import RecordKey
from include.ledger.streams import flags as flag_ledger
from tests.conftest import Home
from tests.support import attempts as made
from tests.support.raised_flags import BIDS, LIMITS, NAME, PERSON, TP, Raised, raising

pytestmark = [pytest.mark.spark, pytest.mark.services]


@pytest.fixture(scope="module")
def raised(home: Home, spark: Any) -> Iterator[Raised]:
    """All bids are committed, and their flags are in the topic, the third one's first, by a clock two hours behind."""
    with raising(home, spark) as found:
        found.commit(0, 0, 100)
        *others, third = sorted(found.flags(), key=lambda each: json.loads(each[0])["kafka_offset"] == 2)
        found.produce(third, at=datetime.now(UTC) - timedelta(hours=2))
        found.produce(*others)
        yield found


def test_flag_is_matched_when_its_timestamp_is_long_before_the_run_that_raised_it(raised: Raised) -> None:
    counts = raised.reconcile(raised.frame()).counts
    assert (counts.matched, counts.unexplained) == (4, 0)


@pytest.fixture(scope="module")
def erased(raised: Raised) -> int:
    """The number of the person's erasure, whose one bid is the first."""
    assert raised.reconcile(raised.frame()).counts.matched == 4
    request = Request(NAME, ["bidder"], "asked", "me@here", "00" * 16, hashes_of([PERSON], "00" * 16), False)
    bid = RecordKey(made.TOPIC, "id", 0, 0)
    return intent.begin(raised.lease, request, Found({bid}, set(), set(), 1), Keys([PERSON]))


def test_flags_are_explained_when_their_record_or_limit_was_erased(raised: Raised, erased: int) -> None:
    assert flag_ledger.limits_of(NAME, [raised.version])[raised.version] == [LIMITS[1]]
    assert flag_ledger.erased_rules(NAME) == {raised.version: ["burst", "shill_pair"]}
    found = raised.reconcile(raised.frame(BIDS[1:], first=1))
    assert (found.counts.matched, found.counts.unexplained) == (1, 0)
    places = sorted((each.cls.value, each.where) for each in found.differences)
    assert places == [("erased", f"{TP} offset {offset}") for offset in (0, 1, 4, 4)]
    assert PERSON not in str(found.differences)


def test_invented_and_missing_flags_stay_unexplained_when_limits_of_their_version_were_erased(
    raised: Raised, erased: int
) -> None:
    place = {"kafka_offset": 3, "kafka_partition": 0, "kafka_topic": made.TOPIC}
    value = {**place, "limits_version": raised.version, "rules": [{"rule": "far_above", "above": "50.00"}]}
    raised.produce((json.dumps(place), json.dumps(value)))
    with_one_more = raised.frame([*BIDS[1:], ("Erna", "Erna", False)], first=1)
    found = raised.reconcile(with_one_more)
    assert found.counts.unexplained == 2
    unexplained = sorted(each.where for each in found.differences if each.cls.value == "unexplained")
    assert unexplained == [f"{TP} offset {offset}" for offset in (3, 5)]
