"""Watched from outside: overdue intervals, streams that were given up or hung, and erasures that were interrupted.

Airflow's own deadlines belong to runs: a run that the scheduler never created has none, a backfill's run has already
missed it, and nobody is notified when it is over. The ledger knows all of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from include import alerts
from include.alerts import erasures, key_limits
from include.intervals.reporting.addresses import stream_page
from include.intervals.reporting.asking import has_asked
from include.ledger.alerts import Alert, dismissed_alerts, open_alerts
from include.ledger.alerts.noted import add_facts
from include.ledger.archive.committed import first_commit
from include.ledger.archive.micro_batches import last_batch
from include.ledger.database import clock
from include.ledger.intervals.days import pinned_within
from include.ledger.intervals.missing import unpinned_spans
from include.ledger.streams.restarts import IN_A_ROW, longest_in_a_row
from include.ledger.streams.writers import live_writer
from include.monitor.lag import queries_of
from include.monitor.text import quantity
from include.pipelines.spec import Pipeline
from include.spark.submission import SPARK_POOL
from include.times import Interval, format_time, time_or_none

LOOKED_BACK = timedelta(days=1)
"""How far back overdue intervals are looked for; doctor reports older ones that were never built."""

STEADY = timedelta(minutes=2)
"""How long a driver must have held the lease at least until its stream counts as recovered."""


@dataclass(frozen=True)
class Overdue:
    """Intervals of a pipeline that are not registered though their deadline has passed."""

    pipeline: str
    intervals: tuple[Interval, ...]
    """In order; never empty."""
    since: datetime
    """Deadline of the first."""


def find_overdue(pipeline: Pipeline, now: datetime) -> Overdue | None:
    """Return the pipeline's overdue intervals of the last day; None without one, or when it has no archive yet."""
    schedule = pipeline.schedule
    due = now - schedule.registered_within
    end = schedule.floor(due)
    found = _unregistered(pipeline, end - LOOKED_BACK, end, due, patience=schedule.every)
    missing = tuple(each for each in found if each.to_time <= due)
    return Overdue(pipeline.name, missing, missing[0].to_time + schedule.registered_within) if missing else None


def _unregistered(
    pipeline: Pipeline, begin: datetime, end: datetime, due: datetime, *, patience: timedelta = timedelta(0)
) -> tuple[Interval, ...]:
    """Return the intervals that are not registered, from the pipeline's first one on.

    Pinned ones that begin before `due` as they are, for the schedule may have changed since; the last may end later.
    Between and after them those of the schedule until `end`; between them only where offsets are, for an hour without
    any needs nothing. When none was ever pinned, those since the archive's first micro-batch, if that was committed
    longer than `patience` before `due`.
    """
    first, pinned = pinned_within(pipeline.name, begin, due)
    if first is None:
        begun = first_commit(pipeline.name)
        if begun is None or begun + patience > due:
            return ()
        first = pipeline.schedule.floor(begun)
    times = pipeline.schedule.around(pinned, max(begin, first), end)
    found = [each for each in times if not pinned.get(each)]
    last = max((each.from_time for each in pinned), default=first)
    between = {each for each in found if each not in pinned and each.to_time <= last}
    with_offsets = unpinned_spans(pipeline.name) if between else []
    return tuple(each for each in found if each not in between or any(_overlap(each, span) for span in with_offsets))


def _overlap(one: Interval, other: Interval) -> bool:
    return one.from_time < other.to_time and other.from_time < one.to_time


def watch(pipeline: Pipeline, now: datetime | None = None) -> dict[str, int]:
    """Alert about a pipeline's overdue intervals, views with too many keys and interrupted erasures, and their end.

    Return the counts.

    Whoever watches several pipelines does it inside `alerts.sent_together`.
    """
    # The ledger's clock, as for leases, commits and alerts: a wrong clock of this host delays no end of an alert.
    now = now or clock()
    overdue = find_overdue(pipeline, now)
    recovered = _watch_overdue(pipeline, overdue) + _recover_stream(pipeline, now)
    recovered += erasures.watch(pipeline.name, now)
    over_limit, below_again = key_limits.watch(pipeline)
    return {
        "overdue": len(overdue.intervals) if overdue else 0,
        "over_limit": over_limit,
        "recovered": recovered + below_again,
    }


def _watch_overdue(pipeline: Pipeline, overdue: Overdue | None) -> int:
    """Alert about overdue intervals that no open alert is about; return how many alerts are over.

    An alert is about its first interval and those that become overdue after it, with none between them that is
    registered. It is over when all of these are registered, however old they are by then. If they never are, it stays
    open until somebody dismisses it; later overdue intervals get an alert of their own.
    """
    recovered, untold = 0, _undismissed(pipeline, overdue) if overdue else []
    found = tuple(untold)
    for told in _of_pipeline(pipeline, open_alerts(_key(pipeline))):
        from_time, until = _told_of(pipeline, told)
        missing = _unregistered(pipeline, from_time, until, until)
        about = _about(from_time, until, missing, found)
        if about and (last := about[-1].to_time) > until:
            add_facts(told.key, {"until": format_time(last)})
        elif not about and not missing:
            recovered += alerts.recover(told.key)
        untold = [each for each in untold if each not in about]
    if untold:
        since = untold[0].to_time + pipeline.schedule.registered_within
        alerts.raise_alert(_alert(pipeline, Overdue(pipeline.name, tuple(untold), since)))
    return recovered


def _about(
    from_time: datetime, until: datetime, missing: Sequence[Interval], overdue: Sequence[Interval]
) -> list[Interval]:
    """Return the overdue intervals that an alert is about: its own, and those that follow one that is still missing."""
    about: list[Interval] = []
    end = missing[-1].to_time if missing else until
    for each in overdue:
        if _overlap(each, Interval(from_time, until)) or (missing and each.from_time == end):
            about.append(each)
            end = max(end, each.to_time)
    return about


def _undismissed(pipeline: Pipeline, overdue: Overdue) -> list[Interval]:
    """Return the overdue intervals except those that a dismissed alert was about."""
    dismissed = dismissed_alerts(_key(pipeline), overdue.intervals[0].to_time)
    spans = [_told_of(pipeline, told) for told in _of_pipeline(pipeline, dismissed)]
    return [
        each
        for each in overdue.intervals
        if not any(begin <= each.from_time and each.to_time <= until for begin, until in spans)
    ]


def _of_pipeline(pipeline: Pipeline, alerts: list[Alert]) -> list[Alert]:
    key = _key(pipeline)
    # The name of a pipeline may be the beginning of another's.
    return [each for each in alerts if each.key == key or each.key.startswith(f"{key}/")]


def _told_of(pipeline: Pipeline, told: Alert) -> tuple[datetime, datetime]:
    """Return beginning and end of the intervals that an alert is about."""
    first_end, intervals = told.since - pipeline.schedule.registered_within, told.facts.get("intervals", ())
    # The schedule may have changed since. Older code may have erased a key that was a part of a time.
    begin = time_or_none(intervals[0].split("/")[0]) if intervals else None
    begin = begin or first_end - pipeline.schedule.every
    if until := time_or_none(told.facts.get("until", "")):
        return begin, until
    # Raised by an older version of the code.
    further = max(0, len(intervals) - 1)
    return begin, first_end + further * pipeline.schedule.every


def _key(pipeline: Pipeline) -> str:
    return f"overdue/{pipeline.name}"


def _alert(pipeline: Pipeline, overdue: Overdue) -> Alert:
    first, minutes = overdue.intervals[0], pipeline.schedule.registered_within // timedelta(minutes=1)
    command = (
        f"./tidemark interval {pipeline.name} --from {format_time(first.from_time)} --to {format_time(first.to_time)}"
    )
    page = stream_page(pipeline.name)
    return Alert(
        f"{_key(pipeline)}/{first.label}",
        pipeline.name,
        f"{quantity(len(overdue.intervals), 'interval')} not registered {quantity(minutes, 'minute')} after the end",
        f"interval__{pipeline.name}, first {first}",
        overdue.since,
        f"{_asked(pipeline)}is interval__{pipeline.name} unpaused? Look at its failed or waiting task, is its stream "
        f"behind? {page} Has Airflow's pool {SPARK_POOL} the {quantity(pipeline.spark_slots, 'slot')} that a driver "
        f"takes? — or {command}",
        {
            "intervals": [str(each) for each in overdue.intervals[:24]],
            "until": format_time(overdue.intervals[-1].to_time),
        },
    )


def _asked(pipeline: Pipeline) -> str:
    """Return what to do first where intervals wait for a person: nothing where none does.

    Without their number, for the text stays while more of them come to wait.
    """
    if not has_asked(pipeline.name):
        return ""
    return (
        f"intervals wait for approval, which ones by now: ./tidemark alerts list {pipeline.name}. Those that Airflow "
        "built have a run each; when these are as many as it allows, no further one begins until you answer. Else: "
    )


def stream_keys(pipeline: str) -> tuple[str, str]:
    """Return the keys of the alerts about a stream that fails or hangs, and about a run that ended for good."""
    return f"stream/{pipeline}", f"stream/{pipeline}/ended"


def _recover_stream(pipeline: Pipeline, now: datetime) -> int:
    """Close the alert about a stream whose driver has held its lease for a while since it failed.

    For longer than each driver that failed in a row before it: one that ends every ten minutes would be told as failing
    and as recovered for ever. The query of a stalled stream must have committed since instead: a hanging driver holds
    its lease too. One that is no longer declared never will. A command that holds the lease runs no query.
    """
    keys, live = stream_keys(pipeline.name), live_writer(pipeline.name)
    if live is None or live.command or now - live.acquired_at < STEADY:
        return 0
    told = [each for each in open_alerts(keys[0]) if each.key in keys and _raised(each) <= live.acquired_at]
    return sum(alerts.recover(each.key) for each in told if _works_again(pipeline, each, now - live.acquired_at))


def _works_again(pipeline: Pipeline, told: Alert, held: timedelta) -> bool:
    stalled = told.facts.get("query")
    if not stalled:
        return held > longest_in_a_row(pipeline.name, IN_A_ROW)
    if stalled not in queries_of(pipeline):
        return True
    last = last_batch(pipeline.name, stalled)
    return last is not None and last.committed_at >= _raised(told)


def _raised(told: Alert) -> datetime:
    return told.raised_at or told.since
