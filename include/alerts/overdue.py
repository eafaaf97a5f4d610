"""Intervals that are not registered by their deadline, and streams that were given up or hung, watched from outside.

Airflow's own deadlines belong to runs: one that the scheduler never created has none, one that a backfill makes has
missed it already, and nobody is told when it is over. The ledger knows all of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from include import alerts
from include.alerts import key_limits
from include.intervals.telling.addresses import stream_page
from include.ledger.alerts import Alert, open_alerts
from include.ledger.archive.micro_batches import last_batch
from include.ledger.intervals.days import registered_starts
from include.ledger.streams.writers import live_writer
from include.pipelines.spec import Pipeline
from include.times import Interval, format_time

LOOKED_BACK = timedelta(days=1)
"""How far back overdue intervals are looked for; older ones are told as never built."""

STEADY = timedelta(minutes=2)
"""How long a driver must have held the lease until its stream counts as recovered."""


@dataclass(frozen=True)
class Overdue:
    """Intervals of a pipeline that are not registered though their deadline has passed."""

    pipeline: str
    intervals: tuple[Interval, ...]
    """In order; never empty."""
    since: datetime
    """Deadline of the first."""


def find_overdue(pipeline: Pipeline, now: datetime) -> Overdue | None:
    """Return the pipeline's overdue intervals of the last day; None without one, or when it never had an interval."""
    schedule = pipeline.schedule
    end = schedule.floor(now - schedule.registered_within)
    first, registered = registered_starts(pipeline.name, end - LOOKED_BACK, end)
    if first is None:
        return None
    begin = max(schedule.floor(end - LOOKED_BACK), first)
    starts = [begin + number * schedule.every for number in range(max(0, (end - begin) // schedule.every))]
    missing = tuple(Interval(each, each + schedule.every) for each in starts if each not in registered)
    return Overdue(pipeline.name, missing, missing[0].to_time + schedule.registered_within) if missing else None


def watch(pipeline: Pipeline, now: datetime | None = None) -> dict[str, int]:
    """Tell of a pipeline's overdue intervals and views with too many keys, and what is over; return the counts."""
    now = now or datetime.now(UTC)
    key, overdue = f"overdue/{pipeline.name}", find_overdue(pipeline, now)
    recovered = 0
    if overdue is None:
        recovered += alerts.recover(key)
    else:
        alerts.tell(_alert(key, pipeline, overdue))
    recovered += _recover_stream(pipeline.name, now)
    over_limit, below_again = key_limits.watch(pipeline)
    return {
        "overdue": len(overdue.intervals) if overdue else 0,
        "over_limit": over_limit,
        "recovered": recovered + below_again,
        # What a receiver missed while it was away.
        "told": alerts.tell_untold(),
    }


def _alert(key: str, pipeline: Pipeline, overdue: Overdue) -> Alert:
    first, minutes = overdue.intervals[0], pipeline.schedule.registered_within // timedelta(minutes=1)
    command = (
        f"./tidemark interval {pipeline.name} --from {format_time(first.from_time)} --to {format_time(first.to_time)}"
    )
    page = stream_page(pipeline.name)
    return Alert(
        key,
        pipeline.name,
        f"{len(overdue.intervals)} intervals are not registered {minutes} minutes after their end",
        f"interval__{pipeline.name}, first {first}",
        overdue.since,
        f"look at the failed or waiting task of interval__{pipeline.name}, is its stream behind? {page} — or {command}",
        {"intervals": [str(each) for each in overdue.intervals[:24]]},
    )


def _recover_stream(pipeline: str, now: datetime) -> int:
    """Tell that a stream works again whose driver has held its lease for a while since it failed.

    Of a stream that was stalled, the stalled query must have committed since: a driver that hangs holds its lease, too.
    """
    key = f"stream/{pipeline}"
    live, told = live_writer(pipeline), next((each for each in open_alerts(key) if each.key == key), None)
    if told is None or live is None or live.acquired_at < told.since or now - live.acquired_at < STEADY:
        return 0
    if stalled := told.facts.get("query"):
        last = last_batch(pipeline, stalled)
        if last is None or last.committed_at < told.since:
            return 0
    return int(alerts.recover(key))
