"""Flags that their topic may have lost: to retention, which cuts topic partitions at different times, or as a whole."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include import kafka
from include.kafka.topics import placed_at
from include.ledger.streams.flags import InForce
from include.offsets import OffsetRange
from spark_jobs.views.speed_topic import CLOCKS_APART


def may_be_cut(topic: str, since: datetime, raised: DataFrame) -> Column:
    """Return whether retention may have removed the flag of the column `key`, raised at that time or later.

    `raised` are flags that the topic has; columns: key, flag_partition. A flag lies in its key's topic partition. Where
    that is unknown, because no flag is left or some lie elsewhere (the topic has got more topic partitions since, or
    another partitioner is set), one that was cut may have held it.
    """
    bounds = kafka.offset_bounds(kafka.topic_partitions_of(kafka.describe_topics([topic]).values()))
    firsts = {tp: kafka.first_timestamp({tp: ends}) for tp, ends in bounds.items() if ends[0] > 0}
    cut = [tp.partition for tp, first in firsts.items() if first is None or first > since]
    # In a quiet topic partition the first message that is left may be newer, although none since then was cut.
    if not cut or _keeps(topic, since):
        return F.lit(False)
    if len(cut) == len(bounds):
        return F.lit(True)

    def at(key: str | None) -> int | None:
        return None if key is None else placed_at(key.encode(), len(bounds))

    of_key = F.udf(at, "INT")(F.col("key"))
    is_placed = raised.agg(F.bool_and(of_key == F.col("flag_partition")).alias("placed")).first()
    return of_key.isin(cut) if is_placed is not None and is_placed["placed"] else F.lit(True)


def _keeps(topic: str, since: datetime) -> bool:
    """Return whether retention, by time alone, keeps all messages that were written since then.

    One without a limit does not count: where something was cut, it had another before.
    """
    config = kafka.topic_config(topic)
    if config.get("retention.bytes") != "-1":
        return False
    age = datetime.now(UTC) - since
    return (age + CLOCKS_APART).total_seconds() * 1000 < int(config.get("retention.ms", 0))


def of_deleted_topics(topic: str, forces: Iterable[InForce]) -> list[OffsetRange]:
    """Return the ranges whose flags were written to a topic of this name that was deleted since."""
    present = kafka.describe_topics([topic]).get(topic)
    ids = {None, present.topic_id if present else None}
    return [force.range for force in forces if force.flags_topic_id not in ids]
