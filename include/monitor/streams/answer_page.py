"""What the page of a view's answers shows: keys with their state, from both layers, as PostgreSQL serves them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from include.errors import UsageError
from include.monitor.text import plain
from include.pipelines.spec import AdditiveView, Pipeline
from include.serving.answers import Question, ask, serves
from include.serving.shape import possible_shapes

ROWS = 200
"""How many keys are shown."""

WINDOWS = 24
"""How many of the newest windows are searched if no key is named."""


@dataclass(frozen=True)
class AnswerRow:
    """A key in a window."""

    key: tuple[str, ...]
    start: datetime | str | None
    """A text where Python cannot hold it, as `end`."""
    end: datetime | str | None
    values: tuple[str, ...]
    state: str
    parts: tuple[str, ...]
    """For each measure, what the registered intervals have and what the speed view has."""
    version: int | None


@dataclass(frozen=True)
class AnswerPage:
    """The answers of a view."""

    pipeline: str
    view: str
    description: str
    by: tuple[str, ...]
    measures: tuple[str, ...]
    is_served: bool
    is_total: bool = False
    """Whether it has no window."""
    rows: tuple[AnswerRow, ...] = ()
    is_cut: bool = False
    """Whether more keys are served than are shown."""
    column: str = ""
    key: str | None = None
    """The key that was asked for; None: the newest windows are shown."""
    proved_until: datetime | None = None
    proved_below: str = ""
    name: str = ""
    """What to query in SQL."""


def answer_page(pipeline: Pipeline, view: AdditiveView, column: str = "", key: str | None = None) -> AnswerPage:
    """Return the page of a value of a key's column, else of the newest windows. Raises UsageError for a wrong value."""
    shape = possible_shapes(pipeline).get(view.name)
    by = view.plain_key
    if shape is None or not serves(shape):
        return AnswerPage(pipeline.name, view.name, view.description, by, view.measures, is_served=False)
    names = [each.name for each in shape.keys if each.name not in (shape.start, shape.end)]
    if key is not None and column not in names:
        raise UsageError(f"the view {view.name} has no key column {column!r}", remedy=f"one of {', '.join(names)}")
    span = timedelta(seconds=WINDOWS * view.windows.slide_seconds) if view.windows else timedelta()
    told = ask(shape, Question(column, key, span, ROWS))
    rows = tuple(
        AnswerRow(
            tuple(plain(each[name]) for name in names),
            None if shape.is_total else each[shape.start],
            None if shape.is_total else each[shape.end],
            tuple(_words(each[name]) for name in view.measures),
            each[shape.own("state")],
            tuple(
                f"{_words(each[shape.own(f'proved_{name}')])} proved, {_words(each[shape.own(f'live_{name}')])} live"
                for name in view.measures
            ),
            each[shape.own("version")],
        )
        for each in told.rows
    )
    return AnswerPage(
        pipeline.name,
        view.name,
        view.description,
        tuple(names),
        view.measures,
        True,
        view.is_total,
        rows[:ROWS],
        told.is_cut,
        column,
        key,
        told.proved_until,
        ", ".join(f"{topic} {number}: {below:,}" for topic, number, below in told.proved_below),
        f"live.{shape.table}",
    )


def _words(value: object) -> str:
    return "–" if value is None else f"{value:,}"
