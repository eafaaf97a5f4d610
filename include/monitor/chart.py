"""Lay out the chart of an interval's report: bar lengths in percent of the plot.

One or two windows are drawn as a row per series, more as a stacked column per window. Only the bars are SVG: text
stays HTML, so that it keeps its size on a small screen.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from include.monitor.text import clean, interval_words, non_negative, number, quantity

MAX_SERIES = 6
MAX_ROWS = 12
MAX_COLUMNS = 48
_LABELS = 8
_ROWS_UP_TO = 2
_TICKS = 4
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d)(:\d\d)?(?:\.0+)?(?:Z|\+00:00)?")

_Named = tuple[str, list[float]]
"""A series: its name and its values."""


@dataclass(frozen=True)
class Bar:
    """A rectangle of the plot, all lengths in percent of it; `tone` is the number of its colour."""

    x: float
    y: float
    width: float
    height: float
    tone: int
    title: str


@dataclass(frozen=True)
class Row:
    """One series of a chart in rows: its name, then a bar and a number per window."""

    name: str
    bars: tuple[Bar, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class Chart:
    """The chart as the template draws it."""

    title: str
    unit: str
    form: Literal["rows", "columns"]
    summary: str
    legend: tuple[tuple[int, str], ...]
    note: str = ""
    rows: tuple[Row, ...] = ()
    bars: tuple[Bar, ...] = ()
    ticks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = field(default=())


def chart(data: dict[str, Any] | None) -> Chart | None:
    """Return the chart of `{"title", "unit", "x", "series": [{"name", "values"}]}`; None without a value above 0.

    `"others": {"keys", "values"}` adds up keys that have no series; reports of earlier versions left them out, and
    erasures by earlier versions may have replaced a name or a number in it.
    """
    if not data or not data.get("x") or not data.get("series"):
        return None
    x = [str(label) for label in data["x"]][-MAX_COLUMNS:]
    left_out = len(data["x"]) - len(x)

    def shown(values: list[Any]) -> list[float]:
        return ([non_negative(v) for v in values] + [0.0] * len(data["x"]))[left_out : left_out + len(x)]

    series = [(clean(str(each.get("name", "")), 40) or "–", shown(each.get("values") or [])) for each in data["series"]]
    rest = data.get("others") or {}
    others = int(non_negative(rest.get("keys"))), shown(rest.get("values") or [])
    if not any(any(values) for _, values in series):
        return None
    series.sort(key=lambda each: -sum(each[1]))
    labels, day = _window_labels(x)
    note = f"The {left_out} windows before these are not shown." if left_out else ""
    title = clean(str(data.get("title") or "Aggregates"), 120)
    unit = " · ".join(part for part in (clean(str(data.get("unit") or ""), 60), day) if part)
    if len(x) <= _ROWS_UP_TO:
        return _row_chart(title, unit, labels, _with_others(series, others, MAX_ROWS), note)
    return _column_chart(title, unit, labels, _with_others(series, others, MAX_SERIES), note)


def _row_chart(title: str, unit: str, labels: list[str], drawn: list[_Named], note: str) -> Chart:
    longest = max(max(values) for _, values in drawn)
    height = 100 / len(labels)
    rows = tuple(
        Row(
            name,
            tuple(
                Bar(
                    0,
                    i * height,
                    _at_least_visible(value / longest * 100),
                    height * 0.82,
                    i,
                    f"{name}, {labels[i]}: {_number(value)}",
                )
                for i, value in enumerate(values)
            ),
            tuple(_number(value) for value in values),
        )
        for name, values in drawn
    )
    legend = tuple(enumerate(labels))
    return Chart(title, unit, "rows", _summary(drawn, labels), legend, note, rows=rows)


def _column_chart(title: str, unit: str, labels: list[str], drawn: list[_Named], note: str) -> Chart:
    totals = [sum(values[i] for _, values in drawn) for i in range(len(labels))]
    top = _round_up(max(totals))
    slot = 100 / len(labels)
    width = min(slot * 0.72, 9.0)
    bars = []
    for i, label in enumerate(labels):
        below = 0.0
        for tone, (name, values) in enumerate(drawn):
            height = values[i] / top * 100
            if height:
                left = i * slot + (slot - width) / 2
                bars.append(
                    Bar(
                        left,
                        100 - below - height,
                        width,
                        height,
                        tone,
                        f"{name}, {label}: {_number(values[i])}",
                    )
                )
            below += height
    every = math.ceil(len(labels) / _LABELS)
    ticks = tuple(_number(top * (_TICKS - i) / _TICKS) for i in range(_TICKS + 1))
    table = tuple(
        (label, *(_number(values[i]) for _, values in drawn), _number(totals[i])) for i, label in enumerate(labels)
    )
    return Chart(
        title,
        unit,
        "columns",
        _summary(drawn, labels),
        tuple((tone, name) for tone, (name, _) in enumerate(drawn)),
        note,
        bars=tuple(bars),
        ticks=ticks,
        labels=tuple(label if i % every == 0 else "" for i, label in enumerate(labels)),
        columns=("Window", *(name for name, _ in drawn), "All"),
        table=table,
    )


def _with_others(series: list[_Named], others: tuple[int, list[float]], most: int) -> list[_Named]:
    """Return at most `most` series, the last of them the sum of those left out and of the other keys."""
    keys, values = others
    if not keys and len(series) <= most:
        return series
    rest = series[most - 1 :]
    name = quantity(keys + len(rest), "other")
    return [*series[: most - 1], (name, [sum(column) for column in zip(values, *(v for _, v in rest), strict=True)])]


def _summary(series: list[_Named], labels: list[str]) -> str:
    # Not their sums: where windows overlap, these count a row several times.
    first = ", ".join(f"{name} {_number(max(values))}" for name, values in series[:3])
    return f"Bar chart over {labels[0]} to {labels[-1]}. Largest, each with its highest window: {first}."


def _window_labels(x: list[str]) -> tuple[list[str], str]:
    """Return short labels, and the day in words when all labels are times of one day."""
    times = [match for label in x if (match := _TIME.fullmatch(label))]
    if len(times) < len(x):
        return [clean(label, 24) or "–" for label in x], ""
    has_seconds = any(match[3] not in (None, ":00") for match in times)
    shown = [f"{match[2]}{match[3] or ':00'}" if has_seconds else match[2] for match in times]
    if len({match[1] for match in times}) > 1:
        return [f"{match[1][5:]} {time}" for match, time in zip(times, shown, strict=True)], "month-day, UTC"
    midnight = f"{times[0][1]}T00:00"
    return shown, interval_words(midnight, midnight).split(",")[0] + ", UTC"


def _round_up(value: float) -> float:
    """Return the top of the scale: the next value whose quarters are round numbers."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        (step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if step * power >= value),
        10 * power,
    )


def _at_least_visible(percent: float) -> float:
    return max(percent, 0.4) if percent else 0.0


def _number(value: float) -> str:
    if value >= 1e18:
        # Values beyond it are drawn as this one.
        return "10¹⁸ or more"
    return number(int(value) if value == int(value) else value)
