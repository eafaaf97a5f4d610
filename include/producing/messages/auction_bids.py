"""Generate bids of an auction house, some of them fraudulent: overbids, bursts and shill pairs."""

from __future__ import annotations

import json
import random
from datetime import datetime
from typing import Any

from include.producing.messages import format_milliseconds

MEDIAN_BIDS = {
    "books": 18.0,
    "toys": 35.0,
    "stamps": 60.0,
    "furniture": 240.0,
    "bicycles": 310.0,
    "cameras": 420.0,
    "watches": 1_900.0,
    "cars": 8_500.0,
}
"""Median bid by category, in the auction's currency."""

AUCTIONS = 400
SELLERS = 80
BIDDERS = 2_000

SHILL_PAIRS = {"seller-007": "bidder-0042", "seller-019": "bidder-0815", "seller-033": "bidder-1234"}
"""Accomplices who bid up a seller's auctions: bidder by seller."""

BURSTS = 5
"""Number of bidders that place bids in bursts, one bidder at a time."""


def auction(number: int) -> dict[str, str]:
    """Return the fields that all bids of an auction share."""
    return {
        "auction_id": f"auction-{number:05d}",
        "category": tuple(MEDIAN_BIDS)[number % len(MEDIAN_BIDS)],
        "seller": f"seller-{number % SELLERS:03d}",
        "currency": "USD" if number % 10 < 3 else "EUR",
    }


def _bid(moment: datetime, rng: random.Random) -> dict[str, Any]:
    kind = rng.random()
    number = rng.randrange(AUCTIONS)
    bidder = f"bidder-{rng.randrange(BIDDERS):04d}"
    if kind < 0.02:
        seller = rng.choice(tuple(SHILL_PAIRS))
        bidder = SHILL_PAIRS[seller]
        number = int(seller[-3:]) + SELLERS * rng.randrange(AUCTIONS // SELLERS)
    elif kind < 0.06:
        bidder = f"burst-{int(moment.timestamp()) // 600 % BURSTS}"
    elif kind < 0.065:
        bidder = auction(number)["seller"]
    median = MEDIAN_BIDS[auction(number)["category"]]
    far_above = rng.uniform(20, 60) if rng.random() < 0.005 else 1.0
    return {
        "bid_id": f"{rng.getrandbits(64):016x}",
        **auction(number),
        "bidder": bidder,
        "amount": round(median * rng.lognormvariate(0, 0.4) * far_above, 2),
        "bid_time": format_milliseconds(moment),
    }


def _value(bid: dict[str, Any]) -> bytes:
    return json.dumps(bid, separators=(",", ":")).encode()


def message(moment: datetime, rng: random.Random) -> tuple[bytes, bytes]:
    """Return key and value of one bid that is placed at `moment`."""
    bid = _bid(moment, rng)
    return bid["auction_id"].encode(), _value(bid)


def bad_messages(moment: datetime, rng: random.Random) -> list[tuple[str, bytes]]:
    """Return JSON messages that break a rule of the pipeline, as (reason, value)."""
    bid = _bid(moment, rng)

    def changed(**changes: object) -> bytes:
        return _value({**bid, **changes})

    infinite = _value({**bid, "amount": 0}).replace(b'"amount":0', b'"amount":1e999999999')
    return [
        ("malformed_json", changed(amount=float("nan"))),
        ("malformed_json", changed(amount=float("-inf"))),
        ("wrong_type", changed(amount="NaN")),
        ("wrong_type", changed(amount="Infinity")),
        ("wrong_type", changed(amount="lots")),
        ("wrong_type", changed(bid_time="at noon")),
        ("out_of_range", infinite),
        ("out_of_range", changed(amount=-5.0)),
        ("out_of_range", changed(amount=0)),
        ("required_missing", changed(amount=None)),
        ("out_of_range", changed(amount=10.005)),
        ("out_of_range", changed(amount=1e12)),
        ("value_too_long", changed(category="x" * 101)),
        ("required_missing", changed(category="")),
        ("required_missing", changed(bid_time=None)),
        ("required_missing", b'{"devices":{"cameras":{}},"structures":{}}'),
        ("event_time_out_of_bounds", changed(bid_time="0001-01-01T00:00:00.000Z")),
        ("event_time_out_of_bounds", changed(bid_time="9999-12-31T23:59:59.000Z")),
    ]
