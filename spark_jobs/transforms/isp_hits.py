"""isp_hits: the hit in a message, and how hits are counted."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def hits(message: Column) -> Column:
    """Return the hit of a message, the message itself."""
    return message


def counted_hits(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    """Return all hits. Columns: those of `archive`, and `event_time`."""
    return archive


def hits_of_providers(archive: DataFrame, references: dict[str, DataFrame]) -> DataFrame:
    """Return the hits that name a provider. Columns: those of `archive`, and `event_time`."""
    return archive.where(F.col("isp").isNotNull())


def hits_by_zip(hits: DataFrame, window: Column) -> DataFrame:
    """Count hits per zip code and window; where windows overlap, a hit counts in each.

    Columns: zipcode string, window struct<start, end> (UTC), hits bigint.
    """
    return hits.groupBy("zipcode", window).agg(F.count(F.lit(1)).alias("hits")).select("zipcode", "window", "hits")


def hits_by_isp(hits: DataFrame, window: Column) -> DataFrame:
    """Count hits per internet provider and window.

    Columns: isp string, window struct<start, end> (UTC), hits bigint.
    """
    return hits.groupBy("isp", window).agg(F.count(F.lit(1)).alias("hits")).select("isp", "window", "hits")


def total_by_zip(hits: DataFrame) -> DataFrame:
    """Count hits per zip code. Columns: zipcode string, hits bigint."""
    return hits.groupBy("zipcode").agg(F.count(F.lit(1)).alias("hits")).select("zipcode", "hits")


def total_by_isp(hits: DataFrame) -> DataFrame:
    """Count hits per internet provider. Columns: isp string, hits bigint."""
    return hits.groupBy("isp").agg(F.count(F.lit(1)).alias("hits")).select("isp", "hits")


def regional_messages(counts: DataFrame) -> DataFrame:
    """Return the counts as messages for the topic of their half of the country. Columns: key, value, topic string.

    The key is the zip code, so that a region's reader gets the windows of a code in order.
    """
    value = F.to_json(
        F.struct("hits", F.col("window")["start"].alias("window_start"), "zipcode"),
        {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss'Z'"},
    )
    region = F.when(F.substring("zipcode", 1, 1) < "5", "isp-hits-east").otherwise("isp-hits-west")
    return counts.select(F.col("zipcode").alias("key"), value.alias("value"), region.alias("topic"))


def users_by_zip(archive: DataFrame) -> DataFrame:
    """Count users and hits per zip code. Columns: zipcode string, users bigint, hits bigint."""
    return (
        archive.groupBy("zipcode")
        .agg(F.count_distinct("user").alias("users"), F.count(F.lit(1)).alias("hits"))
        .select("zipcode", "users", "hits")
    )
