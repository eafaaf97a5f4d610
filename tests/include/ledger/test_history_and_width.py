"""Ledger of 10,000 intervals and 200 topic partitions: what commits, pins, intervals and `status` read of it.

Rows that PostgreSQL reads are counted, no seconds. Writers and `status` read as much as after 50 intervals, or as many
times more as they have topic partitions. `status` reads of topic partitions what one interval has.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import psycopg2
import pytest

from include.ledger import proofs
from include.ledger.archive import micro_batches
from include.ledger.archive.committed import committed_offsets
from include.ledger.archive.decoders import counted_otherwise
from include.ledger.archive.landing_files import LandingFile
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit, Fates
from include.ledger.completeness import completeness, partition_completeness
from include.ledger.completeness.properties import UNTIL, properties_after, table_properties
from include.ledger.completeness.served import served_state
from include.ledger.intervals import attempts, builds, evidence, pins
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts, Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.streams import generations, writers
from include.monitor.missing import summarize_missing
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines import load_pipeline
from include.reconciliation import ReconciliationCounts
from include.times import Interval, format_time
from tests.conftest import Home, SetSettings
from tests.support import ledger_month
from tests.support.ledger_month import PER_HOUR
from tests.support.ledger_reads import rows_read
from tests.support.shipped import all_pipelines

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = datetime(2026, 1, 1, tzinfo=UTC)
WIDE, NARROW = "nest_cameras", "isp_hits"
VIEW = next(view for view in load_pipeline(NARROW).views if view.is_total)
SMALL, LARGE = (50, 8), (2000, 200)
"""Intervals of each of the five pipelines, and topic partitions of the wide one."""

_CONTINUE = """
INSERT INTO topics (pipeline, topic, topic_id, topic_partitions)
SELECT i.pipeline, r.topic, 'topic-id', 1 + max(r.topic_partition)
FROM intervals i JOIN interval_ranges r ON r.interval_id = i.id GROUP BY 1, 2;
INSERT INTO positions (pipeline, query, topic, topic_partition, next_offset, micro_batch_id)
SELECT b.pipeline, b.query, r.topic, r.topic_partition, max(r.until_offset), max(b.id)
FROM micro_batches b JOIN micro_batch_ranges r ON r.micro_batch_id = b.id GROUP BY 1, 2, 3, 4;
INSERT INTO proofs (pipeline, build_id, tables, path, sha256)
SELECT i.pipeline, b.id, d.tables, 'proofs/' || b.id, 'hash'
FROM builds b JOIN intervals i ON i.id = b.interval_id JOIN declared_tables d ON d.id = i.declared ORDER BY b.id;
SELECT setval(pg_get_serial_sequence('builds', 'id'), (SELECT max(id) FROM builds));
SELECT setval(pg_get_serial_sequence('micro_batches', 'id'), (SELECT max(id) FROM micro_batches));
SELECT setval(pg_get_serial_sequence('intervals', 'id'), (SELECT max(id) FROM intervals));
SELECT setval(pg_get_serial_sequence('attempts', 'id'), (SELECT max(id) FROM attempts));
"""


@pytest.fixture
def database(postgres: Home, set_settings: SetSettings) -> str:
    set_settings(TIDEMARK_LEASE_SECONDS="300")
    return postgres.database


def fill(
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    hours: int,
    partitions: int,
    pipelines: Sequence[str] = tuple(each.name for each in all_pipelines()),
) -> int:
    """Fill the ledger as streams and intervals of these pipelines would have; return its rows."""
    tables = "intervals, micro_batches, quarantine_counts, positions, topics, generations, writers, table_begins"
    tables += ", declared_tables"
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER DATABASE ledger SET enable_seqscan = off")
        cursor.execute(f"TRUNCATE {tables} CASCADE")
    # Its numbers of intervals begin so far from each other.
    monkeypatch.setattr(ledger_month, "HOURS", hours)
    monkeypatch.setattr(ledger_month, "PARTITIONS", partitions)
    tables_of = {each: load_pipeline(each).tables for each in pipelines}
    ledger_month.fill(database, tables_of, START, WIDE, hours=hours)
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(_CONTINUE)
        cursor.execute(
            "SELECT sum(greatest(c.reltuples, 0)) FROM pg_class c JOIN pg_stat_user_tables t ON t.relid = c.oid"
        )
        return int(cursor.fetchall()[0][0])


def batch(pipeline: str, hours: int, partitions: int, number: int) -> BatchCommit:
    """The micro-batch of a record in each topic partition, `number` after the history."""
    topic = f"{pipeline}-log"
    at = START + timedelta(hours=hours + number)
    whole = [TopicPartition(topic, each) for each in range(partitions)]
    return BatchCommit(
        pipeline,
        ARCHIVE,
        pipeline,
        hours * ledger_month.BATCHES_PER_HOUR + number,
        [OffsetRange(tp, hours * PER_HOUR + number, hours * PER_HOUR + number + 1) for tp in whole],
        {topic: TopicIdentity(topic, "topic-id", partitions)},
        {tp: Fates(archived=1) for tp in whole},
        (LandingFile("archived", f"landing/{pipeline}-{number}.parquet", 1, 100, (at, at)),),
        partitions,
    )


def interval(pipeline: str, hours: int, partitions: int) -> None:
    """Run the queries and writes of the interval after the history, before and during its build."""
    at = Interval(START + timedelta(hours=hours), START + timedelta(hours=hours + 1))
    topic = f"{pipeline}-log"
    begin = hours * PER_HOUR
    ranges = [OffsetRange(TopicPartition(topic, each), begin, begin + 1, "topic-id") for each in range(partitions)]
    between = pins.find_neighbours(pipeline, at)
    pinned = pins.write_interval(pipeline, at, ranges, {topic: "topic-id"}, pinned_by="test", between=between)
    assert pinned is not None
    attempt = attempts.begin_attempt(pinned, run_by="test", code_version="1", source="kafka")
    attempts.load_attempt(attempt)
    found = evidence.committed_fates(pipeline, pinned.ranges)
    assert sum(each.fates.archived for each in found) == partitions
    register(pipeline, attempt)
    attempts.end_attempt(attempt, 0, {})


def register(pipeline: str, attempt: int) -> None:
    """Run the queries and writes of the registration of a build, and of its proof."""
    spec = attempts.load_attempt(attempt)
    table, tables = load_pipeline(pipeline).table, load_pipeline(pipeline).tables
    label = f"interval={spec.pinned.interval.label}"
    built = BuiltRevision(table, label, f"r-{attempt}", "file:///nowhere", 1, "hash", {})
    fates = {each.topic_partition: FateCounts(archived=1) for each in spec.pinned.ranges}
    findings = BuildFindings(spec.pinned.ranges, fates, RecordCounts(archived=1), ReconciliationCounts())
    build = builds.note_build(spec, [built], findings, columns={each: {"value": "string"} for each in tables})
    spec = attempts.load_attempt(attempt)
    begun = builds.begin_registration(spec, Validation(True, pipeline), Changes(points=(built,)))
    told = properties_after(begun)
    assert told[table][UNTIL] == format_time(spec.pinned.interval.to_time)
    builds.finish_registration(begun)
    assert table_properties(pipeline) == told
    assert proofs.unproved(pipeline, 20) == [build]
    with proofs.extending(pipeline, build, tables) as chain:
        chain.append(proofs.Proof(f"proofs/{build}", "hash"), None)
    proofs.note_proved(pipeline)
    assert proofs.unproved(pipeline, 20) == []


def written(database: str, size: tuple[int, int]) -> dict[str, int]:
    """Rows read by each writer, in all tables."""
    hours, width = size
    found = {}
    for pipeline, partitions in ((NARROW, 2), (WIDE, width)):
        lease = writers.acquire(pipeline)

        def commit(number: int, pipeline: str = pipeline, partitions: int = partitions, lease: writers.Lease = lease):
            return lambda: micro_batches.commit(lease, batch(pipeline, hours, partitions, number))

        found[f"{pipeline} commit"] = sum(rows_read(database, commit(0)).values())
        found[f"{pipeline} interval"] = sum(
            rows_read(database, lambda p=pipeline, n=partitions: interval(p, hours, n)).values()
        )
        generations.open_generation(lease, started_by="test", reason="its cost")
        found[f"{pipeline} commit in a new generation"] = sum(rows_read(database, commit(1)).values())
    return found


def looked(database: str) -> dict[str, dict[str, int]]:
    """Return the rows of each table that read-only commands read."""
    declared = all_pipelines()
    return {
        "status": rows_read(
            database, lambda: [(summarize_missing(each), completeness(each.name)) for each in declared]
        ),
        "lag": rows_read(database, lambda: [committed_offsets(each.name) for each in declared]),
        "partitions": rows_read(database, lambda: partition_completeness(load_pipeline(WIDE).name)),
        "served": rows_read(database, served),
        "other code": rows_read(database, lambda: [counted_otherwise(NARROW, version) for version in ("v1", "v2")]),
    }


def served() -> None:
    state = served_state(NARROW, VIEW.name, load_pipeline(NARROW).view_table(VIEW), is_total=True)
    assert state.is_whole
    assert all(each.covers for each in state.intervals)


def test_writers_and_status_read_no_more_than_they_ask_for_when_history_and_topics_have_grown(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, writes, rows = {}, {}, {}
    for size in (SMALL, LARGE):
        rows[size] = fill(database, monkeypatch, *size)
        looks[size] = looked(database)
        writes[size] = written(database, size)
        print(size, rows[size], looks[size], writes[size])
    for work, small in writes[SMALL].items():
        wider = LARGE[1] / SMALL[1] if work.startswith(WIDE) else 1
        assert writes[LARGE][work] <= 1.05 * wider * small, f"{work}: {small} rows have become {writes[LARGE][work]}"
    for work, (short, long) in {each: (looks[SMALL][each], looks[LARGE][each]) for each in looks[SMALL]}.items():
        for table, read in long.items():
            # What is served of a view is a list of its intervals, each with the build of its revision.
            is_listed = work == "served" and table in ("intervals", "revisions", "builds")
            more = LARGE[0] / SMALL[0] if is_listed else LARGE[1] / SMALL[1]
            assert read <= 1.05 * more * short.get(table, 1), f"{work}: {short} rows have become {long}"


def test_completeness_of_a_pipeline_reads_the_same_rows_when_other_pipelines_have_intervals(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for pipelines in ([NARROW], [each.name for each in all_pipelines()]):
        fill(database, monkeypatch, *SMALL, pipelines)
        found.append(rows_read(database, lambda: (completeness(NARROW), partition_completeness(NARROW))))
    alone, among_others = found
    assert sum(alone.values()) < SMALL[0], alone
    assert among_others == alone
