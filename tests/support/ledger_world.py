"""What surrounds the ledger: a topic, checkpoints, files and a catalog, so small that a step costs milliseconds.

The fate and the hour of every record are known from its offset, so what the ledger says can be held against them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from include import lake
from include.catalog import CatalogPartition
from include.intervals.boundaries import SourceLog
from include.kafka.timestamps import Boundary
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit, Fates
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.lineage import BuiltRevision
from include.ledger.streams.writers import Lease
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopics, Pipeline, Retention
from include.reconciliation import ReconciliationCounts
from include.times import Interval

START = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
TOPIC_ID = "incarnation-1"

Row = tuple[int, int]
"""Topic partition and offset of an archived record; each has one row."""


def fate_of(partition: int, offset: int) -> str:
    """The fate of a record; a gap is an offset without one."""
    return {0: "gap", 1: "quarantined", 2: "empty"}.get((7 * offset + partition) % 10, "archived")


def hour(number: int) -> Interval:
    return Interval(START + number * HOUR, START + (number + 1) * HOUR)


@dataclass
class Checkpoint:
    """Spark's checkpoint of the archive query: where it begins, planned micro-batches, and finished ones."""

    query_id: str
    begin: Mapping[TopicPartition, int]
    planned: list[list[OffsetRange]] = field(default_factory=list)
    done: set[int] = field(default_factory=set)

    def plan(self, ends: Mapping[TopicPartition, int]) -> int:
        """Return the number of the micro-batch to run: one that was planned and is not done, else a new one."""
        for number in range(len(self.planned)):
            if number not in self.done:
                return number
        at = {r.topic_partition: r.until_offset for r in self.planned[-1]} if self.planned else self.begin
        self.planned.append([OffsetRange(tp, at[tp], max(at[tp], end), TOPIC_ID) for tp, end in ends.items()])
        return len(self.planned) - 1


@dataclass(frozen=True)
class OracleLog(SourceLog):
    """The topic as it is now, whose boundaries are known without asking Kafka."""

    hours: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)

    def boundaries(self, moment: datetime, spans: Any) -> dict[TopicPartition, Boundary]:
        def boundary(tp: TopicPartition, begin: int, end: int) -> int:
            return next((o for o in range(begin, end) if START + self.hours[tp][o] * HOUR >= moment), end)

        return {tp: Boundary(boundary(tp, begin, end)) for tp, (begin, end) in spans.items()}

    def _timestamps_at(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: int((START + self.hours[tp][at] * HOUR).timestamp() * 1000) for tp, at in offsets.items()}

    def first_time(self, spans: Any) -> datetime | None:
        times = [START + self.hours[tp][begin] * HOUR for tp, (begin, end) in spans.items() if begin < end]
        return min(times, default=None)


class World:
    """One pipeline, alone with its topic, lake and catalog."""

    def __init__(self, name: str) -> None:
        source = KafkaTopics(subscribe=(f"{name}-log",))
        nest = load_pipeline("nest_cameras")
        self.pipeline: Pipeline = replace(
            nest,
            name=name,
            source=source,
            views=(),
            reports=(),
            references={},
            retention=Retention("0s", "0s", replaced="0s"),
        )
        self.partitions = [TopicPartition(f"{name}-log", number) for number in range(2)]
        self.hours: dict[TopicPartition, list[int]] = {tp: [] for tp in self.partitions}
        self.checkpoints = 0
        self.checkpoint = self.new_checkpoint(dict.fromkeys(self.partitions, 0))
        self.code = 0
        """The version of the pipeline's code: another one gives records to other table partitions."""
        self.suite_passes = True
        """Whether the next checkpoint passes complete builds."""
        self.catalog: dict[tuple[str, str], str] = {}
        self.rows_at: dict[str, frozenset[Row]] = {}
        """Rows of the revisions that were written, by location."""

    # The topic.

    def produce(self, partition: int, records: int, later: int) -> None:
        log = self.hours[self.partitions[partition]]
        log += [(log[-1] if log else 0) + later] * records

    @property
    def ends(self) -> dict[TopicPartition, int]:
        return {tp: len(log) for tp, log in self.hours.items()}

    def read_log(self, pipeline: Pipeline) -> OracleLog:
        """Stands for `include.intervals.boundaries.read_log`."""
        bounds = {tp: (0, end) for tp, end in self.ends.items()}
        hours = {tp: tuple(log) for tp, log in self.hours.items()}
        return OracleLog(pipeline, bounds, {self.partitions[0].topic: TOPIC_ID}, datetime.now(UTC), hours=hours)

    # The stream.

    def new_checkpoint(self, begin: Mapping[TopicPartition, int]) -> Checkpoint:
        self.checkpoints += 1
        return Checkpoint(f"{self.checkpoints:08x}-{self.pipeline.name}", begin)

    def land(self, lease: Lease, checkpoint: Checkpoint, number: int) -> BatchCommit:
        """Write the files of a planned micro-batch and return what it wants to commit."""
        ranges = checkpoint.planned[number]
        topic, name = self.partitions[0].topic, self.pipeline.name
        folder = f"landing/{name}/{checkpoint.query_id[:8]}-{number:09d}-{lease.token}"
        paths = {
            "archived": f"{folder}/part.parquet",
            "quarantined": f"quarantine/{name}/{checkpoint.query_id[:8]}-{number:09d}-{lease.token:04d}.parquet",
        }
        files = []
        for fate, path in paths.items():
            if rows := records_of(ranges, fate):
                files.append(LandingFile(fate, path, len(rows), _write(lake.uri(path), rows)))
        return BatchCommit(
            name,
            ARCHIVE,
            checkpoint.query_id,
            number,
            ranges,
            {topic: TopicIdentity(topic, TOPIC_ID, len(self.partitions))},
            {r.topic_partition: Fates(**_counts([r])) for r in ranges},
            files,
            rows=len(records_of(ranges, "archived")),
            decoder_version="1",
        )

    # The lake.

    def build(self, attempt: AttemptSpec, revision: str, *, short: bool) -> list[BuiltRevision]:
        """Write the table partitions of an interval, of a short build without one row; by the code as it is now."""
        by_date: dict[str, set[Row]] = defaultdict(set)
        for partition, offset in sorted(records_of(attempt.pinned.ranges, "archived"))[1 if short else 0 :]:
            by_date[f"2026-11-{20 + (offset // 3 + self.code) % 2}"].add((partition, offset))
        return [self.write_revision(attempt, date, revision, rows) for date, rows in sorted(by_date.items())]

    def write_revision(self, attempt: AttemptSpec, date: str, revision: str, rows: set[Row]) -> BuiltRevision:
        """Write the interval's rows of a date."""
        table, partition = self.pipeline.table, f"date={date}/interval={attempt.pinned.interval.label}"
        location = lake.uri("tables", table, *partition.split("/"), revision)
        size = _write(f"{location}/part.parquet", rows)
        sha256 = lake.sha256(f"{location}/part.parquet")
        self.rows_at[location] = frozenset(rows)
        facts = {"rows": len(rows), "bytes": size, "sha256": sha256, "records": len(rows)}
        return BuiltRevision(table, partition, revision, location, len(rows), sha256, {"part.parquet": facts})

    def findings(self, pinned: PinnedInterval, *, unexplained: int) -> BuildFindings:
        counts = {r.topic_partition: _counts([r]) for r in pinned.ranges}
        gaps = {r.topic_partition: len(r) - sum(counts[r.topic_partition].values()) for r in pinned.ranges}
        return BuildFindings(
            pinned.ranges,
            {tp: FateCounts(**counts[tp], gaps=gaps[tp]) for tp in counts},
            RecordCounts(sum(map(len, pinned.ranges)), **_counts(pinned.ranges), gaps=sum(gaps.values())),
            ReconciliationCounts(unexplained=unexplained),
        )

    def is_complete(self, pinned: PinnedInterval, built: Sequence[BuiltRevision]) -> bool:
        """Return whether a build has the rows that the checkpoint counts."""
        rows = [row for each in built for row in self.rows_at[each.location]]
        return sorted(rows) == sorted(records_of(pinned.ranges, "archived"))

    def catalog_partitions(self, tables: Sequence[str]) -> dict[tuple[str, str], CatalogPartition]:
        """Stands for `include.catalog.partitions`."""
        return {key: CatalogPartition(*key, location) for key, location in self.catalog.items() if key[0] in tables}

    def visible(self) -> list[tuple[str, Row]]:
        """What a reader of the catalog finds: the table partition and each row of its files."""
        return [
            (partition, row)
            for (_, partition), location in self.catalog.items()
            if lake.exists(f"{location}/part.parquet")
            for row in self.rows_at[location]
        ]


class MemoryCatalog:
    """Stands for `spark_jobs.publication.catalog.Catalog`: a dictionary instead of the metastore."""

    def __init__(self, spark: World, pipeline: Pipeline) -> None:
        self._entries = spark.catalog
        self.pipeline = pipeline

    def create_tables(self) -> None:
        """A dictionary has all tables."""

    def follow_renames(self) -> bool:
        """A dictionary has no columns."""
        return False

    def prepare(self, revision: BuiltRevision) -> None:
        """A dictionary has no columns."""

    def point_at(self, revision: BuiltRevision) -> None:
        self._entries[revision.table, revision.partition] = revision.location

    def drop(self, revision: BuiltRevision) -> None:
        self.drop_partition(revision.table, revision.partition)

    def drop_partition(self, table: str, partition: str) -> None:
        self._entries.pop((table, partition), None)

    def location(self, revision: BuiltRevision) -> str | None:
        return self._entries.get((revision.table, revision.partition))


def records_of(ranges: Iterable[OffsetRange], fate: str) -> set[Row]:
    """The records of the ranges that have a fate."""
    return {
        (r.topic_partition.partition, offset)
        for r in ranges
        for offset in range(r.from_offset, r.until_offset)
        if fate_of(r.topic_partition.partition, offset) == fate
    }


def _counts(ranges: Iterable[OffsetRange]) -> dict[str, int]:
    each = list(ranges)
    return {fate: len(records_of(each, fate)) for fate in ("archived", "empty", "quarantined")}


def _write(location: str, rows: Iterable[Row]) -> int:
    data = hashlib.sha256(repr(sorted(rows)).encode()).digest() + b"." * len(list(rows))
    lake.write_bytes(location, data)
    return len(data)
