"""Rates and durations of a stream's queries as points of SVG, so that a page needs no script to draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from include.ledger.streams.progress import QueryProgress
from include.monitor.text import duration, number

WIDTH, HEIGHT = 600, 100
"""Size of a plot, in its own units."""

_MOST_PARTS = 6


@dataclass(frozen=True)
class Line:
    """A line of a plot."""

    name: str
    tone: int
    points: str
    """`x,y x,y …` in the plot's units."""
    last: str


@dataclass(frozen=True)
class Plot:
    """Lines over time with a common scale that begins at 0."""

    title: str
    summary: str
    """In words, for a screen reader."""
    top: str
    since: datetime
    until: datetime
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Part:
    """A part of a micro-batch's duration."""

    name: str
    tone: int
    x: float
    width: float
    """Both in the plot's units."""
    seconds: float


@dataclass(frozen=True)
class QueryRates:
    """A query's last progress, and its recent history."""

    query: str
    at: datetime
    batch_id: int
    input_rows: int
    input_rate: float
    processing_rate: float
    timed_batch_id: int
    """The last micro-batch with data, or the last one if none had any: that of the duration and its parts."""
    seconds: float
    watermark: datetime | None
    watermark_delay: float | None
    """Seconds from the watermark to the micro-batch; None without a watermark."""
    state_rows: int
    state_bytes: int
    rates: Plot | None
    """None before there are two points."""
    durations: Plot | None
    parts: tuple[Part, ...]
    is_current: bool
    """Whether the driver that holds the lease reported it; an earlier one's rates are over."""


def query_rates(query: str, told: Sequence[QueryProgress], held_since: datetime | None) -> QueryRates:
    """Return a query's progress, oldest first and at least one entry, as a page shows it.

    `held_since`: when the driver took the lease that holds it; None when nobody does.
    """
    last = told[-1]
    # Without input Spark only looks for data: the parts of a micro-batch with input show where time goes.
    batch = next((each for each in reversed(told) if each.input_rows), last)
    return QueryRates(
        query,
        last.at,
        last.batch_id,
        last.input_rows,
        last.input_rate,
        last.processing_rate,
        batch.batch_id,
        batch.seconds,
        last.watermark,
        None if last.watermark is None else (last.at - last.watermark).total_seconds(),
        last.state_rows,
        last.state_bytes,
        _plot(
            "Records per second",
            told,
            {"arriving": [each.input_rate for each in told], "worked off": [each.processing_rate for each in told]},
            is_time=False,
        ),
        _plot("Duration of a micro-batch", told, {"duration": [each.seconds for each in told]}, is_time=True),
        _parts(batch),
        last.is_current(held_since),
    )


def _plot(title: str, told: Sequence[QueryProgress], series: dict[str, list[float]], *, is_time: bool) -> Plot | None:
    since, until = told[0].at, told[-1].at
    if len(told) < 2 or since >= until:
        return None
    top = max(max(values) for values in series.values()) or 1.0
    said = duration if is_time else lambda value: number(round(value, 1))
    span = (until - since).total_seconds()
    xs = [(each.at - since).total_seconds() / span * WIDTH for each in told]
    lines = tuple(
        Line(
            name,
            tone,
            " ".join(f"{x:.1f},{HEIGHT - value / top * HEIGHT:.1f}" for x, value in zip(xs, values, strict=True)),
            said(values[-1]),
        )
        for tone, (name, values) in enumerate(series.items())
    )
    summary = f"{title}: " + ", ".join(f"{line.name} {line.last}" for line in lines) + f"; at most {said(top)}"
    return Plot(title, summary, said(top), since, until, lines)


def _parts(batch: QueryProgress) -> tuple[Part, ...]:
    """Return the parts, longest first; those that are too many to show are joined."""
    longest = sorted(batch.parts.items(), key=lambda each: -each[1])
    if len(longest) > _MOST_PARTS:
        rest = longest[_MOST_PARTS - 1 :]
        longest = [*longest[: _MOST_PARTS - 1], ("other parts", sum(seconds for _, seconds in rest))]
    total = sum(seconds for _, seconds in longest)
    parts: list[Part] = []
    x = 0.0
    for tone, (name, seconds) in enumerate(longest):
        width = seconds / total * WIDTH if total else 0.0
        parts.append(Part(name, tone, round(x, 2), round(width, 2), seconds))
        x += width
    return tuple(parts)
