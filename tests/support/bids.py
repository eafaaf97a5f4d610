"""The oracle of auction_bids in plain Python: which bids are good, which are flagged, and which flags there are."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import datetime
from decimal import Decimal
from typing import Any

from tests.support import audit
from tests.support.audit import Coordinates, Fates, Record

FLAGS = "auction-flags"


def bid_of(record: Record) -> dict[str, Any] | None:
    """The bid of a good message; None for one that must be in quarantine."""
    try:
        bid = json.loads(record.value or b"", parse_float=Decimal, parse_int=Decimal)
        amount, moment = bid["amount"], datetime.fromisoformat(bid["bid_time"]).timestamp() * 1000
        names = [bid[name] for name in ("bid_id", "auction_id", "category", "seller", "bidder", "currency")]
        good = (
            len(record.value or b"") <= 1_048_576
            and Decimal("0.01") <= amount <= Decimal("9999999.99")
            and amount == round(amount, 2)
            and all(isinstance(name, str) and 1 <= len(name) <= 100 for name in names)
            and record.timestamp - 30 * 86_400_000 <= moment <= record.timestamp + 3_600_000
        )
    except (ValueError, KeyError, TypeError, ArithmeticError):
        return None
    return bid if good else None


def fates_of(records: dict[Coordinates, Record]) -> Fates:
    bids = {coordinates: bid_of(record) for coordinates, record in records.items()}
    good = {coordinates for coordinates, bid in bids.items() if bid}
    return Fates({(*c, 0): bids[c] or {} for c in good}, good, set(), set(bids) - good)


def flags(bootstrap: str) -> dict[Coordinates, dict[str, Any]]:
    """The flags by the bid's coordinates; those of one version of the limits must not differ."""
    found: dict[tuple[Coordinates, int], bytes] = {}
    for record in audit.read_topic(bootstrap, FLAGS).values():
        assert record.key
        assert record.value
        value = json.loads(record.value)
        coordinates = (value["kafka_topic"], value["kafka_partition"], value["kafka_offset"])
        named = json.loads(record.key)
        assert (named["kafka_topic"], named["kafka_partition"], named["kafka_offset"]) == coordinates
        assert found.setdefault((coordinates, value["limits_version"]), record.value) == record.value
    return {c: json.loads(value, parse_float=Decimal) for (c, _), value in sorted(found.items())}


def expected_flags(
    bids: dict[Coordinates, dict[str, Any]], before: list[dict[str, Any]]
) -> dict[Coordinates, set[str]]:
    """The oracle: rules that each bid breaks, learned from the bids `before`, in plain Python."""
    amounts: dict[tuple[str, str], list[float]] = defaultdict(list)
    hourly: Counter[tuple[str, str]] = Counter()
    pairs: Counter[tuple[str, str, str]] = Counter()
    for bid in before:
        hour = bid["bid_time"][:13]
        amounts[bid["category"], bid["currency"]].append(float(bid["amount"]))
        hourly[bid["bidder"], hour] += 1
        pairs[bid["bidder"], bid["seller"], hour] += 1
    above = {}
    for category, found in amounts.items():
        if len(found) >= 30:
            mean = sum(found) / len(found)
            above[category] = mean + 4 * (sum((a - mean) ** 2 for a in found) / len(found)) ** 0.5
    usual = sum(hourly.values()) / len(hourly) if hourly else 0
    bursts = {bidder for (bidder, _), count in hourly.items() if count >= max(10, 10 * usual)}
    shills = {
        (bidder, seller)
        for (bidder, seller, hour), count in pairs.items()
        if count >= 5 and 2 * count >= hourly[bidder, hour] and bidder != seller
    }
    broken: dict[Coordinates, set[str]] = {}
    for coordinates, bid in bids.items():
        limit = above.get((bid["category"], bid["currency"]), float("inf"))
        assert abs(float(bid["amount"]) - limit) > 0.01, "this seed puts a bid onto its limit"
        rules = {
            "far_above": float(bid["amount"]) > limit,
            "own_auction": bid["bidder"] == bid["seller"],
            "burst": bid["bidder"] in bursts,
            "shill_pair": (bid["bidder"], bid["seller"]) in shills,
        }
        if any(rules.values()):
            broken[coordinates] = {rule for rule, breaks in rules.items() if breaks}
    return broken
