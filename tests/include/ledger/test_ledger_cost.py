"""What a micro-batch and an interval ask of the ledger does not grow with what lies behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from include import kafka
from include.intervals.pinning import pin_interval
from include.ledger import quarantine
from include.ledger.archive import landing_files, micro_batches, removal, snapshots
from include.ledger.archive.decoders import decoded_otherwise, decoders_of
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit
from include.ledger.archive.other_code import other_code
from include.ledger.intervals import attempts, builds, evidence, revisions
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts, Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.streams import losses, writers
from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import ReconciliationCounts
from tests.conftest import Home, SetSettings
from tests.support.ledger_reads import rows_read
from tests.support.topic_log import HOUR, START, Log, hour, new_log

pytestmark = pytest.mark.services

BATCHES = 20
"""Micro-batches of an interval; each covers one record of each topic partition."""
SHORT, LONG = 5, 50
"""Intervals before the measured one: 200 and 2,000 micro-batches of both queries together."""
VIEW = "hourly_counts"


@dataclass
class Past:
    """A log whose archive, speed view and intervals are committed one after the other."""

    log: Log
    lease: writers.Lease
    batches: int = 0
    intervals: int = 0
    topics: Mapping[str, kafka.TopicIdentity] = field(init=False)

    def __post_init__(self) -> None:
        self.topics = kafka.describe_topics([self.log.topic])

    def commit_batch(self, query: str) -> None:
        """What the stream commits for one micro-batch of a query."""
        topic, number = self.log.topic, self.batches
        at = START + (number / BATCHES - LONG) * HOUR
        files = (LandingFile("archived", f"landing/{number}.parquet", 2, 100, (at, at)),) if query == ARCHIVE else ()
        micro_batches.is_committed(f"query-{query}", number)
        writers.renew(self.lease)
        micro_batches.commit(
            self.lease,
            BatchCommit(
                self.log.pipeline.name,
                query,
                f"query-{query}",
                number,
                [OffsetRange(TopicPartition(topic, p), number, number + 1) for p in (0, 1)],
                self.topics,
                {TopicPartition(topic, p): micro_batches.Fates(archived=1) for p in (0, 1)},
                files,
                2,
                watermark=at - timedelta(hours=1),
                decoder_version="1",
            ),
        )

    def stream(self) -> None:
        """The micro-batches of one interval, and those of the next one's first record."""
        while self.batches < (self.intervals + 1) * BATCHES + 1:
            for query in (ARCHIVE, VIEW):
                self.commit_batch(query)
            self.batches += 1

    def run_interval(self) -> None:
        """Run every query and write of the ledger by the steps of an interval."""
        pipeline = self.log.pipeline
        interval = hour(self.intervals - LONG)
        pinned = pin_interval(pipeline, interval, pinned_by="test")
        assert [len(r) for r in pinned.ranges] == [BATCHES, BATCHES]
        attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1", source="kafka")
        spec = attempts.load_attempt(attempt)
        assert builds.begun_registrations(pipeline.name) == []
        assert losses.accepted_in(pipeline.name, pinned.ranges) == []
        assert decoded_otherwise(pipeline.name, pinned.ranges, "1") == []
        assert decoders_of(pipeline.name, pinned.ranges) == ["1"]
        assert removal.removed_ranges(pipeline.name, pinned.ranges) == []
        assert len(landing_files.files_covering(pipeline.name, pinned.ranges, "archived")) == BATCHES
        events = (interval.from_time, interval.to_time)
        assert len(snapshots.rows_of_time(pipeline.name, pipeline.table, *events).paths) == BATCHES
        by = {"landed_by": "1", "counted_by": "1"}
        assert not other_code(pipeline.name, VIEW, pinned.ranges, events, version=self.batches - 1, **by).everywhere
        assert sum(found.fates.archived for found in evidence.committed_fates(pipeline.name, pinned.ranges)) == (
            2 * BATCHES
        )
        assert evidence.recorded_fates(pinned) == []
        assert evidence.speed_position(pipeline.name, VIEW).batch_id == self.batches - 1
        assert evidence.first_counted(pipeline.name, VIEW, events) is not None
        bounds = {r.topic_partition: (r.from_offset, r.until_offset - 1) for r in pinned.ranges}
        late = evidence.late_bounds_within(f"query-{VIEW}", bounds, [interval.from_time - 2 * HOUR])
        assert [len(each.range) >= BATCHES - 1 for each in late] == [True, True]
        quarantine.pinned_fates(pipeline.name, pinned.ranges, pinned.topic_ids)
        quarantine.replayed_into(pinned.id)
        label = f"date=2026-01-01/interval={interval.label}"
        built = BuiltRevision(pipeline.name, label, f"r-{attempt}", "file:///nowhere", BATCHES, "hash", {})
        fates = {r.topic_partition: FateCounts(archived=len(r)) for r in pinned.ranges}
        findings = BuildFindings(pinned.ranges, fates, RecordCounts(archived=2 * BATCHES), ReconciliationCounts())
        build = builds.note_build(spec, [built], findings)
        assert revisions.of_build(build) == [built]
        spec = attempts.load_attempt(attempt)
        assert builds.later_build_published(spec) is None
        passed = Validation(True, pipeline.name)
        builds.finish_registration(builds.begin_registration(spec, passed, Changes(points=(built,))))
        assert builds.is_published(build)
        assert revisions.registered_of_interval(pinned.id) == [built]
        attempts.end_attempt(attempt, 0, {})
        self.intervals += 1


@pytest.fixture
def past(in_process: Home, set_settings: SetSettings) -> Past:
    set_settings(TIDEMARK_LEASE_SECONDS="300")
    # PostgreSQL reads a table of a few pages whole, even with an index: a missing index must show before it hurts.
    in_process.ledger("ALTER DATABASE ledger SET enable_seqscan = off")
    log = new_log("cost", 2)
    for partition in (0, 1):
        log.send(partition, *(number / BATCHES - LONG for number in range((LONG + 2) * BATCHES)))
    return Past(log, writers.acquire(log.pipeline.name))


@pytest.mark.slow
def test_micro_batch_and_interval_read_no_more_of_the_ledger_with_2000_micro_batches_behind_them(
    in_process: Home, past: Past
) -> None:
    found = {}
    for behind in (SHORT, LONG):
        while past.intervals < behind:
            past.stream()
            past.run_interval()
        found[behind] = [rows_read(in_process.database, work) for work in (past.stream, past.run_interval)]
    for short, long in zip(found[SHORT], found[LONG], strict=True):
        assert sum(short.values()) > 0
        assert sum(long.values()) <= 1.1 * sum(short.values()), f"{short} has become {long}"
