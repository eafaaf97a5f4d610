"""From a table partition back to the offsets behind it: ledger, catalog, and the footers of its files."""

from __future__ import annotations

from typing import Any

from pyarrow import ArrowInvalid
from sqlalchemy import select

from include import catalog, lake
from include.errors import UsageError
from include.ledger.database import session
from include.ledger.intervals import revisions
from include.ledger.models import Attempt, IntervalRange, IntervalRow, Revision
from include.pipelines import all_pipelines
from include.pipelines.spec import IDENTITY
from include.pipelines.spec.file_formats import format_of
from include.pipelines.spec.lines import declared_name, no_offsets
from include.times import format_time


def explain(table: str, partition: str) -> dict[str, Any]:
    """Revision, files, interval, ranges with the fate of every offset, verdict, who ran it, earlier revisions.

    Of each file: what was noted when it was built, what its footer says `now`, and what `differs`.

    Raises UsageError for an unknown table, or a partition that is not registered.
    """
    known = [name for pipeline in all_pipelines() for name in pipeline.tables]
    if table not in known:
        if declared := declared_name(table, [pipeline.name for pipeline in all_pipelines()]):
            raise no_offsets(table, declared)
        raise UsageError(f"unknown table {table!r}", remedy=f"one of: {', '.join(known)}")
    found = revisions.registered(table, partition)
    if not found:
        others = [revision.table_partition for revision in revisions.registered(table)]
        raise UsageError(
            f"{table} has no registered partition {partition!r}",
            remedy=f"registered: {', '.join(others[-5:]) or 'none'}",
        )
    revision = found[0]
    with session() as ledger:
        interval = ledger.get_one(IntervalRow, revision.interval_id)
        attempt = ledger.get_one(Attempt, revision.attempt_id)
        ranges = ledger.scalars(
            select(IntervalRange)
            .where(IntervalRange.interval_id == interval.id)
            .order_by(IntervalRange.topic, IntervalRange.topic_partition)
        ).all()
    verdict = attempt.verdict or {}
    return {
        "table": table,
        "partition": partition,
        "revision": revision.id,
        "location": revision.location,
        "catalog": _catalog(table, partition, revision.location),
        "rows": revision.rows,
        "content_hash": revision.content_hash,
        "files": _files(revision),
        "interval": {
            "from": format_time(interval.from_time),
            "to": format_time(interval.to_time),
            "state": interval.state,
            "pinned_by": interval.pinned_by,
            "pinned_at": format_time(interval.pinned_at),
        },
        "run": {
            "attempt": attempt.id,
            "run_by": attempt.run_by,
            "code_version": revision.code_version,
            "source": attempt.source,
            "started_at": format_time(attempt.started_at),
            "built_at": format_time(revision.built_at),
            "registered_at": format_time(revision.registered_at) if revision.registered_at else None,
            "ended_at": format_time(attempt.ended_at) if attempt.ended_at else None,
            "exit_code": attempt.exit_code,
        },
        "ranges": [
            {
                "topic": r.topic,
                "topic_id": r.topic_id,
                "partition": r.topic_partition,
                "from_offset": r.from_offset,
                "until_offset": r.until_offset,
                "archived": r.archived,
                "empty": r.empty,
                "quarantined": r.quarantined,
                "gaps": r.gaps,
            }
            for r in ranges
        ],
        "records": verdict.get("records", {}),
        "reconciliation": verdict.get("reconciliation", {}),
        "validation": verdict.get("validation", {}),
        "report": (interval.verdict or {}).get("report", ""),
        "revisions": _revisions(table, partition),
    }


def _catalog(table: str, partition: str, location: str) -> dict[str, Any]:
    """Where the catalog points at this moment, and whether that is the ledger's registered revision."""
    entry = catalog.partitions([table]).get((table, partition))
    return {
        "location": entry.location if entry else None,
        "agrees": entry is not None and catalog.place(entry.location) == catalog.place(location),
    }


def _files(revision: Revision) -> list[dict[str, Any]]:
    """The revision's files as noted when built, beside what their footers say now, and what differs."""
    found = []
    for name, noted in sorted(revision.files.items()):
        now = _footer(f"{revision.location}/{name}")
        differs = sorted(key for key in now.keys() & noted.keys() if now[key] != noted[key])
        if not now:
            differs = ["file"]
        found.append({"name": name, **noted, "now": now, "differs": differs})
    return found


def _footer(location: str) -> dict[str, Any]:
    """A file as it lies there: bytes, and rows and offset bounds by its footer; empty when it is missing or damaged.

    Formats other than Parquet have none for that: of their files the bytes' hash tells whether they are as noted.
    """
    try:
        if format_of(location) != "parquet":
            return {"sha256": lake.sha256(location), "bytes": lake.size(location)}
        footer = lake.footer(location)
        found: dict[str, Any] = {"rows": footer.num_rows, "bytes": lake.size(location)}
    except (OSError, ArrowInvalid):
        return {}
    for column in IDENTITY[:3]:
        bounds = lake.column_bounds(footer, column)
        if bounds:
            found[column] = list(bounds)
    return found


def _revisions(table: str, partition: str) -> list[dict[str, Any]]:
    """All revisions that the partition ever had, newest first, with who built them and what became of them."""
    with session() as ledger:
        rows = ledger.execute(
            select(Revision, Attempt)
            .join(Attempt, Attempt.id == Revision.attempt_id)
            .where(Revision.table_name == table, Revision.table_partition == partition)
            .order_by(Revision.built_at.desc())
        ).all()
    return [
        {
            "revision": revision.id,
            "state": revision.state,
            "rows": revision.rows,
            "content_hash": revision.content_hash,
            "code_version": revision.code_version,
            "run_by": attempt.run_by,
            "source": attempt.source,
            "built_at": format_time(revision.built_at),
            "registered_at": format_time(revision.registered_at) if revision.registered_at else None,
            "retired_at": format_time(revision.retired_at) if revision.retired_at else None,
            "files_lie_there": lake.exists(revision.location),
        }
        for revision, attempt in rows
    ]
