"""Sections of an interval's page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from include.errors import UsageError
from include.pipelines.spec.archive import Archive
from include.pipelines.spec.ddl import fields_of
from include.pipelines.spec.names import TOPIC, check_count, check_tuple
from include.pipelines.spec.views import SUMMED_EXACTLY, AdditiveView

_NUMBERS = SUMMED_EXACTLY | {"FLOAT", "REAL", "DOUBLE"}

_KEYS = ("STRING", "INT", "INTEGER", "BIGINT", "LONG")
"""Types of columns that a watched report's key may have."""


_LAYERS = {"batch_view", "speed_view"}
"""Columns of a `Threshold` with the measure, beside those of the view's key."""

_ENDS = {"from", "to"}
"""Its columns with the ends of the window, where the view has windows."""


@dataclass(frozen=True)
class Threshold:
    """A report section: rows of a view whose measure is above a limit."""

    title: str
    view: str
    measure: str
    above: int


@dataclass(frozen=True)
class Top:
    """A report section: the keys of a view with the largest sum of a measure, over all windows of the interval.

    `./tidemark top` shows the same live, per window.
    """

    title: str
    view: str
    measure: str
    by: tuple[str, ...]
    """Key columns of the view, the window not among them."""
    rows: int = 10

    def __post_init__(self) -> None:
        check_tuple(self.by, f"by of the report {self.title!r}")
        check_count(self.rows, f"rows of the report {self.title!r}")


@dataclass(frozen=True)
class Grid:
    """A report section: how many archive rows of the interval lie in each cell of a grid, like places on a map.

    Cells are square in the columns' own unit; their size is 1, 2 or 5 times a power of ten.
    """

    title: str
    x: str
    """Numeric column that is drawn from left to right, e.g. a longitude."""
    y: str
    """Numeric column that is drawn upwards, e.g. a latitude."""
    cells: int = 24
    """How many cells are as long as the values' larger span at most; at least one. One more is drawn where the span
    begins inside a cell."""

    def __post_init__(self) -> None:
        if not 1 <= self.cells <= 100:
            raise UsageError(f"report {self.title!r} has a grid of {self.cells} cells", remedy="declare 1 to 100")


@dataclass(frozen=True)
class Listing:
    """A report section: rows that a transform of the archive rows finds, from the archive rows of the interval."""

    title: str
    rows: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    """The columns that identify a listed thing; needed for `notify`."""
    notify: str = ""
    """Topic that gets a message for each key that the interval before did not list; `up` changes that."""
    up: str = ""
    """Boolean column of the archive rows with the state of the thing that the key names: false from the row on that
    finds it down. With it the stream notifies: once when a thing goes down, once when it is up again. Intervals prove
    that no outage was missed."""

    def __post_init__(self) -> None:
        check_tuple(self.columns, f"columns of the report {self.title!r}")
        check_tuple(self.key, f"key of the report {self.title!r}")
        if self.up and not self.notify:
            raise UsageError(f"report {self.title!r} watches {self.up!r} for nobody", remedy="name a topic: notify=…")
        if self.notify and not (TOPIC.fullmatch(self.notify) and set(self.key) and set(self.key) <= set(self.columns)):
            raise UsageError(
                f"report {self.title!r} cannot notify topic {self.notify!r}",
                remedy="name a Kafka topic, and a key among the report's columns",
            )

    def watched_as(self, formerly: Mapping[str, Sequence[str]]) -> list[str]:
        """Return what tells the watch for its outages from any other: title, key and `up`, as JSON.

        First as declared; then by the names that renamed columns had before (`formerly`, by present name).
        """
        names = product(*((name, *formerly.get(name, ())) for name in (self.up, *self.key)))
        return [json.dumps({"report": self.title, "key": sorted(key), "up": up}) for up, *key in names]


Report = Threshold | Top | Grid | Listing


def check_report(report: Report, views: Iterable[AdditiveView], archive: Archive, pipeline: str) -> None:
    """Raise UsageError when a report names a view, a measure or a column that the pipeline does not have."""
    match report:
        case Threshold() | Top():
            view = next((each for each in views if each.name == report.view), None)
            if view is None:
                raise UsageError(f"report {report.title!r} names the unknown view {report.view!r}", pipeline=pipeline)
            if isinstance(report, Top):
                _check_top(report, view, pipeline)
            else:
                _check_threshold(report, view, pipeline)
        case Grid():
            _check_grid(report, archive, pipeline)
        case Listing(up=up) if up:
            _check_watched(report, archive, pipeline)


def _check_threshold(report: Threshold, view: AdditiveView, pipeline: str) -> None:
    if report.measure not in view.measures:
        raise UsageError(
            f"report {report.title!r} names {report.measure!r}, which is no measure of the view {view.name!r}",
            remedy=f"one of: {', '.join(view.measures)}",
            pipeline=pipeline,
        )
    own = _LAYERS if view.is_total else _LAYERS | _ENDS
    if taken := [name for name in view.plain_key if name.lower() in own]:
        raise UsageError(
            f"report {report.title!r} has a column {taken[0]!r} of its own, as the key of the view {view.name!r} does",
            remedy="give the view's column another name",
            pipeline=pipeline,
        )


def _check_top(report: Top, view: AdditiveView, pipeline: str) -> None:
    if view.is_total:
        raise UsageError(
            f"report {report.title!r} shows windows, and the view {view.name!r} has none", pipeline=pipeline
        )
    plain = set(view.plain_key)
    if not report.by or not set(report.by) <= plain or report.measure not in view.measures:
        raise UsageError(
            f"report {report.title!r} does not fit the view {view.name!r}",
            remedy=f"by: some of {', '.join(sorted(plain))}; measure: one of {', '.join(view.measures)}",
            pipeline=pipeline,
        )


def _check_grid(report: Grid, archive: Archive, pipeline: str) -> None:
    numeric = [each.name for each in fields_of(archive.columns) if each.kind in _NUMBERS]
    if not {report.x, report.y} <= set(numeric):
        raise UsageError(
            f"report {report.title!r} has a grid over {report.x!r} and {report.y!r}",
            remedy=f"name two numeric columns of the archive: {', '.join(numeric) or 'it has none'}",
            pipeline=pipeline,
        )


def _check_watched(report: Listing, archive: Archive, pipeline: str) -> None:
    kinds = {each.name: each.kind for each in fields_of(archive.columns)}
    is_known = set(report.columns) <= kinds.keys() and all(kinds[name] in _KEYS for name in report.key)
    if kinds.get(report.up) != "BOOLEAN" or not is_known:
        raise UsageError(
            f"report {report.title!r} cannot watch {report.up!r}",
            remedy="up names a BOOLEAN column of the archive; all columns of the report are the archive's, those of "
            f"its key {', '.join(_KEYS)}",
            pipeline=pipeline,
        )
