"""Finding the records that make a decoding throw.

Spark tells that a task failed, not which record it was at. So ranges are decoded again in halves, without
writing, down to single offsets: 2 k log2(n) reads for k such records among n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame

from include.errors import TidemarkError
from include.offsets import Coordinates, OffsetRange
from spark_jobs.spark.failures import SPARK_FAILURES, root_cause, translate

MOST = 64
"""With more parts than this throwing side by side it is the code that is broken, not a record."""

Throws = Callable[[Sequence[OffsetRange]], str | None]


def thrown_by(rows: DataFrame) -> str | None:
    """What computing all rows and columns throws, one line; None when it does not throw.

    Raises what a service's failure is; that is nobody's record.
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
    """The records that throw on their own, with what they throw; none when no single record does.

    Raises TidemarkError when more than `MOST` parts throw side by side.
    """
    parts = [([each for each in ranges if len(each)], error)] if (error := throws(ranges)) else []
    found: dict[Coordinates, str] = {}
    while parts:
        if len(parts) + len(found) > MOST:
            raise TidemarkError(
                f"more than {MOST} parts of {', '.join(map(str, ranges))} throw, e.g. {parts[0][1]}",
                remedy="this is the transform or the decoder, not a record: correct it and start again",
            )
        smaller = []
        for part, thrown in parts:
            if sum(map(len, part)) == 1:
                (only,) = part
                tp = only.topic_partition
                found[tp.topic, tp.partition, only.from_offset] = thrown
            else:
                smaller += [(half, again) for half in halves(part) if (again := throws(half))]
        parts = smaller
    return found


def halves(ranges: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """The ranges in two parts of as many offsets each, give or take one."""
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
