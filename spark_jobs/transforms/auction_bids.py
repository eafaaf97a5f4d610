"""auction_bids: bids out of a message, and what is summed up of them."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def bids(message: Column) -> Column:
    """The bid of a message: array of one struct; `amount` is decimal(9, 2).

    An amount that is none of whole cents below ten million is -1, which no rule lets pass.
    """
    amount = message["amount"]
    in_cents = (F.abs(amount) < 10_000_000) & (F.round(amount, 2) == amount)
    fields = ("bid_id", "auction_id", "category", "seller", "bidder", "currency", "bid_time")
    return F.array(
        F.struct(
            *(message[name].alias(name) for name in fields),
            F.when(in_cents, amount.try_cast("DECIMAL(9, 2)"))
            .when(amount.isNotNull(), F.lit(-1).cast("DECIMAL(9, 2)"))
            .alias("amount"),
        )
    )


def every_bid(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    """All bids. Columns: those of `archive`."""
    return archive


def category_hours(bids: DataFrame) -> DataFrame:
    """Count bids and sum up their amounts per category, currency and hour of `event_time`.

    Columns: category, currency string, window struct<start, end> (UTC), bids bigint, amount decimal(19, 2),
    amount_squared decimal(26, 4). From these sums follow mean and standard deviation over any hours.
    """
    squared = F.sum(F.col("amount") * F.col("amount")).cast("DECIMAL(26, 4)")
    return (
        bids.groupBy("category", "currency", F.window("event_time", "1 hour").alias("window"))
        .agg(F.count(F.lit(1)).alias("bids"), F.sum("amount").alias("amount"), squared.alias("amount_squared"))
        .select("category", "currency", "window", "bids", "amount", "amount_squared")
    )


def pair_hours(bids: DataFrame) -> DataFrame:
    """Count bids per bidder, seller and hour of `event_time`.

    Columns: bidder, seller string, window struct<start, end> (UTC), bids bigint.
    """
    return (
        bids.groupBy("bidder", "seller", F.window("event_time", "1 hour").alias("window"))
        .agg(F.count(F.lit(1)).alias("bids"))
        .select("bidder", "seller", "window", "bids")
    )


def own_auctions(archive: DataFrame) -> DataFrame:
    """Sellers that bid in their own auctions.

    Columns: seller, auction_id string, bids bigint, highest decimal(9, 2), currency string.
    """
    return (
        archive.where(F.col("bidder") == F.col("seller"))
        .groupBy("seller", "auction_id", "currency")
        .agg(F.count(F.lit(1)).alias("bids"), F.max("amount").alias("highest"))
        .select("seller", "auction_id", "bids", "highest", "currency")
    )
