"""A speed view's newest windows, from its compacted topic: the last value of each key counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

from include.errors import UsageError
from include.ledger import listings
from include.monitor import exact_json
from include.monitor.text import non_negative, number, plain
from include.pipelines.spec import AdditiveView
from include.pipelines.spec.views import EXACT
from include.times import parse_time

WINDOWS = 24
"""How many of the newest windows are kept."""

ROWS = 20
"""How many of a window's largest keys are shown."""

WIDTH = 600
"""Size of a plot, in its own units."""

_MOST = Decimal(10) ** 38
"""Spark's sums have fewer digits."""

Window = tuple[datetime, datetime]
Key = tuple[Any, ...]

EVER: Window = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
"""The only window of a view without one."""


@dataclass(frozen=True)
class TopRow:
    """A key of a window, with its measure as a text and as the width of its bar."""

    key: tuple[str, ...]
    value: str
    width: float


@dataclass(frozen=True)
class WindowBar:
    """A window, with the sum over its keys as a bar of the distribution."""

    start: datetime
    end: datetime
    total: str
    keys: int
    x: float
    width: float
    height: float
    """Of 100."""


@dataclass
class LiveWindows:
    """What was read from a view's topic about its newest windows."""

    view: AdditiveView
    values: dict[Window, dict[Key, dict[int, tuple[int, Mapping[str, Any] | None]]]] = field(default_factory=dict)
    """By window, key and topic partition: version and measures, None for a deletion, of the last message."""

    @property
    def by(self) -> tuple[str, ...]:
        """The view's key without its window."""
        return self.view.plain_key

    @property
    def span(self) -> timedelta | None:
        """How far back the kept windows begin; None stands for the beginning."""
        windows = self.view.windows
        if windows is None:
            return None
        return timedelta(seconds=(WINDOWS - 1) * windows.slide_seconds + windows.length_seconds)

    @property
    def oldest(self) -> datetime | None:
        """When the oldest of the kept windows begins; None without any."""
        return min((window[0] for window in self.values if self._measures(window)), default=None)

    def note(
        self, key: bytes | None, value: bytes | None, deleted_by: int | None = None, *, partition: int = 0
    ) -> bool:
        """Take a message; return False for one that another program wrote: it is no key and value of the view.

        The last message of a topic partition counts, and null deletes. If a key lies in several, its highest version
        does. `deleted_by` is the version that a deletion names; one that names none deletes what was read until then.
        """
        try:
            told = _object(key)
            window = EVER if self.view.is_total else _window(told.get(self.view.window))
            measures = None if value is None else self._checked(_object(value))
        except (ValueError, RecursionError, UsageError):
            return False
        plain = tuple(_hashable(told.get(name)) for name in self.by)
        read = self.values.setdefault(window, {}).setdefault(plain, {})
        if measures is not None:
            version = measures.get("version", 0)
        else:
            version = max((each for each, _ in read.values()), default=0) if deleted_by is None else deleted_by
        # The newest is the first of equal versions: a deletion that names none.
        others = {each: told for each, told in read.items() if each != partition}
        self.values[window][plain] = {partition: (version, measures), **others}
        return True

    def forget_old(self) -> None:
        """Drop all but the newest windows."""
        for window in sorted(self.values)[:-WINDOWS]:
            del self.values[window]

    def newest_full(self, now: datetime) -> Window | None:
        """Return the newest window that has ended, else the newest; None without any."""
        windows = sorted(window for window in self.values if self._measures(window))
        return next((each for each in reversed(windows) if each[1] <= now), windows[-1] if windows else None)

    def top(self, window: Window, measure: str) -> tuple[TopRow, ...]:
        """Return the keys of a window with the largest measure, equal ones in the order of their keys."""
        shown = largest({key: told.get(measure) for key, told in self._measures(window).items()}, ROWS)
        most = max((_length(value or 0) for _, value in shown), default=0.0) or 1.0
        return tuple(
            TopRow(tuple(map(plain, key)), _words(value), round(_length(value or 0) / most * WIDTH, 1))
            for key, value in shown
        )

    def distribution(self, measure: str) -> tuple[WindowBar, ...]:
        """Return the sum of a measure in each window, oldest first."""
        measures = {window: self._measures(window) for window in sorted(self.values)}
        windows = [window for window, keys in measures.items() if keys]
        with localcontext(EXACT):
            totals = [sum((told.get(measure) or 0) for told in measures[each].values()) for each in windows]
        most, width = max(map(_length, totals), default=0.0) or 1.0, WIDTH / max(1, len(windows))
        return tuple(
            _bar(window, total, len(measures[window]), at * width, width, _length(total) / most)
            for at, (window, total) in enumerate(zip(windows, totals, strict=True))
        )

    def _checked(self, measures: dict[str, Any]) -> dict[str, Any]:
        """Return a value of the view. Raise ValueError when its version or a measure is no number."""
        named = {name: measures.get(name) for name in self.view.measures}
        if not isinstance(measures.get("version", 0), int) or not all(map(_is_measure, named.values())):
            raise ValueError
        return measures

    def _measures(self, window: Window) -> dict[Key, Mapping[str, Any]]:
        """Return the measures of a window's keys that are not deleted."""
        lasts = {key: max(read.values(), key=_version)[1] for key, read in self.values.get(window, {}).items()}
        return {key: told for key, told in lasts.items() if told is not None}


def largest(measured: Mapping[Key, Any], rows: int) -> list[tuple[Key, Any]]:
    """Return the keys with the largest measure, as an interval's report orders them: equal ones by key, nulls last."""
    with localcontext(EXACT):
        ordered = sorted(
            measured.items(), key=lambda each: (each[1] is None, -(each[1] or 0), *map(listings.place, each[0]))
        )
    return ordered[:rows]


def _version(last: tuple[int, Mapping[str, Any] | None]) -> int:
    return last[0]


def _hashable(part: Any) -> Any:
    """Return a part of a key; one that is a structure or an array as JSON."""
    return exact_json.dumps(part, sort_keys=True) if isinstance(part, dict | list) else part


def _object(text: bytes | None) -> dict[str, Any]:
    """Return a JSON object; nothing counts as an empty one. Raise ValueError for any other text."""
    told = json.loads(text or b"{}", parse_float=Decimal)
    if not isinstance(told, dict):
        raise ValueError
    return told


def _is_measure(value: Any) -> bool:
    return value is None or (isinstance(value, int | Decimal) and -_MOST < value < _MOST)


def _window(times: Any) -> Window:
    """Return the window that a key names. Raise ValueError or UsageError when it names none."""
    if not isinstance(times, dict) or not all(isinstance(times.get(name), str) for name in ("start", "end")):
        raise ValueError
    return (parse_time(times["start"]), parse_time(times["end"]))


def _bar(window: Window, total: Any, keys: int, x: float, width: float, share: float) -> WindowBar:
    return WindowBar(*window, _words(total), keys, round(x, 1), round(width * 0.8, 1), round(share * 100, 1))


def _length(value: Any) -> float:
    return non_negative(float(value) if isinstance(value, Decimal) else value)


def _words(value: Any) -> str:
    return f"{value:,}" if isinstance(value, Decimal) else number(value)
