"""Event times before 1970, where Spark's watermark begins: the stream drops their windows, and intervals know of it."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conftest import Home, iso, last_hours
from tests.support.checkout import Checkout, copy_checkout
from tests.support.hits import Window, counts_by_zip, told_by_topic

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(2)
STREAM = ("stream", "isp_hits", "--until-caught-up")
OLD = [datetime(1969, 7, 20, 20, 17, 40, tzinfo=UTC), datetime(1950, 1, 1, tzinfo=UTC)]
# The first of its two windows ends before 1970, the second one after it.
EVE = datetime(1969, 12, 31, 23, 53, tzinfo=UTC)


@pytest.fixture(scope="module")
def unbounded(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A deployment whose isp_hits takes hits of a hundred years."""
    checkout = copy_checkout(tmp_path_factory.mktemp("unbounded") / "checkout", home)
    checkout.edit("include/pipelines/isp_hits.py", 'behind="30d"', 'behind="36525d"')
    return checkout


def produce(home: Home, times: list[datetime]) -> list[dict[str, Any]]:
    producer = home.producer()
    arrived = int((START + timedelta(minutes=30)).timestamp() * 1000)
    for at in times:
        hit = {"zipcode": "94103", "hittime": iso(at), "isp": "Northwind Cable", "user": "u"}
        producer.produce("isp-hits", json.dumps(hit).encode(), timestamp=arrived)
    assert producer.flush(30) == 0
    return [{"zipcode": "94103", "seconds": at.timestamp()} for at in times]


def interval(unbounded: Checkout) -> dict[str, Any]:
    bounds = ("--from", iso(START), "--to", iso(START + timedelta(hours=1)))
    verdict: dict[str, Any] = unbounded.json("interval", "isp_hits", *bounds)
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["registered"]
    return verdict


def in_table(unbounded: Checkout) -> Counter[Window]:
    query = (
        "SELECT zipcode, unix_seconds(window.start) AS start, sum(hits) AS n FROM lake.isp_hits_by_zip GROUP BY 1, 2"
    )
    return Counter({(row["zipcode"], row["start"]): row["n"] for row in unbounded.json("sql", query, "--json")})


def test_rows_are_late_when_their_windows_end_before_the_first_watermark(home: Home, unbounded: Checkout) -> None:
    admin = AdminClient({"bootstrap.servers": home.kafka})
    admin.create_topics([NewTopic("isp-hits", 2)])["isp-hits"].result(30)
    hits = []
    # The second micro-batch has a watermark of before, too; the third one drops by one of today.
    for times in ([*OLD, EVE], [OLD[0], EVE, START], [OLD[1], EVE, START]):
        hits += produce(home, times)
        unbounded.run(*STREAM)
    verdict = interval(unbounded)
    counted = counts_by_zip(hits)
    told = told_by_topic(home.kafka, "isp-hits-by-zip", "zipcode")
    assert told
    assert verdict["reconciliation"]["late"] == counted.total() - sum(told.values()) > 0
    assert in_table(unbounded) == counted
    late = [each["evidence"] for each in verdict["differences"] if each["class"] == "late"]
    assert any("1970-01-01T00:00:00Z" in each for each in late)


def test_nothing_is_late_when_a_new_generation_began_with_all_of_it(home: Home, unbounded: Checkout) -> None:
    unbounded.run("new-generation", "isp_hits", "--reason", "test")
    unbounded.run(*STREAM)
    assert interval(unbounded)["reconciliation"]["late"] == 0
