"""Sections of an interval's page."""

from __future__ import annotations

from dataclasses import dataclass

from include.errors import UsageError
from include.pipelines.spec.names import TOPIC


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
    """How many cells there are at most in each direction; at least one."""

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
        if self.up and not self.notify:
            raise UsageError(f"report {self.title!r} watches {self.up!r} for nobody", remedy="name a topic: notify=…")
        if self.notify and not (TOPIC.fullmatch(self.notify) and set(self.key) and set(self.key) <= set(self.columns)):
            raise UsageError(
                f"report {self.title!r} cannot notify topic {self.notify!r}",
                remedy="name a Kafka topic, and a key among the report's columns",
            )


Report = Threshold | Top | Grid | Listing
