"""A source's records as they come: each one decoded as the archive query decodes it, or with the reason why not.

It only reads: nothing here holds the lease, writes to the ledger, or joins a consumer group. Ranges are read as an
interval reads them, so that a record that makes the decoding throw is found and named, and the next ones are shown.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from include import kafka
from include.kafka.sources import existing_bounds, existing_topics, source_topic_partitions
from include.ledger.erasures.coordinates import erased_within
from include.monitor import exact_json
from include.monitor.text import clean
from include.offsets import ERASED, Coordinates, Fate, OffsetRange, TopicPartition
from include.pipelines.spec import Avro, Pipeline
from include.times import EPOCH, format_time
from spark_jobs.decoding.poison import find_poison, thrown_by, withhold
from spark_jobs.decoding.records import COORDINATES, archive_columns, decode
from spark_jobs.spark.failures import SPARK_FAILURES
from spark_jobs.spark.json_rows import row_json, row_of
from spark_jobs.spark.kafka_source import read_ranges
from spark_jobs.spark.log import log_of
from spark_jobs.spark.schemas import struct_of

AT_ONCE = 1_000
"""Most offsets of a topic partition that are decoded together."""

LOOK_AGAIN = 0.5
"""Seconds between two looks at a topic that had nothing new."""

VALUE_BYTES = 200
"""Bytes of an undecodable record's value that are shown."""

LINE = 2_000
"""Most characters of a line for people."""

_ORDER = ("kafka_timestamp", *COORDINATES[:3], "kafka_element")


@dataclass(frozen=True)
class TailedRecord:
    """A record, or one of its rows where it has several."""

    topic_partition: TopicPartition
    offset: int
    timestamp: str
    """ISO time in UTC, as Kafka has it."""
    fate: str
    """A `Fate`, or `erased`."""
    row: dict[str, Any] | None
    """What was decoded, by the archive's columns; None unless archived."""
    reason: str | None
    detail: str | None
    value: str | None
    """The first characters of a record that was not decoded."""

    def as_json(self) -> str:
        """Return a line of JSON."""
        tp = self.topic_partition
        record = {"topic": tp.topic, "partition": tp.partition, "offset": self.offset, "timestamp": self.timestamp}
        known = {"fate": self.fate, "row": self.row, "reason": self.reason, "detail": self.detail, "value": self.value}
        return exact_json.dumps(record | {name: each for name, each in known.items() if each is not None})

    def in_words(self) -> str:
        """Return a line without control characters."""
        if self.fate is Fate.QUARANTINED:
            content = f"{self.reason}: {self.detail or 'no detail'}; value {self.value!r}"
        else:
            content = exact_json.dumps(self.row, ensure_ascii=False) if self.row else "no rows"
        where = f"{self.topic_partition}@{self.offset}"
        return clean(f"{where} {self.timestamp} {self.fate}: {content}", LINE)


class TopicTail:
    """Reads a pipeline's source from its last offsets on."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, last: int) -> None:
        """Begin `last` offsets before the end of each topic partition."""
        self._spark = spark
        self._pipeline = _lenient(pipeline)
        self._last = last
        self._positions: dict[TopicPartition, int] = {}

    def ends(self) -> dict[TopicPartition, int]:
        """Return the end offset of each topic partition now. Raises ServiceUnreachable, UsageError without a topic."""
        return {tp: end for tp, (_, end) in existing_bounds(self._pipeline.name, self._pipeline.source).items()}

    def next_records(self, until: Mapping[TopicPartition, int] | None = None) -> list[TailedRecord]:
        """Return records that were not returned before, at most `AT_ONCE` offsets of each topic partition.

        Empty when there are none, or none below the offsets in `until`. Raises ServiceUnreachable, also of the ledger,
        which knows what was erased, and UsageError without a topic.
        """
        while True:
            ranges = self._next_ranges(until)
            if not any(map(len, ranges)):
                # The start is settled now, not when the first records come.
                self._positions |= {each.topic_partition: each.from_offset for each in ranges}
                return []
            records = self._decoded(ranges)
            self._positions |= {each.topic_partition: each.until_offset for each in ranges}
            # Offsets may hold no records: markers of transactions, and what was compacted away.
            if records:
                return records

    def _next_ranges(self, until: Mapping[TopicPartition, int] | None) -> list[OffsetRange]:
        ranges = []
        topics = existing_topics(self._pipeline.name, self._pipeline.source)
        for tp, (first, end) in kafka.offset_bounds(source_topic_partitions(self._pipeline.source, topics)).items():
            begin = self._begin(tp, first, end)
            last = end if until is None else min(end, until.get(tp, 0))
            until_offset = max(begin, min(last, begin + AT_ONCE))
            ranges.append(OffsetRange(tp, begin, until_offset, topics[tp.topic].topic_id))
        return ranges

    def _begin(self, tp: TopicPartition, first: int, end: int) -> int:
        known = self._positions.get(tp)
        if known is None:
            # A topic partition that appears later is shown from its beginning.
            return first if self._positions else max(first, end - self._last)
        if known > end:
            log_of().warning("%s ends at offset %d, before %d: it was created again", tp, end, known)
            return first
        if known < first:
            log_of().warning("%s: offsets %d to %d were removed before they were shown", tp, known, first - 1)
        return max(known, first)

    def _decoded(self, ranges: Sequence[OffsetRange]) -> list[TailedRecord]:
        def decoded(part: Sequence[OffsetRange], withheld: Column | None = None) -> DataFrame:
            return decode(self._pipeline, read_ranges(self._spark, part), withheld)

        try:
            rows = self._shown(decoded(ranges)).collect()
        except SPARK_FAILURES:
            poison = find_poison(
                ranges,
                lambda part: thrown_by(decoded(part)),
                lambda part: thrown_by(read_ranges(self._spark, part)),
            )
            if not poison:
                raise
            rows = self._shown(decoded(ranges, withhold(poison))).collect()
        has_decimals = "decimal(" in struct_of(self._pipeline.archive_columns).simpleString()
        erased = frozenset(erased_within(self._pipeline.name, ranges))
        return list(_without_erased((_record(row.asDict(), has_decimals) for row in rows), erased))

    def _shown(self, decoded: DataFrame) -> DataFrame:
        is_row = F.col("fate") == Fate.ARCHIVED
        as_json = F.when(is_row, row_json(archive_columns(self._pipeline))).alias("row")
        millis = F.unix_millis("kafka_timestamp").alias("millis")
        value = F.substring("value", 1, VALUE_BYTES).alias("value")
        return decoded.orderBy(*_ORDER).select(*COORDINATES[:3], millis, "fate", as_json, "reason", "detail", value)


def _record(row: Mapping[str, Any], has_decimals: bool) -> TailedRecord:
    text, value = row["row"], row["value"]
    return TailedRecord(
        TopicPartition(row["kafka_topic"], row["kafka_partition"]),
        row["kafka_offset"],
        _time(row["millis"]),
        Fate(row["fate"]),
        None if text is None else row_of(text, has_decimals=has_decimals),
        row["reason"],
        row["detail"],
        None if value is None else bytes(value).decode(errors="replace"),
    )


def _without_erased(records: Iterable[TailedRecord], erased: Collection[Coordinates]) -> Iterator[TailedRecord]:
    """Yield the records; an erased one, which Kafka still has, once and without what it holds."""
    shown: set[Coordinates] = set()
    for each in records:
        at = (each.topic_partition.topic, each.topic_partition.partition, each.offset)
        if at not in erased:
            yield each
        elif at not in shown:
            shown.add(at)
            yield replace(each, fate=ERASED, row=None, reason=None, detail=None, value=None)


def _time(millis: int) -> str:
    try:
        return format_time(EPOCH + timedelta(milliseconds=millis))
    except OverflowError:
        # Producers may write any 64-bit number.
        return f"{millis} ms"


def _lenient(pipeline: Pipeline) -> Pipeline:
    """Return the pipeline with a decoder that reports records that it cannot decode instead of throwing."""
    if isinstance(pipeline.decoder, Avro):
        return replace(pipeline, decoder=replace(pipeline.decoder, mode="PERMISSIVE"))
    return pipeline


def print_records(tail: TopicTail, *, once: bool, as_json: bool) -> int:
    """Print records until Ctrl-C or a closed pipe; with `once`, until there are no more. Returns the exit code."""
    try:
        with kafka.kept_clients():
            until = tail.ends() if once else None
            while True:
                records = tail.next_records(until)
                for record in records:
                    print(record.as_json() if as_json else record.in_words())
                sys.stdout.flush()
                if not records:
                    if once:
                        return 0
                    time.sleep(LOOK_AGAIN)
    except KeyboardInterrupt:
        return 0
    except SystemError as error:
        # Ctrl-C came inside a call of Kafka's client, which returned a result all the same.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        return 0
    except BrokenPipeError:
        # The reader (`tidemark tail … | head`) has gone: what is still buffered is discarded.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
