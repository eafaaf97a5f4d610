"""The daily roll-up: one JSON file that sums up a day whose intervals are all registered."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from include import lake
from include.errors import TidemarkError, UsageError
from include.ledger.intervals.days import day_totals, pinned_within
from include.monitor.text import quantity
from include.pipelines.spec import Pipeline
from include.times import format_time

DAY = timedelta(days=1)


def parse_day(text: str) -> datetime:
    """Return the start of a day such as `2026-11-20`, UTC. Raises UsageError for any other text."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise UsageError(f"not a day: {text!r}", remedy="write it like 2026-11-20") from None


def roll_up(pipeline: Pipeline, day: datetime) -> dict[str, Any]:
    """Write and return the day's totals: pipeline, day, intervals, records by fate, rows and partitions by table, file.

    Raises TidemarkError naming the first interval that is not registered.
    """
    totals = day_totals(pipeline.name, day, day + DAY)
    # The schedule may have changed since they were pinned.
    _, pinned = pinned_within(pipeline.name, day, day + DAY)
    missing = [each for each in pipeline.schedule.around(pinned, day, day + DAY) if not pinned.get(each)]
    if missing:
        first = missing[0]
        raise TidemarkError(
            f"{quantity(len(missing), 'interval')} of {day:%Y-%m-%d} not registered, first {first}",
            remedy=f"./tidemark interval {pipeline.name} --from {format_time(first.from_time)} "
            f"--to {format_time(first.to_time)}",
            pipeline=pipeline.name,
        )
    summary = {
        "pipeline": pipeline.name,
        "day": f"{day:%Y-%m-%d}",
        "intervals": len(totals.intervals),
        "records": dict(totals.records),
        "tables": {table: asdict(of_table) for table, of_table in totals.tables.items()},
    }
    location = lake.uri("reports", pipeline.name, f"{day:%Y-%m-%d}.json")
    lake.write_text(location, json.dumps(summary, indent=2, sort_keys=True) + "\n")
    return {**summary, "file": location.removeprefix("file://")}
