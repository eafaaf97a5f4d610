"""Auction bids: every bid archived, possible fraud flagged at once by limits that the batch layer learns."""

from __future__ import annotations

from include.pipelines.spec import (
    AdditiveView,
    Archive,
    Between,
    CompactedTopic,
    EventTimeWithin,
    Flags,
    Json,
    KafkaTopics,
    Listing,
    MaxBytes,
    Pipeline,
    Required,
    Threshold,
    TimeWindow,
)

BID = """
    bid_id STRING, auction_id STRING, category STRING, seller STRING, bidder STRING, currency STRING,
    bid_time TIMESTAMP
"""

NAMES = ("bid_id", "auction_id", "category", "seller", "bidder")

PIPELINE = Pipeline(
    name="auction_bids",
    description="Auction bids: every bid archived, possible fraud flagged in real time",
    source=KafkaTopics(subscribe=("auction-bids",)),
    decoder=Json(schema=f"{BID}, amount DOUBLE"),
    archive=Archive(
        rows="bids",
        columns=f"{BID}, amount DECIMAL(9, 2)",
        event_time="bid_time",
        rules=(
            *(Required(name) for name in (*NAMES, "currency", "amount", "bid_time")),
            *(MaxBytes(name, 100 if name == "category" else 200) for name in NAMES),
            MaxBytes("currency", 3),
            Between("amount", 0.01, 9_999_999.99),
            EventTimeWithin(behind="30d", ahead="1h"),
        ),
        description="one row per bid",
    ),
    views=(
        AdditiveView(
            name="category_hours",
            rows="every_bid",
            aggregate="category_hours",
            key=("category", "currency", "window"),
            measures=("bids", "amount", "amount_squared"),
            columns="category STRING, currency STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, "
            "bids BIGINT, amount DECIMAL(19, 2), amount_squared DECIMAL(26, 4)",
            window="window",
            windows=TimeWindow("1h"),
            speed=CompactedTopic("auction-category-hours", watermark="1h"),
            description="bids, their amounts and squared amounts per category, currency and hour of the bid",
        ),
        AdditiveView(
            name="pair_hours",
            rows="every_bid",
            aggregate="pair_hours",
            key=("bidder", "seller", "window"),
            measures=("bids",),
            columns="bidder STRING, seller STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, bids BIGINT",
            window="window",
            windows=TimeWindow("1h"),
            speed=CompactedTopic("auction-pair-hours", watermark="1h"),
            description="bids per bidder, seller and hour of the bid",
        ),
    ),
    flags=Flags(
        topic="auction-flags",
        rules="flags",
        limits="limits",
        learned_from=("category_hours", "pair_hours"),
        columns=("bid_id", "auction_id", "category", "seller", "bidder", "amount", "currency"),
    ),
    reports=(
        Threshold("Busy categories per currency and hour", view="category_hours", measure="bids", above=500),
        Listing(
            "Sellers that bid in their own auctions",
            rows="own_auctions",
            columns=("seller", "auction_id", "bids", "highest", "currency"),
        ),
    ),
)
