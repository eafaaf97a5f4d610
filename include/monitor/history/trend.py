"""The page of a table: what each interval delivered, against what is usual for its length and hour of the day."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from statistics import median

from include.ledger.completeness import Completeness
from include.ledger.completeness.of_table import completeness_of_table
from include.ledger.intervals.states import IntervalState
from include.ledger.pages import trend as ledger
from include.ledger.pages.trend import FateTotals, IntervalFacts, RegisteredFacts
from include.monitor.history.expectations import ExpectationHistory, expectation_histories
from include.monitor.history.marks import code_changes, column_changes
from include.monitor.history.plot import Mark, Series, Trend, largest_series
from include.monitor.text import number, quantity
from include.offsets import ERASED
from include.pipelines.spec import Pipeline
from include.times import Interval

DAYS = 30
FEWEST = 3
"""How many values a kind of interval needs before something is usual for it."""
SPREADS = 3.0
"""How many spreads from the median a value becomes unusual."""
Kind = tuple[int, timedelta]
"""Hour of the day and length of an interval, which it is compared by: the schedule may have been changed."""

_NORMAL = 1.4826
"""Standard deviation per median absolute deviation of a normal distribution."""

_LEAST_SPREAD, _LEAST_SHARE = 1.0, 0.01
"""A spread is at least so many rows, and such a share of the median: of intervals alike no row more is unusual."""


@dataclass(frozen=True)
class Point:
    """An interval of the table."""

    label: str
    from_time: datetime
    state: str
    rows: int | None
    """Registered rows; None before any registration."""
    usual: float | None
    """Median of intervals of its length at its hour of the day; None with too few values."""
    spread: float | None
    is_unusual: bool
    freshness: float | None
    """Seconds from the interval's end to its first registration."""
    fates: FateTotals | None
    late: int | None
    pending: int | None
    unexplained: int | None
    code_version: str
    failed_expectations: int


@dataclass(frozen=True)
class TablePage:
    """The page of a table."""

    table: str
    pipeline: str
    since: datetime
    until: datetime
    complete: Completeness
    """Until when it has everything, and what it waits for."""
    waits_label: str
    """Name of the page of the interval that it waits for; empty where that is none, or no interval."""
    newest: datetime | None
    """End of the newest registered interval of the time shown; what lies before it may have holes."""
    points: tuple[Point, ...]
    trends: tuple[Trend, ...]
    expectations: tuple[ExpectationHistory, ...]
    """Those that failed most first."""
    unusual: int
    unexplained: int
    days: int = DAYS


def read_table(pipeline: Pipeline, table: str, *, now: datetime, days: int = DAYS) -> TablePage:
    """Return the page of a table over the last days."""
    since = now - timedelta(days=days)
    builds = ledger.built_intervals(pipeline.name, since, now)
    registered = _with_empty(table, builds, ledger.registered_rows(table, pipeline.name, since, now))
    fates = ledger.fates(pipeline.name, since, now)
    observed = ledger.expectations(table, [each.build for each in builds])
    usual = usual_rows([(_kind(each), registered[each.id].rows) for each in builds if each.id in registered])
    failed: dict[int, int] = {}
    for each in observed:
        failed[each.build] = failed.get(each.build, 0) + (not each.success)
    points = tuple(_point(each, registered.get(each.id), fates.get(each.id), usual, failed) for each in builds)
    columns = [(each.label, (facts.columns or {}).get(table)) for each, facts in zip(points, builds, strict=True)]
    marks = (*code_changes([(each.label, each.code_version) for each in points]), *column_changes(columns))
    ends = [each.to_time for each in builds if each.id in registered]
    trends = (*_trends(points, marks), _quarantine(pipeline.name, builds, since, now))
    expectations = expectation_histories(observed, builds, marks)
    unusual, unexplained = sum(p.is_unusual for p in points), sum(p.unexplained or 0 for p in points)
    complete = completeness_of_table(pipeline.name, table)
    waits = complete.waits_for
    return TablePage(
        table,
        pipeline.name,
        since,
        now,
        complete,
        Interval(waits.from_time, waits.to_time).label if waits and waits.kind != "missing" else "",
        max(ends, default=None),
        points,
        trends,
        expectations,
        unusual,
        unexplained,
        days,
    )


def _with_empty(
    table: str, builds: Sequence[IntervalFacts], registered: dict[int, RegisteredFacts]
) -> dict[int, RegisteredFacts]:
    """Add the registered intervals without a row of the table: they have no revision, but the table was built."""
    empty = {
        each.id: RegisteredFacts(0, "", None)
        for each in builds
        if each.state == IntervalState.REGISTERED and (each.columns is None or table in each.columns)
    }
    return empty | registered


def _kind(each: IntervalFacts) -> Kind:
    return each.from_time.hour, each.to_time - each.from_time


def usual_rows(rows: Sequence[tuple[Kind, int]]) -> dict[Kind, tuple[float, float]]:
    """Return median and spread of the rows of each kind of interval; kinds with fewer than `FEWEST` are left out.

    The spread is the median absolute deviation, scaled to a standard deviation: one bad day does not move it. Intervals
    that are all alike have the least one.
    """
    by_kind: dict[Kind, list[int]] = {}
    for kind, count in rows:
        by_kind.setdefault(kind, []).append(count)
    usual = {}
    for kind, counts in by_kind.items():
        if len(counts) >= FEWEST:
            middle = median(counts)
            spread = _NORMAL * median(abs(count - middle) for count in counts)
            usual[kind] = middle, max(spread, _LEAST_SPREAD, _LEAST_SHARE * middle)
    return usual


def _point(
    each: IntervalFacts,
    registered: RegisteredFacts | None,
    fates: FateTotals | None,
    usual: dict[Kind, tuple[float, float]],
    failed: dict[int, int],
) -> Point:
    middle, spread = usual.get(_kind(each), (None, None))
    rows = registered.rows if registered else None
    freshness = None
    if registered and registered.first_registered_at:
        freshness = (registered.first_registered_at - each.to_time).total_seconds()
    far = middle is not None and spread is not None and rows is not None and abs(rows - middle) > SPREADS * spread
    return Point(
        Interval(each.from_time, each.to_time).label,
        each.from_time,
        each.state,
        rows,
        middle,
        spread,
        far,
        freshness,
        fates,
        each.late,
        each.pending,
        each.unexplained,
        registered.code_version if registered else "",
        failed.get(each.build, 0),
    )


def _shown_fates(points: Sequence[Point]) -> list[str]:
    """Return the fates of the stack; `erased` only if anything was: few pipelines ever erase."""
    every = [each.name for each in fields(FateTotals)]
    return [name for name in every if name != ERASED or any(p.fates and p.fates.erased for p in points)]


def _trends(points: Sequence[Point], marks: tuple[Mark, ...]) -> tuple[Trend, ...]:
    def values(name: str) -> tuple[float | None, ...]:
        return tuple(getattr(point, name) for point in points)

    def of_fate(name: str) -> Series:
        return Series(name, tuple(getattr(point.fates, name) if point.fates else None for point in points), name)

    around = [
        (None, None)
        if p.usual is None or p.spread is None
        else (p.usual - p.spread * SPREADS, p.usual + p.spread * SPREADS)
        for p in points
    ]
    low, high = tuple(None if a is None else max(a, 0.0) for a, _ in around), tuple(b for _, b in around)
    unusual = sum(point.is_unusual for point in points)
    unexplained = sum(point.unexplained or 0 for point in points)
    usual = (
        f"The band is the median of intervals as long, at the same hour of the day, {SPREADS:.0f} spreads up and down."
    )
    return (
        Trend(
            "rows",
            "Rows per interval",
            "rows",
            f"{usual} Outside of it: {unusual} of {quantity(len(points), 'interval')}.",
            "lines",
            (Series("registered", values("rows")), Series("usual", values("usual"))),
            low,
            high,
            marks=marks,
            tone="bad" if unusual else "",
        ),
        Trend(
            "unexplained",
            "Unexplained differences",
            "differences",
            "Between archive, Kafka and speed views. It has to be 0: any other interval is not registered.",
            "lines",
            (Series("unexplained", values("unexplained")),),
            bounds=(0.0,),
            marks=marks,
            tone="bad" if unexplained else "",
        ),
        Trend(
            "freshness",
            "Freshness",
            "seconds from the interval's end to its first registration",
            "A backfill is late by its nature.",
            "lines",
            (Series("freshness", values("freshness")),),
            marks=marks,
        ),
        Trend(
            "fates",
            "Fate of every offset",
            "offsets of the pipeline",
            "",
            "stack",
            tuple(map(of_fate, _shown_fates(points))),
            marks=marks,
        ),
        Trend(
            "late",
            "Late rows",
            "rows that arrived after a window was closed, once per window, of all views of the pipeline",
            "The batch view counts them, the speed view cannot. Where windows overlap, a row may be late for several.",
            "lines",
            (Series("late", values("late")),),
            marks=marks,
        ),
        Trend(
            "pending",
            "Pending keys",
            "keys of all views of the pipeline, and flags",
            "One layer holds more so far: the rest lies in another interval, or is still to be emitted.",
            "lines",
            (Series("pending", values("pending")),),
            marks=marks,
        ),
    )


def _quarantine(pipeline: str, builds: Sequence[IntervalFacts], since: datetime, until: datetime) -> Trend:
    counts: dict[str, list[float | None]] = {}
    elsewhere = 0
    for each in ledger.quarantine_by_hour(pipeline, since, until):
        place = _place(builds, each.hour)
        if place is None:
            elsewhere += each.records
            continue
        of_reason = counts.setdefault(each.reason, [None] * len(builds))
        of_reason[place] = (of_reason[place] or 0) + each.records
    note = "By the hour in which they came into quarantine."
    if elsewhere:
        note += f" {number(elsewhere)} more came in hours of which no interval is shown."
    return Trend("quarantine", "Quarantine by reason", "records", note, "stack", largest_series(counts))


def _place(builds: Sequence[IntervalFacts], hour: datetime) -> int | None:
    """Return the place of the interval that an hour lies in, of shorter ones the last; None if that was not built."""
    place = bisect_left(builds, hour + timedelta(hours=1), key=lambda each: each.from_time) - 1
    return place if place >= 0 and builds[place].to_time > hour else None
