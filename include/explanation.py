"""From a table partition back to the offsets behind it, from the ledger alone."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from include.errors import UsageError
from include.intervals import format_time
from include.ledger import revisions
from include.ledger.database import session
from include.ledger.models import Attempt, IntervalRange, IntervalRow
from include.pipelines import all_pipelines


def explain(table: str, partition: str) -> dict[str, Any]:
    """Revision, files, interval, ranges with the fate of every offset, verdict, and who ran it.

    Raises UsageError for an unknown table, or a partition that is not registered.
    """
    known = [name for pipeline in all_pipelines() for name in pipeline.tables]
    if table not in known:
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
        "rows": revision.rows,
        "content_hash": revision.content_hash,
        "files": [{"name": name, **described} for name, described in sorted(revision.files.items())],
        "interval": {"from": format_time(interval.from_time), "to": format_time(interval.to_time)},
        "run": {
            "run_by": attempt.run_by,
            "code_version": revision.code_version,
            "source": attempt.source,
            "built_at": format_time(revision.built_at),
            "registered_at": format_time(revision.registered_at) if revision.registered_at else None,
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
    }
