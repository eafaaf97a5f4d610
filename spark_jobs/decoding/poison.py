"""Finds the records that make decoding throw, and withholds them from decoding afterwards.

Spark reports that a task failed, but not at which record. So ranges are decoded again in halves, without writing, down
to single offsets: 2 k log2(n) reads for k such records among n.

A passing failure (a worker without memory, a disk, a network) is not a record's fault. So a record is blamed only when
it can be read undecoded and throws the same error each time, while the other records of its micro-batch decode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.errors import TidemarkError
from include.offsets import Coordinates, OffsetRange, TopicPartition
from spark_jobs.decoding.reasons import because
from spark_jobs.spark.failures import SPARK_FAILURES, root_cause, translate

POISON = "poison"
"""Reason of a record that made its micro-batch throw."""

MOST = 64
"""When more parts than this throw at the same level, the code is broken, not a record."""

CONFIRMED = 2
"""How often a record must throw again, after the search has isolated it, before it is blamed."""

Throws = Callable[[Sequence[OffsetRange]], str | None]
"""Decodes or only reads ranges; returns the error that this throws, or None."""


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


def find_poison(ranges: Sequence[OffsetRange], throws: Throws, read_throws: Throws) -> dict[Coordinates, str]:
    """Return the records that throw on their own, with what they throw; none when no single record does.

    `throws` decodes, `read_throws` only reads. Raises TidemarkError when more than `MOST` parts throw, when records
    cannot be read even undecoded, and when other records throw intermittently.
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
    return _confirmed(ranges, poison, throws, read_throws)


def _confirmed(
    ranges: Sequence[OffsetRange], poison: Mapping[Coordinates, str], throws: Throws, read_throws: Throws
) -> dict[Coordinates, str]:
    """Return the records if each throws the same again, while all others of the ranges decode; else none of them."""
    found = {OffsetRange(TopicPartition(c[0], c[1]), c[2], c[2] + 1): c for c in poison}
    others = without(ranges, found)
    for _ in range(CONFIRMED if poison else 0):
        unread = read_throws([*found])
        if unread:
            _check_readable(found, others, read_throws)
        if (thrown := unread or (throws(others) if others else None)) is not None:
            raise TidemarkError(
                f"{', '.join(map(str, ranges))} {'cannot be read, undecoded' if unread else 'fails now and then'}: "
                f"{thrown}; no record is blamed for that, nothing was committed",
                remedy="check the machine (memory, disk, network) and start again",
            )
        # The text after the error's kind may differ from try to try.
        if any(_kind(throws([record]) or "") != _kind(poison[at]) for record, at in found.items()):
            return {}
    return dict(poison)


def _check_readable(found: Iterable[OffsetRange], others: Sequence[OffsetRange], read_throws: Throws) -> None:
    """Raise TidemarkError that names the records which alone cannot be read, while all others can."""
    unreadable = [(record, thrown) for record in found if (thrown := read_throws([record]))]
    if unreadable and not (others and read_throws(others)):
        at = ", ".join(f"{record.topic_partition} offset {record.from_offset}" for record, _ in unreadable)
        raise TidemarkError(
            f"{at} cannot be read by Spark, undecoded: {unreadable[0][1]}; nothing was committed",
            remedy="if it stays so after another start: “A record that cannot be read” in include/docs/runbook.md",
        )


def _kind(thrown: str) -> str:
    return thrown.partition(":")[0]


def without(ranges: Sequence[OffsetRange], records: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the ranges without these single offsets."""
    left = list(ranges)
    for record in records:
        at = record.from_offset
        left = [
            part
            for each in left
            for part in (
                (replace(each, until_offset=at), replace(each, from_offset=at + 1))
                if each.holds(record.topic_partition, at)
                else (each,)
            )
        ]
    return [each for each in left if len(each)]


def halves(ranges: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Split the ranges into two parts with the same number of offsets, give or take one."""
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
    """Return the `withheld` column of `decode` for a few records by their coordinates, each with its detail.

    None for no records. They become literals of the plan; for many, join a frame instead.
    """
    if not failures:
        return None
    at = F.concat_ws(" ", "topic", "partition", "offset")
    withheld = F.lit(None)
    for detail, group in groupby(sorted(failures, key=lambda c: (failures[c], c)), key=lambda c: failures[c]):
        known = [f"{topic} {partition} {offset}" for topic, partition, offset in group]
        withheld = F.when(at.isin(known), because(reason, detail)).otherwise(withheld)
    return withheld
