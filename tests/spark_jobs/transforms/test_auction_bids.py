"""auction_bids: what is a bid, what is none, and what is summed up of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.producing.broken_messages import broken_json
from include.producing.messages import auction_bids as producer
from include.producing.messages import nest_cameras as neighbour
from tests.support.views import aggregated

pytestmark = pytest.mark.spark

NOW = datetime(2026, 11, 20, 5, 30, tzinfo=UTC)
BID = {
    "bid_id": "b1",
    "auction_id": "a1",
    "category": "toys",
    "seller": "s1",
    "bidder": "p1",
    "currency": "EUR",
    "amount": 12.34,
    "bid_time": "2026-11-20T05:29:59.500Z",
}
KAFKA_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
ROWS = "category STRING, currency STRING, seller STRING, bidder STRING, auction_id STRING, amount DECIMAL(9, 2), event_time TIMESTAMP"  # noqa: E501


def decoded(spark: Any, values: list[bytes | None]) -> list[Any]:
    """A row per value, in their order."""
    from spark_jobs.decoding.records import decode

    rows = [(None, value, "auction-bids", 0, offset, NOW, []) for offset, value in enumerate(values)]
    found = decode(load_pipeline("auction_bids"), spark.createDataFrame(rows, KAFKA_DDL)).collect()
    assert sorted(row.kafka_offset for row in found) == list(range(len(values)))
    return sorted(found, key=lambda row: row.kafka_offset)


def changed(**changes: Any) -> bytes:
    return json.dumps({**BID, **changes}).encode()


def test_bid_is_archived_with_its_exact_amount_when_it_has_no_key(spark: Any) -> None:
    (row,) = decoded(spark, [changed()])
    assert (row.fate, row.bid_id, row.amount) == ("archived", "b1", Decimal("12.34"))
    assert row.bid_time == datetime(2026, 11, 20, 5, 29, 59, 500_000)


@pytest.mark.parametrize("amount", ["0.01", "9999999.99", "1e3", "12.340", "5"])
def test_amount_is_archived_when_it_is_whole_cents_within_the_bounds(spark: Any, amount: str) -> None:
    (row,) = decoded(spark, [changed().replace(b"12.34", amount.encode())])
    assert (row.fate, row.amount) == ("archived", Decimal(amount))


def test_bid_is_quarantined_for_its_reason_when_it_is_hostile(spark: Any) -> None:
    rng = random.Random(1)
    cases = [
        *producer.bad_messages(NOW, rng),
        *broken_json(changed(), 1_048_576, rng),
        ("required_missing", neighbour.message(NOW, rng)[1]),
        ("value_too_long", changed(bidder="x" * 1_000_000)),
        ("out_of_range", changed().replace(b"12.34", b"1e999999999")),
        ("out_of_range", changed().replace(b"12.34", b"-1e-999999999")),
        ("out_of_range", changed().replace(b"12.34", b"9" * 900)),
        ("out_of_range", changed(amount=9_999_999.999)),
        ("malformed_json", changed().replace(b"12.34", b"9" * 100_000)),
        ("wrong_type", changed(amount={"cents": 1234})),
        ("wrong_type", changed(amount=True)),
    ]
    found = decoded(spark, [value for _, value in cases])
    reasons = [(reason, value and value[:200]) for reason, value in cases]
    assert [(row.reason, value and value[:200]) for row, (_, value) in zip(found, cases, strict=True)] == reasons
    assert all(row.fate == "quarantined" and row.detail and row.bid_id is None for row in found)
    # As pipelines.md says: the column cannot hold what was sent.
    (detail,) = (row.detail for row, (_, value) in zip(found, cases, strict=True) if b"9999999.999" in (value or b""))
    assert detail == "amount is not within 0.01 and 9999999.99: -1.00"


def rows(spark: Any, *found: tuple[Any, ...]) -> Any:
    return spark.createDataFrame(found, ROWS)


def test_category_hours_add_up_exactly_when_currencies_differ(spark: Any) -> None:
    early, late = datetime(2026, 11, 20, 5, 59, 59), datetime(2026, 11, 20, 6)
    bids = [("toys", "EUR", "s", "b", "a", Decimal(cents) / 100, early) for cents in (10, 20, 999_999_999)]
    bids += [("toys", "USD", "s", "b", "a", Decimal("1.00"), early), ("toys", "EUR", "s", "b", "a", Decimal(1), late)]
    counted = aggregated("auction_bids", "category_hours", rows(spark, *bids))
    found = {(r.currency, r.window.start.hour): (r.bids, r.amount, r.amount_squared) for r in counted.collect()}
    squares = Decimal("0.01") + Decimal("0.04") + Decimal("9999999.99") ** 2
    assert found == {
        ("EUR", 5): (3, Decimal("10000000.29"), squares),
        ("USD", 5): (1, Decimal("1.00"), Decimal("1.00")),
        ("EUR", 6): (1, Decimal("1.00"), Decimal("1.00")),
    }
    declared = {field.name: field.dataType.simpleString() for field in counted.schema.fields}
    assert (declared["amount"], declared["amount_squared"]) == ("decimal(19,2)", "decimal(26,4)")


def test_pair_hours_count_bids_when_a_bidder_bids_on_a_seller(spark: Any) -> None:
    bids = [("toys", "EUR", seller, "b", "a", None, datetime(2026, 11, 20, 5)) for seller in ("s", "s", "t")]
    counted = aggregated("auction_bids", "pair_hours", rows(spark, *bids))
    found = {(r.bidder, r.seller): r.bids for r in counted.collect()}
    assert found == {("b", "s"): 2, ("b", "t"): 1}


def test_auction_is_listed_when_its_seller_bids(spark: Any) -> None:
    from spark_jobs.transforms.auction_bids import own_auctions

    moment = datetime(2026, 11, 20, 5)
    bids = [
        ("toys", "EUR", "s", "s", "a", Decimal(1), moment),
        ("toys", "EUR", "s", "s", "a", Decimal(3), moment),
        ("toys", "EUR", "t", "s", "b", Decimal(9), moment),
    ]
    assert [tuple(r) for r in own_auctions(rows(spark, *bids)).collect()] == [("s", "a", 2, Decimal("3.00"), "EUR")]


def test_every_hour_has_overbids_bursts_and_shill_pairs_when_bids_are_generated() -> None:
    rng = random.Random(3)
    bids = [producer._bid(NOW + timedelta(milliseconds=360 * n), rng) for n in range(10_000)]
    far_above = [b for b in bids if b["amount"] > 15 * producer.MEDIAN_BIDS[b["category"]]]
    bursts = Counter(b["bidder"] for b in bids if b["bidder"].startswith("burst-"))
    pairs = Counter((b["seller"], b["bidder"]) for b in bids)
    assert 20 < len(far_above) < 100
    assert set(bursts) == {f"burst-{n}" for n in range(producer.BURSTS)}
    assert {pair for pair, _ in pairs.most_common(3)} == set(producer.SHILL_PAIRS.items())
    assert any(b["bidder"] == b["seller"] for b in bids)


HOURS = "category STRING, currency STRING, bids BIGINT, amount DECIMAL(19, 2), amount_squared DECIMAL(26, 4)"
PAIRS = "bidder STRING, seller STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, bids BIGINT"


def learned(spark: Any, hours: list[tuple[Any, ...]], pairs: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    from spark_jobs.transforms.auction_bids import limits

    window = (datetime(2026, 11, 20, 5), datetime(2026, 11, 20, 6))
    views = {
        "category_hours": spark.createDataFrame(hours, HOURS),
        "pair_hours": spark.createDataFrame([(*pair[:2], window, pair[2]) for pair in pairs], PAIRS),
    }
    return {tuple(row) for row in limits(views).collect()}


def test_limit_is_four_deviations_above_the_mean_when_there_are_enough_bids(spark: Any) -> None:
    # 20 bids of 10 and 20 of 30 in two hours: mean 20, deviation 10.
    hours = [
        ("toys", "EUR", 20, Decimal(200), Decimal(2_000)),
        ("toys", "EUR", 20, Decimal(600), Decimal(18_000)),
        ("toys", "USD", 29, Decimal(290), Decimal(2_900)),
        ("same", "EUR", 30, Decimal("9.90"), Decimal("3.2670")),
    ]
    assert learned(spark, hours, []) == {
        ("far_above", '["toys","EUR"]', Decimal("60.00")),
        ("far_above", '["same","EUR"]', Decimal("0.33")),
    }


def test_bidders_and_pairs_are_learned_when_they_are_in_a_burst_or_devoted(spark: Any) -> None:
    usual = [(f"b{n}", f"s{n % 7}", 1) for n in range(200)]
    burst = [("busy", f"s{n}", 4) for n in range(7)]
    pairs = [("friend", "s1", 6), ("friend", "s2", 5), ("own", "own", 9), ("split", "s1", 5), ("split", "s2", 6)]
    # Two intervals have rows of one hour, of which some bids came late.
    pairs += [("late", "s3", 4), ("late", "s4", 2), ("late", "s3", 1)]
    found = learned(spark, [], [*usual, *burst, *pairs])
    assert found == {
        ("burst", "busy", None),
        ("shill_pair", '["friend","s1"]', None),
        ("shill_pair", '["late","s3"]', None),
        ("shill_pair", '["split","s2"]', None),
    }


def test_bid_breaks_its_rules_when_they_apply_alone_or_together(spark: Any) -> None:
    from include.pipelines.spec import Limit
    from spark_jobs.transforms.auction_bids import flags

    limits = [
        Limit("far_above", '["toys","EUR"]', "60.00"),
        Limit("burst", "busy"),
        Limit("shill_pair", '["friend","s"]'),
        Limit("shill_pair", '["busy","busy"]'),
    ]
    moment = datetime(2026, 11, 20, 5)
    bids = [
        ("toys", "EUR", "s", "b", "usual", Decimal("60.00"), moment),
        ("toys", "EUR", "s", "b", "far", Decimal("60.01"), moment),
        ("toys", "USD", "s", "b", "other currency", Decimal("999.00"), moment),
        ("toys", "EUR", "s", "s", "own", Decimal(1), moment),
        ("toys", "EUR", "s", "friend", "pair", Decimal(1), moment),
        ("toys", "EUR", "t", "friend", "no pair", Decimal(1), moment),
        ("toys", "EUR", "busy", "busy", "all", Decimal(61), moment),
    ]

    def broken(known: list[Limit]) -> dict[str, list[tuple[str, str | None]]]:
        found = rows(spark, *bids).select("auction_id", flags(known).alias("rules")).collect()
        return {row.auction_id: [tuple(rule) for rule in row.rules] for row in found if row.rules}

    assert broken(limits) == {
        "far": [("far_above", "60.00")],
        "own": [("own_auction", None)],
        "pair": [("shill_pair", None)],
        "all": [("far_above", "60.00"), ("own_auction", None), ("burst", None), ("shill_pair", None)],
    }
    assert broken([]) == {"own": [("own_auction", None)], "all": [("own_auction", None)]}
