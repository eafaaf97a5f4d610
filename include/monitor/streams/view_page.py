"""What the page of a live view shows: its largest keys in a window, its windows side by side, and its query's rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from include.ledger.streams import progress, writers
from include.ledger.streams.progress import QueryProgress
from include.ledger.totals import key_counts
from include.monitor.streams.live_windows import TopRow, WindowBar
from include.monitor.streams.rates import QueryRates, query_rates
from include.monitor.streams.view_watch import view_watch
from include.pipelines.spec import AdditiveView, Pipeline
from include.times import parse_duration


@dataclass(frozen=True)
class ViewPage:
    """A live view."""

    pipeline: str
    view: str
    description: str
    by: tuple[str, ...]
    measure: str
    measures: tuple[str, ...]
    start: datetime | None
    """Start of the window whose keys are shown; None while there is none."""
    end: datetime | None
    is_open: bool
    """Whether rows of that window are still counted."""
    rows: tuple[TopRow, ...]
    windows: tuple[WindowBar, ...]
    """Oldest first."""
    rates: QueryRates | None
    """None before the view's query has reported progress."""
    read_at: datetime | None
    """When the topic was last read to its end."""
    is_cut: bool
    """Whether messages of the windows may not have been read."""
    foreign: int
    """How many messages of the topic are none of the view's; they are left out."""
    last_foreign: str
    """Topic partition and offset of the last one; empty without one."""
    error: str
    topic: str
    keys: int | None = None
    """For a view without a window: how many keys it has; None before its stream has counted them."""
    max_keys: int = 0
    """How many are declared at most; 0 for a view with windows."""
    picked: datetime | None = None
    """Start of the window that was asked for; None: the page follows the newest one."""
    closed_until: datetime | None = None
    """Until when windows have ended that are no longer open; None: in complete mode each one is."""


def find_view(pipeline: Pipeline, name: str) -> AdditiveView | None:
    """Return the pipeline's view of that name; None when it has no such view."""
    return next((each for each in pipeline.views if each.name == name), None)


def view_page(pipeline: Pipeline, view: AdditiveView, measure: str = "", start: datetime | None = None) -> ViewPage:
    """Return the page of the window that begins at `start`, else of the newest one that has ended."""
    followed, now = view_watch().follow(pipeline, view), datetime.now(UTC)
    measure = measure if measure in view.measures else view.measures[0]
    with followed.lock:
        windows = followed.windows
        named = next((each for each in windows.values if each[0] == start), None)
        shown = named or windows.newest_full(now)
        rows = windows.top(shown, measure) if shown else ()
        distribution, is_cut = windows.distribution(measure), followed.is_cut
    told, live = progress.recent(pipeline.name).get(view.name, ()), writers.live_writer(pipeline.name)
    closed_until = _closed_until(view, told, now)
    return ViewPage(
        pipeline.name,
        view.name,
        view.description,
        windows.by,
        measure,
        view.measures,
        shown[0] if shown and not view.is_total else None,
        shown[1] if shown and not view.is_total else None,
        shown is not None and (closed_until is None or shown[1] > closed_until),
        rows,
        () if view.is_total else distribution,
        query_rates(view.name, told, live.acquired_at if live else None) if told else None,
        followed.read_at,
        is_cut,
        followed.foreign,
        followed.last_foreign if followed.foreign else "",
        followed.error,
        view.speed.topic,
        key_counts(pipeline.name).get(view.name) if view.is_total else None,
        view.max_keys,
        start,
        closed_until,
    )


def _closed_until(view: AdditiveView, told: Sequence[QueryProgress], now: datetime) -> datetime | None:
    """Return the watermark of the view's query, by which it drops rows: what it reported, else what it would be now."""
    if view.mode == "complete" or view.is_total:
        return None
    reported = told[-1].watermark if told else None
    return reported or now - parse_duration(view.speed.watermark)
