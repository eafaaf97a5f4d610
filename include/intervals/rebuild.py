"""Builds a registered partition again from its pinned ranges, and compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from include import lake
from include.errors import TidemarkError, UsageError
from include.intervals.steps import readable_source, submit
from include.ledger.database import session
from include.ledger.intervals import attempts, pins, revisions
from include.ledger.models import IntervalRow
from include.spark.submission import SparkSubmission
from include.versions import code_version


def rebuild(
    table: str, partition: str, source: Literal["kafka", "archive"], run: Callable[[SparkSubmission], int]
) -> dict[str, Any]:
    """Rebuild the partition's interval, compare, and discard what was built; the catalog is not touched.

    Raises UsageError when the partition is not registered, TidemarkError when the build fails.
    """
    registered = revisions.registered(table, partition)
    if not registered:
        raise UsageError(f"{table} has no registered partition {partition!r}", remedy="./tidemark explain lists them")
    with session() as ledger:
        row = ledger.get_one(IntervalRow, registered[0].interval_id)
    pinned = pins.pinned_intervals(row.pipeline, row.from_time)[0]
    source = readable_source(pinned, source)
    attempt = attempts.begin_attempt(pinned, run_by="rebuild", code_version=code_version(row.pipeline), source=source)
    code = run(submit("build_interval", row.pipeline, attempt))
    built = revisions.of_attempt(attempt)
    try:
        if code:
            error = TidemarkError(f"the rebuild of {table} {partition} ended with exit code {code}")
            error.exit_code = code
            raise error
        again = next((b for b in built if (b.table, b.partition) == (table, partition)), None)
        return {
            "table": table,
            "partition": partition,
            "source": source,
            "registered_hash": registered[0].content_hash,
            "rebuilt_hash": again.content_hash if again else None,
            "rows": again.rows if again else 0,
            "equal": again is not None and again.content_hash == registered[0].content_hash,
        }
    finally:
        attempts.close_attempt(attempt, code)
        revisions.set_state(built, "discarded")
        for each in built:
            lake.delete(each.location)
