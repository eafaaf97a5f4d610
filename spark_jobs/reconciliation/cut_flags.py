"""Flags that retention may have removed from their topic, which cuts each topic partition at another time."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include import kafka
from include.kafka.topics import placed_at


def may_be_cut(topic: str, since: datetime, raised: DataFrame) -> Column:
    """Return whether retention may have removed the flag of the column `key`, raised at that time or later.

    `raised` are flags that the topic has; columns: key, flag_partition. A flag lies in its key's topic partition. Where
    that is unknown, because no flag is left or some lie elsewhere (the topic has got more topic partitions since, or
    another partitioner is set), one that was cut may have held it.
    """
    bounds = kafka.offset_bounds(kafka.topic_partitions_of(kafka.describe_topics([topic]).values()))
    firsts = {tp: kafka.first_timestamp({tp: ends}) for tp, ends in bounds.items() if ends[0] > 0}
    cut = [tp.partition for tp, first in firsts.items() if first is None or first > since]
    if not cut or len(cut) == len(bounds):
        return F.lit(bool(cut))

    def at(key: str | None) -> int | None:
        return None if key is None else placed_at(key.encode(), len(bounds))

    of_key = F.udf(at, "INT")(F.col("key"))
    is_placed = raised.agg(F.bool_and(of_key == F.col("flag_partition")).alias("placed")).first()
    return of_key.isin(cut) if is_placed is not None and is_placed["placed"] else F.lit(True)
