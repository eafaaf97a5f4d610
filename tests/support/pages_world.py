"""A small ledger and lake for the web pages: intervals in every state, files, and records in quarantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq

from include import lake
from include.ledger.archive import micro_batches
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit, Fates
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.builds import Changes, TableColumns
from include.ledger.intervals.findings import BuildFindings, ExpectationResult, FateCounts, RecordCounts, Validation
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.lineage import BuiltRevision
from include.offsets import Fate, OffsetRange, TopicIdentity, TopicPartition
from include.pipelines.spec import Pipeline
from include.reconciliation import ReconciliationCounts
from include.times import Interval
from tests.support.leases import held_lease

PER_HOUR = 10
TOPIC_ID = "a-topic-id"


@dataclass(frozen=True)
class BadRecord:
    """A record that lies in quarantine."""

    value: bytes | None
    key: bytes | None = b"key"
    headers: Sequence[tuple[str, bytes | None]] = ()
    reason: str = "malformed_json"
    detail: str = "at byte 1"


class World:
    """A pipeline with one topic partition and `PER_HOUR` records an hour, whose hours are run one after the other."""

    def __init__(self, pipeline: Pipeline, start: datetime) -> None:
        self.pipeline, self.start = pipeline, start
        self.topic = pipeline.source.named[0]
        self.tp = TopicPartition(self.topic, 0)
        self.hours = 0

    def interval(self, hour: int) -> Interval:
        return Interval(self.start + timedelta(hours=hour), self.start + timedelta(hours=hour + 1))

    def range(self, hour: int) -> OffsetRange:
        return OffsetRange(self.tp, hour * PER_HOUR, (hour + 1) * PER_HOUR, TOPIC_ID)

    def stream(self, bad: Sequence[BadRecord] = ()) -> int:
        """Commit the micro-batch of the next hour, whose first records are bad, and return the hour's number."""
        hour, name = self.hours, self.pipeline.name
        files = [LandingFile(Fate.ARCHIVED, f"landing/{name}/{hour}.parquet", PER_HOUR - len(bad), 100)]
        if bad:
            path = f"quarantine/{name}/{hour}.parquet"
            write_quarantine(path, self.topic, hour * PER_HOUR, bad)
            files.append(LandingFile(Fate.QUARANTINED, path, len(bad), 100))
        reasons: dict[str, int] = {}
        for each in bad:
            reasons[each.reason] = reasons.get(each.reason, 0) + 1
        with held_lease(name) as lease:
            identity = {self.topic: TopicIdentity(self.topic, TOPIC_ID, 1)}
            fates = {self.tp: Fates(archived=PER_HOUR - len(bad), quarantined=len(bad))}
            batch = BatchCommit(
                name, ARCHIVE, f"query-{name}", hour, [self.range(hour)], identity, fates, files, reasons=reasons
            )
            micro_batches.commit(lease, batch)
        self.hours += 1
        return hour

    def pin(self, hour: int) -> PinnedInterval:
        with session() as ledger:
            pins.lock_pinning(ledger, self.pipeline.name)
            ids = {self.topic: TOPIC_ID}
            return pins.write(
                ledger, self.pipeline.name, self.interval(hour), [self.range(hour)], ids, pinned_by="test@host"
            )

    def run(
        self,
        hour: int,
        *,
        bad: int = 0,
        late: int = 0,
        unexplained: int = 0,
        passed: bool = True,
        code: str = "v1",
        columns: TableColumns | None = None,
    ) -> PinnedInterval:
        """Pin an hour, build it, judge it and, when nothing is wrong, register it."""
        pinned = self.pin(hour)
        attempt = attempts.begin_attempt(pinned, run_by="airflow test", code_version=code, source="kafka")
        fates = FateCounts(archived=PER_HOUR - bad, quarantined=bad)
        counts = ReconciliationCounts(matched=PER_HOUR, late=late, unexplained=unexplained)
        findings = BuildFindings((self.range(hour),), {self.tp: fates}, RecordCounts(archived=PER_HOUR - bad), counts)
        built = [self._revision(table, hour, attempt, bad) for table in self.pipeline.tables]
        builds.note_build(attempts.load_attempt(attempt), built, findings, columns=columns)
        spec = attempts.load_attempt(attempt)
        if unexplained:
            attempts.end_attempt(attempt, 3, {"reconciliation": {"unexplained": unexplained}})
        elif not passed:
            judged = Validation(False, self.pipeline.name, self._expectations(0.5))
            builds.reject(spec, judged)
            attempts.end_attempt(attempt, 2, {"validation": judged.as_verdict()})
        else:
            judged = Validation(True, self.pipeline.name, self._expectations(0.95 + hour % 5 / 100))
            builds.finish_registration(builds.begin_registration(spec, judged, Changes(points=tuple(built))))
            attempts.end_attempt(attempt, 0, {"reconciliation": {"unexplained": 0}, "pipeline": self.pipeline.name})
        return pinned

    def _revision(self, table: str, hour: int, attempt: int, bad: int) -> BuiltRevision:
        interval, name = self.interval(hour), f"r{attempt}"
        partition = f"date={interval.from_time:%Y-%m-%d}/interval={interval.label}"
        location = lake.uri("tables", table, partition, name)
        offsets = list(range(hour * PER_HOUR + bad, (hour + 1) * PER_HOUR))
        columns = {
            "kafka_topic": [self.topic] * len(offsets),
            "kafka_partition": pa.array([0] * len(offsets), pa.int32()),
            "kafka_offset": offsets,
            "kafka_element": pa.array([0] * len(offsets), pa.int32()),
            "words": [f"row of offset {offset}" for offset in offsets],
        }
        write_parquet(f"{location}/part-0.parquet", pa.table(columns))
        noted = {"rows": len(offsets), "bytes": 100, "sha256": "0" * 64}
        bounds = {"kafka_offset": [offsets[0], offsets[-1]], "kafka_topic": [self.topic] * 2, "kafka_partition": [0, 0]}
        files = {"part-0.parquet": {**noted, **(bounds if table == self.pipeline.table else {})}}
        return BuiltRevision(table, partition, name, location, len(offsets), f"hash-{hour}", files)

    def _expectations(self, share: float) -> tuple[ExpectationResult, ...]:
        words = "the share of rows with user is at least 0.9"
        return tuple(
            ExpectationResult(
                table,
                "expect_column_proportion_of_non_null_values_to_be_between",
                "user",
                words,
                share >= 0.9,
                str(share),
                0,
                share,
                0.9,
                None,
                PER_HOUR,
            )
            for table in self.pipeline.tables
        )


def write_quarantine(path: str, topic: str, first: int, records: Sequence[BadRecord]) -> None:
    """Write records to a quarantine file of the lake as the stream does."""
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = {
        "kafka_topic": [topic] * len(records),
        "kafka_partition": pa.array([0] * len(records), pa.int32()),
        "kafka_offset": list(range(first, first + len(records))),
        "kafka_timestamp": pa.array([datetime(2026, 11, 20, tzinfo=UTC)] * len(records), pa.timestamp("us", "UTC")),
        "key": pa.array([each.key for each in records], pa.binary()),
        "value": pa.array([each.value for each in records], pa.binary()),
        "headers": pa.array([[{"key": k, "value": v} for k, v in each.headers] for each in records], pa.list_(pair)),
        "reason": [each.reason for each in records],
        "detail": [each.detail for each in records],
    }
    write_parquet(lake.uri(path), pa.table(columns))


def write_parquet(location: str, table: pa.Table) -> None:
    """Write a table to a file of the lake."""
    system, path = lake.filesystem(location)
    lake.make_parents(location)
    pq.write_table(table, path, filesystem=system)
