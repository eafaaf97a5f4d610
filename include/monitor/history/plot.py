"""Lay out a chart over time as SVG: lines with a band and bounds, or stacked bars, in a box of 1000 by 100.

Text is not in the picture, which would stretch it. The page sets it around the picture in HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from include.monitor.text import number

WIDTH, HEIGHT = 1000.0, 100.0
TONES = 6
"""How many series of a stack can be told apart."""
_ROOM = 0.06
"""Share of the scale that is left free above and below lines."""


@dataclass(frozen=True)
class Series:
    """Values over time; None for a missing one."""

    name: str
    values: tuple[float | None, ...]
    colour: str = ""
    """Class of its colour where it means something, as a fate's; empty: the colour of its place."""


@dataclass(frozen=True)
class Mark:
    """Something that happened between two intervals: it is drawn before the one at `place`."""

    place: int
    words: str


@dataclass(frozen=True)
class Rect:
    """A bar; `tone` is the number of its colour."""

    x: float
    y: float
    width: float
    height: float
    tone: int


@dataclass(frozen=True)
class Plot:
    """The picture."""

    lines: tuple[tuple[int, str], ...]
    """Tone and points of a line without gaps."""
    dots: tuple[tuple[int, float, float], ...]
    """Tone, x and y of values without neighbours: a line of one point is invisible."""
    bars: tuple[Rect, ...]
    band: tuple[str, ...]
    """Points of polygons."""
    bounds: tuple[float, ...]
    marks: tuple[float, ...]
    top: str
    bottom: str
    """Least value; empty if it is also the largest."""


@dataclass(frozen=True)
class Trend:
    """A chart over the page's intervals, with its description."""

    key: str
    title: str
    unit: str
    note: str
    kind: Literal["lines", "stack"]
    series: tuple[Series, ...]
    low: tuple[float | None, ...] = ()
    """Lower edge of the band of what is usual."""
    high: tuple[float | None, ...] = ()
    bounds: tuple[float, ...] = ()
    marks: tuple[Mark, ...] = ()
    tone: Literal["", "bad"] = ""
    """Whether it shows something that should not be."""

    @property
    def plot(self) -> Plot:
        """The picture."""
        return _stack(self) if self.kind == "stack" else _lines(self)

    @property
    def colours(self) -> tuple[str, ...]:
        """Class of the colour of each series."""
        return tuple(each.colour or f"t{tone}" for tone, each in enumerate(self.series))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(value is not None for each in self.series for value in each.values)

    @property
    def summary(self) -> str:
        """What the picture shows, for a screen reader."""
        parts = []
        for each in self.series:
            known = [value for value in each.values if value is not None]
            if known:
                parts.append(f"{each.name}: {_short(min(known))} to {_short(max(known))}, last {_short(known[-1])}")
        return "; ".join(parts) or "no values"


def largest_series(counts: Mapping[str, Sequence[float | None]]) -> tuple[Series, ...]:
    """Return counts by name as series, the largest first; the smallest share the last, so that none is left out."""
    ordered = sorted(counts.items(), key=lambda item: -sum(value or 0 for value in item[1]))
    if len(ordered) <= TONES:
        return tuple(Series(name, tuple(values)) for name, values in ordered)
    rest = [values for _, values in ordered[TONES - 1 :]]
    others = tuple(sum(value or 0 for value in column) for column in zip(*rest, strict=True))
    return (*(Series(name, tuple(values)) for name, values in ordered[: TONES - 1]), Series("others", others))


def _short(value: float) -> str:
    # Nobody reads fractions beside hundreds.
    return number(round(value) if value == int(value) or abs(value) >= 100 else value)


def _lines(trend: Trend) -> Plot:
    drawn = [value for each in trend.series for value in each.values if value is not None]
    edges = [value for value in (*trend.low, *trend.high, *trend.bounds) if value is not None]
    least, most = min((*drawn, *edges), default=0.0), max((*drawn, *edges), default=1.0)
    # A line that never moves lies in the middle of a scale of its own size.
    spread = (most - least) or abs(most) or 1.0
    bottom, top = least - spread * _ROOM, most + spread * _ROOM
    count = max((len(each.values) for each in trend.series), default=0)

    def at(place: int, value: float) -> tuple[float, float]:
        return (place + 0.5) / count * WIDTH, HEIGHT - (value - bottom) / (top - bottom) * HEIGHT

    lines: list[tuple[int, str]] = []
    dots: list[tuple[int, float, float]] = []
    for tone, each in enumerate(trend.series):
        for run in _runs(each.values):
            points = [at(place, value) for place, value in run]
            if len(points) == 1:
                dots.append((tone, round(points[0][0], 1), round(points[0][1], 1)))
            else:
                lines.append((tone, _points(points)))
    band = []
    for run in _runs(trend.low):
        upper = [at(place, high) for place, _ in run if (high := trend.high[place]) is not None]
        band.append(_points([*(at(place, low) for place, low in run), *reversed(upper)]))
    bounds = tuple(round(at(0, bound)[1], 2) for bound in trend.bounds) if count else ()
    lowest = _short(least) if least < most else ""
    return Plot(tuple(lines), tuple(dots), (), tuple(band), bounds, _marks(trend, count), _short(most), lowest)


def _stack(trend: Trend) -> Plot:
    count = max((len(each.values) for each in trend.series), default=0)
    totals = [sum(each.values[place] or 0 for each in trend.series) for place in range(count)]
    most = max(totals, default=0) or 1.0
    slot = WIDTH / max(count, 1)
    bars = []
    for place in range(count):
        below = 0.0
        for tone, each in enumerate(trend.series):
            height = (each.values[place] or 0) / most * HEIGHT
            if height:
                y = HEIGHT - below - height
                bars.append(Rect(round(place * slot, 2), round(y, 2), round(slot * 0.9, 2), round(height, 2), tone))
            below += height
    return Plot((), (), tuple(bars), (), (), _marks(trend, count), _short(most), "0")


def _marks(trend: Trend, count: int) -> tuple[float, ...]:
    return tuple(round(mark.place / count * WIDTH, 1) for mark in trend.marks) if count else ()


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Return the stretches without gaps, each with places and values."""
    runs: list[list[tuple[int, float]]] = []
    before = None
    for place, value in enumerate(values):
        if value is not None:
            if before is None:
                runs.append([])
            runs[-1].append((place, value))
        before = value
    return runs


def _points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
