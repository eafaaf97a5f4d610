"""The calendar strips: a cell for each interval of a table, and what needs somebody's attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from include.ledger.archive.committed import first_commit
from include.ledger.intervals.missing import MissingIntervals, missing_intervals
from include.ledger.intervals.states import IntervalState
from include.ledger.pages.calendar import KnownInterval, known_intervals, pinned_time, unregistered_intervals
from include.monitor.history.doctor_look import Look
from include.monitor.history.remedies import Advice
from include.monitor.history.states import MEANINGS, RED, CellState, advice_for, interval_state
from include.monitor.text import number, quantity
from include.pipelines.spec import Pipeline
from include.times import Interval

DAYS = 30
MOST_ATTENTION = 50
"""How many intervals are named one by one; the others are counted."""


@dataclass(frozen=True)
class Cell:
    """An interval of a table."""

    label: str
    """Name of the interval's page; empty for a time that holds nothing."""
    state: CellState
    rows: int | None
    """Registered rows."""
    late: int
    """Table partitions of an earlier date, and late rows of the pipeline, once per window and view, where the table
    has any of them."""
    is_pinned: bool = True
    """Whether the interval has a page: of one that was never pinned nothing is known but that it lacks."""

    @property
    def words(self) -> str:
        """What the cell says to a screen reader."""
        rows = "" if self.rows is None else f", {quantity(self.rows, 'row')}"
        late = f", {quantity(self.late, 'late addition')}" if self.late else ""
        return f"{self.label} {self.state.value}{rows}{late}"


@dataclass(frozen=True)
class Day:
    """The intervals of a day."""

    date: date
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Strip:
    """The calendar of a table."""

    pipeline: str
    table: str
    days: tuple[Day, ...]
    """Latest first."""
    counts: Mapping[str, int]
    """Intervals by state."""
    late: int
    """Intervals with late additions."""

    @property
    def is_bare(self) -> bool:
        """Whether nothing of it was ever pinned, nor is due."""
        return set(self.counts) <= {CellState.NONE}

    @property
    def summary(self) -> str:
        """How many intervals are in each state."""
        counted = ", ".join(f"{number(count)} {state}" for state, count in self.counts.items() if state != "none")
        late = f"; late additions in {number(self.late)}" if self.late else ""
        return f"{counted or 'nothing is pinned'}{late}"


@dataclass(frozen=True)
class Attention:
    """An interval that needs somebody's attention."""

    pipeline: str
    label: str
    state: CellState
    advice: Advice
    is_registered: bool
    """Whether an earlier attempt's tables stay registered."""
    is_pinned: bool
    """Whether it has a page."""


@dataclass(frozen=True)
class Calendar:
    """The intervals page."""

    since: datetime
    until: datetime
    attention: tuple[Attention, ...]
    """Failures first, each kind with the latest first; also those from before the days shown."""
    attention_left_out: int
    strips: tuple[Strip, ...]
    """Those with red cells first."""
    meanings: Mapping[str, str]
    doctor: Mapping[str, Look] = field(default_factory=dict)
    """By pipeline: what the doctor found last."""
    days: int = DAYS
    only: str = ""
    """The one pipeline that is shown; empty for all."""
    on_their_way: int = 0
    """How many of those that need attention are due, and still have time by their schedule."""
    pipelines: tuple[str, ...] = ()
    """Those that the visitor may choose from."""


def read_calendar(pipelines: Sequence[Pipeline], *, now: datetime, days: int = DAYS) -> Calendar:
    """Return the calendar of the pipelines over the last days, failures first."""
    until = now.astimezone(UTC)
    since = until.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=days - 1)
    names = [pipeline.name for pipeline in pipelines]
    known: dict[str, dict[datetime, KnownInterval]] = {name: {} for name in names}
    for each in known_intervals(names, since, until):
        known[each.pipeline][each.from_time] = each
    pinned = pinned_time(names)
    strips: list[Strip] = []
    attention: list[Attention] = []
    on_their_way = 0
    for pipeline in pipelines:
        begun = pinned.get(pipeline.name) or _nothing_pinned(pipeline)
        # The schedule may have changed since they were pinned.
        as_pinned = [Interval(each.from_time, each.to_time) for each in known[pipeline.name].values()]
        times = list(pipeline.schedule.around(as_pinned, since, pipeline.schedule.floor(until)))
        missing = missing_intervals(pipeline.name)
        states = {
            time: interval_state(known[pipeline.name].get(time.from_time), time, begun, missing) for time in times
        }
        attention += _attention(pipeline.name, states, known[pipeline.name])
        attention += _older(pipeline, since, missing)
        in_time = until - pipeline.schedule.registered_within
        on_their_way += sum(state is CellState.DUE and time.to_time > in_time for time, state in states.items())
        strips += [_strip(pipeline, table, states, known[pipeline.name]) for table in pipeline.tables]
    attention.sort(key=lambda each: each.label, reverse=True)
    attention.sort(key=lambda each: RED.index(each.state))
    strips.sort(key=lambda strip: -sum(strip.counts.get(state.value, 0) for state in RED))
    meanings = {state.value: words for state, words in MEANINGS.items()}
    left_out = max(len(attention) - MOST_ATTENTION, 0)
    shown = tuple(attention[:MOST_ATTENTION])
    return Calendar(since, until, shown, left_out, tuple(strips), meanings, on_their_way=on_their_way)


def _nothing_pinned(pipeline: Pipeline) -> tuple[datetime, datetime] | None:
    """Return where the intervals of a pipeline that never had one would begin; None before it has an archive."""
    begun = first_commit(pipeline.name)
    return None if begun is None else (pipeline.schedule.floor(begun),) * 2


def _strip(
    pipeline: Pipeline, table: str, states: Mapping[Interval, CellState], known: Mapping[datetime, KnownInterval]
) -> Strip:
    # No row is too late for the other views.
    views = [view for view in pipeline.views if view.mode == "update" and not view.is_total]
    takes_late = table in (pipeline.table, *map(pipeline.view_table, views))
    days: dict[date, list[Cell]] = {}
    for time, state in states.items():
        cell = _cell(table, time, state, known.get(time.from_time), takes_late=takes_late)
        days.setdefault(time.from_time.date(), []).append(cell)
    cells = [cell for of_day in days.values() for cell in of_day]
    counted = Counter(cell.state for cell in cells)
    return Strip(
        pipeline.name,
        table,
        tuple(Day(day, tuple(of_day)) for day, of_day in sorted(days.items(), reverse=True)),
        {state.value: counted[state] for state in CellState if counted[state]},
        sum(1 for cell in cells if cell.late),
    )


def _cell(table: str, time: Interval, state: CellState, known: KnownInterval | None, *, takes_late: bool) -> Cell:
    if known is None:
        return Cell(time.label if state is not CellState.NONE else "", state, None, 0, is_pinned=False)
    delivered = known.delivered.get(table)
    if delivered is None and state is CellState.REGISTERED and known.tables is not None and table not in known.tables:
        return Cell(time.label, CellState.UNDECLARED, None, 0)
    if delivered is None:
        return Cell(time.label, state, 0 if state is CellState.REGISTERED else None, 0)
    late = known.late if takes_late else None
    return Cell(time.label, state, delivered.rows, delivered.late_partitions + (late or 0))


def _attention(
    pipeline: str, states: Mapping[Interval, CellState], known: Mapping[datetime, KnownInterval]
) -> Iterable[Attention]:
    for time, state in states.items():
        if state not in RED:
            continue
        interval = known.get(time.from_time)
        advice = advice_for(pipeline, time, state, interval)
        is_registered = interval is not None and (
            bool(interval.delivered) or interval.state == IntervalState.REGISTERED
        )
        yield Attention(pipeline, time.label, state, advice, is_registered, interval is not None)


def _older(pipeline: Pipeline, since: datetime, missing: Sequence[MissingIntervals]) -> Iterable[Attention]:
    """Return what needs attention from before the days shown; of a gap before a pinned interval, one of its own."""
    known = {each.from_time: each for each in unregistered_intervals(pipeline.name, since)}
    pinned = {Interval(each.from_time, each.to_time): each for each in known.values()}
    states = {time: interval_state(each, time, None) for time, each in pinned.items()}
    for gap in missing:
        if gap.pinned is None and gap.to_time <= since:
            begin = gap.from_time or pipeline.schedule.before(gap.to_time)
            states[next(pipeline.schedule.between(begin, gap.to_time))] = CellState.MISSING
    return _attention(pipeline.name, states, known)
