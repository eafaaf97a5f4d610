"""auction_bids: the bid in a message, sums of bids, and the rules that flag possible fraud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.pipelines.spec import Limit

FAR_ABOVE, OWN_AUCTION, BURST, SHILL_PAIR = "far_above", "own_auction", "burst", "shill_pair"
"""Rules: an amount far above the category's usual; a seller's own bid; a bidder known for bursts; a bidder who bids
mostly on one seller."""

_DEVIATIONS = 4
_LEAST_BIDS = 30
_TIMES_USUAL = 10
_LEAST_BURST = 10
_LEAST_PAIR = 5
_MOST = 500
"""Most subjects of a rule, because limits are part of the query."""


def bids(message: Column) -> Column:
    """Return the bid of a message, a struct; `amount` is decimal(9, 2).

    An amount that is not whole cents below ten million becomes -1, which breaks a rule.
    """
    amount = message["amount"]
    in_cents = (F.abs(amount) < 10_000_000) & (F.round(amount, 2) == amount)
    fields = ("bid_id", "auction_id", "category", "seller", "bidder", "currency", "bid_time")
    return F.struct(
        *(message[name].alias(name) for name in fields),
        F.when(in_cents, amount.try_cast("DECIMAL(9, 2)"))
        .when(amount.isNotNull(), F.lit(-1).cast("DECIMAL(9, 2)"))
        .alias("amount"),
    )


def every_bid(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    """Return all bids. Columns: those of `archive`."""
    return archive


def category_hours(bids: DataFrame, window: Column) -> DataFrame:
    """Count bids and sum up their amounts per category, currency and window.

    Columns: category, currency string, window struct<start, end> (UTC), bids bigint, amount decimal(19, 2),
    amount_squared decimal(26, 4). From these sums follow mean and standard deviation over any hours.
    """
    squared = F.sum(F.col("amount") * F.col("amount")).cast("DECIMAL(26, 4)")
    return (
        bids.groupBy("category", "currency", window)
        .agg(F.count(F.lit(1)).alias("bids"), F.sum("amount").alias("amount"), squared.alias("amount_squared"))
        .select("category", "currency", "window", "bids", "amount", "amount_squared")
    )


def pair_hours(bids: DataFrame, window: Column) -> DataFrame:
    """Count bids per bidder, seller and window.

    Columns: bidder, seller string, window struct<start, end> (UTC), bids bigint.
    """
    return (
        bids.groupBy("bidder", "seller", window)
        .agg(F.count(F.lit(1)).alias("bids"))
        .select("bidder", "seller", "window", "bids")
    )


def own_auctions(archive: DataFrame) -> DataFrame:
    """Return sellers that bid in their own auctions.

    Columns: seller, auction_id string, bids bigint, highest decimal(9, 2), currency string.
    """
    return (
        archive.where(F.col("bidder") == F.col("seller"))
        .groupBy("seller", "auction_id", "currency")
        .agg(F.count(F.lit(1)).alias("bids"), F.max("amount").alias("highest"))
        .select("seller", "auction_id", "bids", "highest", "currency")
    )


def limits(views: Mapping[str, DataFrame]) -> DataFrame:
    """Learn the limits of the rules from rows of the views `category_hours` and `pair_hours`.

    far_above: mean + 4 standard deviations of a category's amounts, where there are 30 bids or more.
    burst: bidders with at least 10 bids in an hour, and ten times the bids of the average bidder in an hour.
    shill_pair: at least 5 bids in an hour on one seller, half of the bidder's bids in that hour or more.
    Columns: rule, subject string, above decimal(12, 2) (null where there is no number).
    """
    found = (_far_above(views["category_hours"]), _bursts(views["pair_hours"]), _shill_pairs(views["pair_hours"]))
    return reduce(DataFrame.unionByName, found)


def _far_above(hours: DataFrame) -> DataFrame:
    total = hours.groupBy("category", "currency").agg(
        F.sum("bids").alias("bids"), *(F.sum(name).cast("double").alias(name) for name in ("amount", "amount_squared"))
    )
    mean = F.col("amount") / F.col("bids")
    # Rounding may make it negative where all amounts are the same.
    variance = F.greatest(F.col("amount_squared") / F.col("bids") - mean * mean, F.lit(0.0))
    above = mean + _DEVIATIONS * F.sqrt(variance)
    return _most(total.where(F.col("bids") >= _LEAST_BIDS), FAR_ABOVE, category_of(), above.cast("DECIMAL(12, 2)"))


def _bursts(hours: DataFrame) -> DataFrame:
    per_hour = hours.groupBy("bidder", "window").agg(F.sum("bids").alias("bids"))
    usual = F.broadcast(per_hour.agg((F.avg("bids") * _TIMES_USUAL).alias("limit")))
    many = per_hour.crossJoin(usual).where((F.col("bids") >= _LEAST_BURST) & (F.col("bids") >= F.col("limit")))
    bidders = many.groupBy("bidder").agg(F.max("bids").alias("bids"))
    return _most(bidders, BURST, F.col("bidder"), F.lit(None).cast("DECIMAL(12, 2)"))


def _shill_pairs(hours: DataFrame) -> DataFrame:
    # Each interval that read bids of an hour has a row of it.
    of_pair = hours.groupBy("bidder", "seller", "window").agg(F.sum("bids").alias("bids"))
    of_bidder = hours.groupBy("bidder", "window").agg(F.sum("bids").alias("all_bids"))
    devoted = of_pair.join(of_bidder, ["bidder", "window"]).where(
        (F.col("bids") >= _LEAST_PAIR) & (2 * F.col("bids") >= F.col("all_bids")) & (F.col("bidder") != F.col("seller"))
    )
    pairs = devoted.groupBy("bidder", "seller").agg(F.sum("bids").alias("bids"))
    return _most(pairs, SHILL_PAIR, pair_of(), F.lit(None).cast("DECIMAL(12, 2)"))


def _most(subjects: DataFrame, rule: str, subject: Column, above: Column) -> DataFrame:
    """Return the subjects with the most `bids`, as limits of a rule."""
    named = subjects.select("bids", F.lit(rule).alias("rule"), subject.alias("subject"), above.alias("above"))
    return named.orderBy(F.col("bids").desc(), "subject").limit(_MOST).select("rule", "subject", "above")


def category_of() -> Column:
    """Return a row's category and currency as the subject of a limit."""
    return F.to_json(F.array("category", "currency"))


def pair_of() -> Column:
    """Return a row's bidder and seller as the subject of a limit."""
    return F.to_json(F.array("bidder", "seller"))


def flags(limits: Sequence[Limit]) -> Column:
    """Return the rules that a bid breaks under the limits: array<struct<rule string, above string>>, empty for none.

    `above` is the limit that the amount is above, null for the other rules.
    """
    known = {rule: [each for each in limits if each.rule == rule] for rule in (FAR_ABOVE, BURST, SHILL_PAIR)}
    usual = [F.lit(part) for each in known[FAR_ABOVE] for part in (each.subject, each.above)]
    limit = F.try_element_at(F.create_map(*usual), category_of()) if usual else F.lit(None).cast("string")

    def is_known(rule: str, subject: Column) -> Column:
        return subject.isin([each.subject for each in known[rule]]) if known[rule] else F.lit(False)

    broken = (
        (FAR_ABOVE, F.col("amount") > limit.cast("DECIMAL(12, 2)"), limit),
        (OWN_AUCTION, F.col("bidder") == F.col("seller"), None),
        (BURST, is_known(BURST, F.col("bidder")), None),
        (SHILL_PAIR, is_known(SHILL_PAIR, pair_of()), None),
    )
    found = (
        F.when(
            breaks,
            F.struct(
                F.lit(rule).alias("rule"), (F.lit(None) if above is None else above).cast("string").alias("above")
            ),
        )
        for rule, breaks, above in broken
    )
    return F.array_compact(F.array(*found))
