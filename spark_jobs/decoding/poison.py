"""Records that make a decoding throw: how they are found, and how they are left alone afterwards.

Spark tells that a task failed, not which record it was at. So ranges are decoded again in halves, without
writing, down to single offsets: 2 k log2(n) reads for k such records among n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.errors import TidemarkError
from include.offsets import Coordinates, OffsetRange
from spark_jobs.decoding.reasons import because
from spark_jobs.spark.failures import SPARK_FAILURES, root_cause, translate

POISON = "poison"
"""Reason of a record that made its micro-batch throw."""

MOST = 64
"""When more parts than these throw side by side, the code is broken, not a record."""

Throws = Callable[[Sequence[OffsetRange]], str | None]


def thrown_by(rows: DataFrame) -> str | None:
    """Return what computing all rows and columns throws, as one line; None when it does not throw.

    Raises the error of a service that fails: no record is to blame for that.
    """
    try:
        rows.write.format("noop").mode("overwrite").save()
    except SPARK_FAILURES as error:
        known = translate(error)
        if known is not None:
            raise known from error
        return root_cause(error)
    return None


def find_poison(ranges: Sequence[OffsetRange], throws: Throws) -> dict[Coordinates, str]:
    """Return the records that throw on their own, with what they throw; none when no single record does.

    Raises TidemarkError when more than `MOST` parts throw side by side.
    """
    parts = [([each for each in ranges if len(each)], error)] if (error := throws(ranges)) else []
    poison: dict[Coordinates, str] = {}
    while parts:
        if len(parts) + len(poison) > MOST:
            raise TidemarkError(
                f"more than {MOST} parts of {', '.join(map(str, ranges))} throw, e.g. {parts[0][1]}",
                remedy="this is the transform or the decoder, not a record: correct it and start again",
            )
        smaller = []
        for part, thrown in parts:
            if sum(map(len, part)) == 1:
                (only,) = part
                tp = only.topic_partition
                poison[tp.topic, tp.partition, only.from_offset] = thrown
            else:
                smaller += [(half, again) for half in halves(part) if (again := throws(half))]
        parts = smaller
    return poison


def halves(ranges: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Return the ranges in two parts of as many offsets each, give or take one."""
    room = sum(map(len, ranges)) // 2
    first: list[OffsetRange] = []
    second: list[OffsetRange] = []
    for each in ranges:
        cut = each.from_offset + min(room, len(each))
        room -= cut - each.from_offset
        for part, begin, end in ((first, each.from_offset, cut), (second, cut, each.until_offset)):
            if begin < end:
                part.append(OffsetRange(each.topic_partition, begin, end))
    return first, second


def withhold(failures: Mapping[Coordinates, str], reason: str = POISON) -> Column | None:
    """Return the `withheld` that `decode` takes, for a few records by their coordinates, each with its detail.

    None for none. The records become literals of the plan; many are joined instead.
    """
    if not failures:
        return None
    at = F.concat_ws(" ", "topic", "partition", "offset")
    withheld = F.lit(None)
    for detail, group in groupby(sorted(failures, key=lambda c: (failures[c], c)), key=lambda c: failures[c]):
        known = [f"{topic} {partition} {offset}" for topic, partition, offset in group]
        withheld = F.when(at.isin(known), because(reason, detail)).otherwise(withheld)
    return withheld
