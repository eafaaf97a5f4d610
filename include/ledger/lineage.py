"""Lineage of a table partition: its revisions, the attempts that built them, the interval and its offsets.

In plain SQL (`include/ledger/connection.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from include.ledger.connection import reading
from include.times import Interval


@dataclass(frozen=True)
class BuiltRevision:
    """A revision as it lies in the lake."""

    table: str
    partition: str
    revision: str
    location: str
    rows: int
    content_hash: str
    files: dict[str, Any]

    def as_registered(self) -> dict[str, Any]:
        """Return the form of the verdict's `registered`."""
        return {
            "table": self.table,
            "partition": self.partition,
            "location": self.location,
            "revision": self.revision,
            "rows": self.rows,
            "content_hash": self.content_hash,
        }


@dataclass(frozen=True)
class Run:
    """The attempt that built a revision."""

    attempt: int
    run_by: str
    source: str
    started_at: datetime
    ended_at: datetime | None
    exit_code: int | None
    findings: Mapping[str, Any]
    """What the build of the revision found, in the verdict's form."""


@dataclass(frozen=True)
class History:
    """A revision that a table partition has or had."""

    built: BuiltRevision
    state: str
    code_version: str
    built_at: datetime
    registered_at: datetime | None
    retired_at: datetime | None
    run: Run


@dataclass(frozen=True)
class RangeFates:
    """The offsets of one topic partition of an interval; the counts are None until they are known."""

    topic: str
    topic_id: str
    partition: int
    from_offset: int
    until_offset: int
    archived: int | None
    empty: int | None
    quarantined: int | None
    gaps: int | None
    erased: int = 0


@dataclass(frozen=True)
class IntervalHistory:
    """The interval that a registered revision belongs to."""

    interval: Interval
    state: str
    pinned_by: str
    pinned_at: datetime
    ranges: tuple[RangeFates, ...]
    report: str
    """Location of its last report; empty before the first."""
    published_ranges: tuple[RangeFates, ...] = ()
    """What the last published build read; other offsets than `ranges` when it was pinned again since."""


# Columns in the order of the fields of `BuiltRevision`, `History` and `Run`.
_REVISIONS = """
    SELECT r.table_name, r.table_partition, r.id, r.location, r.rows, r.content_hash, r.files,
        r.state, r.code_version, r.built_at, r.registered_at, r.retired_at,
        a.id, a.run_by, a.source, a.started_at, a.ended_at, a.exit_code,
        coalesce(b.findings, nullif(a.verdict, 'null'), '{}')
    FROM revisions r JOIN attempts a ON a.id = r.attempt_id LEFT JOIN builds b ON b.id = r.build_id
    WHERE r.table_name = %s AND r.table_partition = %s
    ORDER BY r.built_at DESC
"""

_INTERVAL = """
    SELECT i.id, i.from_time, i.to_time, i.state, i.pinned_by, i.pinned_at, i.verdict, b.ranges, b.fates
    FROM intervals i JOIN attempts a ON a.interval_id = i.id LEFT JOIN LATERAL (
        SELECT findings -> 'ranges' AS ranges, findings -> 'fates' AS fates FROM builds
        WHERE interval_id = i.id AND published_at IS NOT NULL ORDER BY id DESC LIMIT 1
    ) b ON true
    WHERE a.id = %s
"""

_RANGES = """
    SELECT topic, topic_id, topic_partition, from_offset, until_offset, archived, empty, quarantined, gaps, erased
    FROM interval_ranges
    WHERE interval_id = %s
    ORDER BY topic, topic_partition
"""

_LAST_OF_RUN = """
    SELECT a.exit_code, i.verdict
    FROM intervals i JOIN attempts a ON a.interval_id = i.id
    WHERE i.pipeline = %s AND a.run_by = %s
    ORDER BY a.id DESC
    LIMIT 1
"""


def registered_partitions(table: str) -> list[str]:
    """Return the registered partitions of a table, in order."""
    wanted = "SELECT table_partition FROM revisions WHERE table_name = %s AND state = 'registered' ORDER BY 1"
    with reading() as ledger:
        ledger.execute(wanted, [table])
        return [partition for (partition,) in ledger.fetchall()]


def registered_outside(lake: str) -> list[str]:
    """Return the locations of registered revisions that do not lie below a lake's URI, in order."""
    wanted = "SELECT location FROM revisions WHERE state = 'registered' AND NOT starts_with(location, %s) ORDER BY 1"
    with reading() as ledger:
        ledger.execute(wanted, [f"{lake}/"])
        return [location for (location,) in ledger.fetchall()]


def revisions_of_partition(table: str, partition: str) -> list[History]:
    """Return all revisions that a table partition ever had, newest first."""
    with reading() as ledger:
        ledger.execute(_REVISIONS, [table, partition])
        return [_history(row) for row in ledger.fetchall()]


def _history(row: tuple[Any, ...]) -> History:
    state, code_version, built_at, registered_at, retired_at = row[7:12]
    built, run = BuiltRevision(*row[:7]), Run(*row[12:])
    return History(built, state, code_version, built_at, registered_at, retired_at, run)


def interval_of_attempt(attempt: int) -> IntervalHistory:
    """Return the interval of an attempt with the fate of every offset."""
    with reading() as ledger:
        ledger.execute(_INTERVAL, [attempt])
        ((interval_id, from_time, to_time, state, pinned_by, pinned_at, verdict, *published),) = ledger.fetchall()
        ledger.execute(_RANGES, [interval_id])
        ranges = tuple(RangeFates(*row) for row in ledger.fetchall())
    report = (verdict or {}).get("report", "")
    read = _published(*published)
    return IntervalHistory(Interval(from_time, to_time), state, pinned_by, pinned_at, ranges, report, read)


def _published(ranges: list[dict[str, Any]] | None, fates: dict[str, dict[str, int]] | None) -> tuple[RangeFates, ...]:
    found = []
    for each in ranges or ():
        counts = (fates or {}).get(f"{each['topic']}-{each['partition']}", {})
        archived, empty, quarantined, gaps = map(counts.get, ("archived", "empty", "quarantined", "gaps"))
        place, bounds = (
            (each["topic"], each["topic_id"], each["partition"]),
            (each["from_offset"], each["until_offset"]),
        )
        found.append(RangeFates(*place, *bounds, archived, empty, quarantined, gaps, counts.get("erased", 0)))
    return tuple(found)


def exit_code_of_run(pipeline: str, run_by: str) -> int | None:
    """Return the exit code of the pipeline's attempt that `run_by` began last; None without one, or while it has none.

    Runs of different DAGs may have the same id: those of one schedule have.
    """
    return _last_of_run(pipeline, run_by)[0]


def verdict_of_run(pipeline: str, run_by: str) -> dict[str, Any]:
    """Return the verdict of the pipeline's interval that `run_by` ran last, e.g. `airflow <run id>`; else empty."""
    return _last_of_run(pipeline, run_by)[1] or {}


def _last_of_run(pipeline: str, run_by: str) -> tuple[int | None, dict[str, Any] | None]:
    with reading() as ledger:
        ledger.execute(_LAST_OF_RUN, [pipeline, run_by])
        row = ledger.fetchone()
        return (row[0], row[1]) if row else (None, None)
