"""Attempts of intervals as their jobs leave them in the ledger, without the jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType, SimpleNamespace
from typing import Any

from sqlalchemy.orm import Session

from include.ledger.erasures.coordinates import last_erasure
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.builds import Changes, Registration
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts, Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.listings import ListedReport
from include.ledger.models import TableBegin
from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import Difference, ReconciliationCounts
from include.times import Interval

START = datetime(2026, 11, 20, 5, tzinfo=UTC)
TOPIC = "nest-logs"
NONE_NOTED: Mapping[str, str] = MappingProxyType({})


def hour(number: int = 0) -> Interval:
    """The hour so many hours after START."""
    begin = START + timedelta(hours=number)
    return Interval(begin, begin + timedelta(hours=1))


def scheduled_run(interval: Interval) -> SimpleNamespace:
    """Airflow's scheduled run of an interval, as its tasks see it."""
    begin, end = interval.from_time, interval.to_time
    return SimpleNamespace(run_type="scheduled", logical_date=begin, data_interval_start=begin, data_interval_end=end)


def begin_attempt(
    pipeline: str, interval: Interval | None = None, *, topic_partitions: int = 2, run_by: str = "airflow test"
) -> int:
    """An attempt of an interval that is pinned to 100 offsets in each topic partition."""
    interval = interval or hour()
    number = int((interval.from_time - START) / timedelta(hours=1))
    ranges = [
        OffsetRange(TopicPartition(TOPIC, p), 100 * number, 100 * number + 100, "id") for p in range(topic_partitions)
    ]
    known = pins.find_interval(pipeline, interval.from_time) or pins.write_interval(
        pipeline,
        interval,
        ranges,
        {TOPIC: "id"},
        pinned_by="test",
        between=pins.find_neighbours(pipeline, interval),
    )
    assert known is not None
    return attempts.begin_attempt(known, run_by=run_by, code_version="1a2b3c", source="kafka")


def note_build(
    attempt: int,
    *,
    rows: int = 190,
    differences: tuple[Difference, ...] = (),
    unexplained: int = 0,
    columns: Mapping[str, Mapping[str, str]] | None = None,
    partition_by: Mapping[str, str] | None = None,
    listed: tuple[ListedReport, ...] = (),
    view_versions: Mapping[str, str] = NONE_NOTED,
) -> BuiltRevision:
    """Return the result of a build of the attempt: one revision of the archive table, and its findings."""
    spec = attempts.load_attempt(attempt)
    ranges = spec.pinned.ranges
    offsets = sum(map(len, ranges))
    label = f"date={spec.pinned.interval.from_time:%Y-%m-%d}/interval={spec.pinned.interval.label}"
    revision = f"r-{attempt}" if spec.build is None else f"r-{attempt}-{spec.build}"
    built = BuiltRevision(
        spec.pinned.pipeline, label, revision, "file:///nowhere", rows, "0123456789abcdef" * 4, {"a.parquet": {}}
    )
    findings = BuildFindings(
        ranges,
        {each.topic_partition: FateCounts(95, 2, 3, 0) for each in ranges},
        RecordCounts(in_ranges=offsets, archived=offsets - 10, empty=4, quarantined=6),
        ReconciliationCounts(matched=190, pending=1, unexplained=unexplained),
        differences,
        seconds={"read and compare": 3.25, "report": 0.5},
        view_versions=view_versions,
    )
    known, by = last_erasure(spec.pinned.pipeline), partition_by
    builds.note_build(spec, [built], findings, known=known, columns=columns, partition_by=by, listed=listed)
    return built


def register(attempt: int, built: BuiltRevision, validation: Validation | None = None) -> None:
    """Return the result of a publication that passed."""
    builds.finish_registration(begin_to_register(attempt, built, validation))


def build_and_register(
    pipeline: str,
    interval: Interval | None = None,
    *,
    topic_partitions: int = 2,
    run_by: str = "airflow test",
    **of_build: Any,
) -> int:
    """Return an attempt whose build was registered."""
    attempt = begin_attempt(pipeline, interval, topic_partitions=topic_partitions, run_by=run_by)
    register(attempt, note_build(attempt, **of_build))
    return attempt


def begin_to_register(attempt: int, built: BuiltRevision, validation: Validation | None = None) -> Registration:
    """Begin a publication that passed."""
    spec = attempts.load_attempt(attempt)
    passed = validation or Validation(True, spec.pinned.pipeline)
    return builds.begin_registration(spec, passed, Changes(points=(built,)))


def note_begin(ledger: Session, pipeline: str, table: str, begin: datetime) -> None:
    """What `builds.finish` notes of a table besides its registered revision."""
    known = ledger.get(TableBegin, (pipeline, table))
    if known is None or known.first_begin > begin:
        ledger.merge(TableBegin(pipeline=pipeline, table_name=table, first_begin=begin))
