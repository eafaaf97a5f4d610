"""Renamed columns: intervals whose registered files lack a new name are built, validated and registered again.

A table shows a renamed column by its former name until all of its registered files have the new one
(`include/catalog/renames.py`). Reruns bring that about, in any order; here those that are left are run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from include.catalog.changes import CatalogChange, change_catalog
from include.catalog.columns import column_changes
from include.catalog.renames import shown_names, stored_columns
from include.errors import TidemarkError, UsageError, error_class
from include.intervals import steps
from include.ledger.columns.renames import intervals_lacking
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.pipelines.spec import Pipeline
from include.times import format_time

Tell = Callable[[str], None]


def left_to_rename(pipeline: Pipeline) -> list[PinnedInterval]:
    """Return the intervals that keep a table from showing a renamed column by its new name, oldest first."""
    wanted = {table: formerly for table in pipeline.tables if (formerly := pipeline.formerly(table))}
    return intervals_lacking(pipeline.name, wanted) if wanted else []


def rename(pipeline: Pipeline, run_by: str, tell: Tell) -> dict[str, Any]:
    """Run the intervals again that lack a new name; the last one lets the tables show it. Killed, it goes on.

    An interval is left whose run would take back what newer code corrected: Kafka no longer holds it.

    Raises UsageError for a pipeline without a renamed column, and what an interval's end means.
    """
    if not any(pipeline.formerly(table) for table in pipeline.tables):
        raise UsageError(
            "no column is declared as renamed", remedy='declare renamed={"NEW": "OLD"}', pipeline=pipeline.name
        )
    left, built = left_to_rename(pipeline), 0
    for number, pinned in enumerate(left, 1):
        source = steps.source_as_registered(pinned)
        if source is None:
            tell(f"{pipeline.name}: {pinned.interval} is left ({number} of {len(left)}): {_only_as_landed(pinned)}")
            continue
        tell(f"{pipeline.name}: {pinned.interval} is built again ({number} of {len(left)})")
        _run_again(pipeline, pinned, run_by, source)
        built += 1
    _follow(pipeline)
    return state(pipeline, built)


def _only_as_landed(pinned: PinnedInterval) -> str:
    begin, end = format_time(pinned.interval.from_time), format_time(pinned.interval.to_time)
    return (
        "newer code has decoded it from Kafka, which no longer holds all of its offsets. To have its rows as they "
        "landed instead, by the new name: "
        f"./tidemark interval {pinned.pipeline} --from {begin} --to {end} --source archive"
    )


def _follow(pipeline: Pipeline) -> None:
    """Let tables show what they may show by now, where a kill kept the last publication from it."""
    behind = [table for table in pipeline.tables if _lags(pipeline, table)]
    if behind:
        changes = [CatalogChange(pipeline.name, each, "", "follow the declaration") for each in behind]
        if code := change_catalog(changes, "rename columns"):
            raise error_class(code)(
                f"the catalog's application ended with {code}; the tables go on to show the former names",
                remedy=f"see to what the log above names, then again: ./tidemark rename {pipeline.name}",
                pipeline=pipeline.name,
            )
    if pipeline.iceberg_tables:
        from include.iceberg.tables import follow_columns

        follow_columns(pipeline)


def _lags(pipeline: Pipeline, table: str) -> bool:
    stored = stored_columns(table) if pipeline.formerly(table) else None
    if stored is None:
        return False
    changes = column_changes(pipeline, table, stored, shown_names(pipeline, table, stored))
    return any(each.was for each in changes.followed)


def state(pipeline: Pipeline, built: int = 0) -> dict[str, Any]:
    """Return which columns tables show by a former name yet, and which intervals are left."""
    shown = {table: names for table in pipeline.tables if (names := shown_names(pipeline, table))}
    left = [format_time(each.interval.from_time) for each in left_to_rename(pipeline)]
    return {"pipeline": pipeline.name, "built_intervals": built, "left": left, "shown_as": shown}


def _run_again(pipeline: Pipeline, pinned: PinnedInterval, run_by: str, source: Source) -> None:
    def ended(code: int) -> TidemarkError:
        return _ended(pipeline, pinned, f"ended with {code}", code)

    verdict = steps.run_again(pinned, run_by=f"rename {run_by}", source=source, ended=ended)
    if verdict.exit_code:
        raise _ended(pipeline, pinned, verdict.in_words(), verdict.exit_code)


def _ended(pipeline: Pipeline, pinned: PinnedInterval, why: str, code: int) -> TidemarkError:
    return error_class(code)(
        f"{pinned.interval}: {why}; the tables go on to show the former names",
        remedy=f"see to what the log above names, then again: ./tidemark rename {pipeline.name}",
        pipeline=pipeline.name,
    )
