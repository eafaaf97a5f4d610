"""Aggregates: their windows, and the places that hold them live."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args

from include.errors import UsageError
from include.pipelines.spec.ddl import Renamed, check_renamed, check_stored, fields_of, names_before
from include.pipelines.spec.file_formats import check_iceberg
from include.pipelines.spec.names import OWN_PREFIX, check_known, check_topic, check_tuple
from include.times import in_words, parse_duration

_OWN_COLUMNS = frozenset({"interval"})
"""The partition column of a view's table."""

_OWN_MEASURES = _OWN_COLUMNS | {"key", "side", "version"}
"""Beside these, measures stand in the speed view's messages, and where the sides of a key are compared."""

_OF_WINDOWS = frozenset({"start", "end"})
"""Beside these, too, where a view has windows."""

_SUMMED_EXACTLY = {
    "TINYINT",
    "BYTE",
    "SMALLINT",
    "SHORT",
    "INT",
    "INTEGER",
    "BIGINT",
    "LONG",
    "DECIMAL",
    "DEC",
    "NUMERIC",
}


Mode = Literal["update", "complete"]


@dataclass(frozen=True)
class CompactedTopic:
    """A speed view's topic: the last value of each key counts."""

    topic: str
    watermark: str = ""
    """How long the stream waits for late rows, e.g. `1h`; empty for a view without a window, where no row is late."""
    topic_partitions: int = 2

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if self.watermark:
            parse_duration(self.watermark)


@dataclass(frozen=True)
class KafkaMessages:
    """A further sink of a speed view: messages for plain topics, at least once.

    The value carries the `version`, by which a reader recognises a repetition.
    """

    topic: str = ""
    """Name of the topic for all rows; it takes precedence over the topic that a row names."""
    messages: str = ""
    """Name of the transform: the view's rows to columns key, value and, without `topic`, topic. Unset: as JSON."""
    row_topics: tuple[str, ...] = ()
    """The topics that rows may name; created like `topic` if missing."""
    topic_partitions: int = 2
    topic_suffix: str = ""
    """Appended to the names of all topics, those that rows name included; for a pipeline that reads lines."""

    def __post_init__(self) -> None:
        check_tuple(self.row_topics, "row_topics")
        for topic in self.topics:
            check_topic(topic)
        if not self.topic and not (self.messages and self.row_topics):
            raise UsageError(
                "a sink without a topic needs messages that name one", remedy="set messages and row_topics"
            )

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the sink may write to."""
        return tuple(f"{topic}{self.topic_suffix}" for topic in ((self.topic,) if self.topic else self.row_topics))


@dataclass(frozen=True)
class JdbcTable:
    """A further sink of a speed view: a table in PostgreSQL's database `serving`, a row per key, effectively once."""


@dataclass(frozen=True)
class Console:
    """A further sink of a speed view: the changed rows on the stream's standard output."""

    rows: int = 20


Sink = KafkaMessages | JdbcTable | Console


@dataclass(frozen=True)
class TimeWindow:
    """Windows of event time, aligned to the epoch in UTC; durations such as `10m`, `1h` and `1d`."""

    length: str
    slide: str = ""
    """How often a window begins; unset: where the previous one ends."""
    start: str = ""
    """How far the windows are shifted, e.g. `2m`: they begin two minutes past the hour."""

    def __post_init__(self) -> None:
        if not self.length_seconds or not self.slide_seconds or self.length_seconds % self.slide_seconds:
            raise UsageError(f"a slide of {self.slide or self.length} does not divide a window of {self.length}")
        if self.start_seconds >= self.slide_seconds:
            raise UsageError(
                f"windows that begin every {self.slide or self.length} cannot be shifted by {self.start}",
                remedy=f"a start below {self.slide or self.length}",
            )

    @property
    def length_seconds(self) -> int:
        """Length, seconds."""
        return _seconds(self.length)

    @property
    def slide_seconds(self) -> int:
        """From one window's start to the next one's, seconds."""
        return _seconds(self.slide or self.length)

    @property
    def start_seconds(self) -> int:
        """The shift, seconds."""
        return _seconds(self.start) if self.start else 0

    def tumbling(self) -> tuple[TimeWindow, ...]:
        """Return series in which each row lies in exactly one window: several series when the windows overlap."""
        starts = range(self.start_seconds, self.start_seconds + self.length_seconds, self.slide_seconds)
        return tuple(TimeWindow(self.length, "", f"{start}s") for start in starts)

    def __str__(self) -> str:
        slide = f" every {in_words(self.slide)}" if self.slide else ""
        return f"{in_words(self.length)}{slide}{f' from {in_words(self.start)}' if self.start else ''}"


def _seconds(duration: str) -> int:
    return parse_duration(duration) // timedelta(seconds=1)


@dataclass(frozen=True)
class AdditiveView:
    """Aggregates whose measures add up: kept live in a topic and recomputed per interval.

    Without a window the speed view keeps a running total per key since the beginning, and intervals their parts of it.
    """

    name: str
    rows: str
    """Name of the transform that selects what is counted: archive rows (and references) to rows."""
    aggregate: str
    """Name of the transform: those rows, and the column of their windows if it has any, to one row per key."""
    key: tuple[str, ...]
    measures: tuple[str, ...]
    """Whole numbers or decimals: the sum of other types depends on the order in which they are added. The first one
    has to count rows: by it late rows are counted, and the layers of a served view compared."""
    columns: str
    """DDL of key and measures."""
    speed: CompactedTopic
    mode: Mode = "update"
    """Emitted with each micro-batch: the keys that changed, or all of them. With `complete` no row is too late
    and no key is ever forgotten: for few keys."""
    sinks: tuple[Sink, ...] = ()
    """Where else each micro-batch goes, out of the same read."""
    description: str = ""
    window: str = field(default="", kw_only=True)
    """The key column that is a window struct<start, end>; empty: a running total since the beginning."""
    windows: TimeWindow | None = field(default=None, kw_only=True)
    """Its windows; the transform gets them as a column of that name."""
    max_keys: int = field(default=0, kw_only=True)
    """For a view without a window: how many keys are expected at most. More are counted too, and raise an alert."""
    iceberg: bool = field(default=False, kw_only=True)
    """Also an Iceberg table `lake.<pipeline>_<name>` over the registered files of its table."""

    renamed: Renamed = field(default_factory=dict, kw_only=True)
    """Columns that were called otherwise before, e.g. `{"provider": "isp"}`."""

    @property
    def formerly(self) -> dict[str, tuple[str, ...]]:
        """Its renamed columns with the names that they had before, newest first."""
        return names_before(self.renamed)

    @property
    def is_total(self) -> bool:
        """Whether it has no window: a running total per key."""
        return self.windows is None

    @property
    def time_windows(self) -> TimeWindow:
        """The windows of a view that has them."""
        assert self.windows is not None
        return self.windows

    @property
    def plain_key(self) -> tuple[str, ...]:
        """The key's columns without the window."""
        return tuple(name for name in self.key if name != self.window)

    def __post_init__(self) -> None:
        for several in ("key", "measures", "sinks"):
            check_tuple(getattr(self, several), f"{several} of the view {self.name}")
        check_stored(self.columns, f"the view {self.name}")
        check_known(f"view {self.name}: mode", self.mode, get_args(Mode))
        _check_windows(self)
        _check_key(self)
        check_renamed(self.renamed, self.columns)
        if self.iceberg:
            check_iceberg("parquet", self.columns)
        kinds = {field.name: field.kind for field in fields_of(self.columns)}
        own_measures = _OWN_MEASURES if self.is_total else _OWN_MEASURES | _OF_WINDOWS
        for name in kinds:
            is_own = name.lower() in (own_measures if name in self.measures else _OWN_COLUMNS)
            if is_own or name.lower().startswith(OWN_PREFIX):
                raise UsageError(
                    f"column {name!r} of the view {self.name} is Tidemark's own",
                    remedy=f"call it {name}_" if is_own else f"call it _{name}",
                )
        if not self.measures:
            raise UsageError(f"the view {self.name} has no measure", remedy="declare one that counts rows")
        for name in self.measures:
            if name not in kinds:
                raise UsageError(
                    f"measure {name} of the view {self.name} is not among its columns: {', '.join(kinds)}",
                    remedy="add it to the view's columns, or take it from its measures",
                )
            if kinds[name] not in _SUMMED_EXACTLY:
                raise UsageError(
                    f"measure {name} of the view {self.name} is {kinds[name]}: "
                    "stream and interval add in different orders, and would not agree to the last digit",
                    remedy=f"declare it as DECIMAL or BIGINT, and let {self.aggregate} cast before it sums",
                )


def _check_key(view: AdditiveView) -> None:
    """Raise UsageError when a column is named twice in key and measures, or like a column of the table's windows."""
    named = [*view.key, *view.measures]
    if twice := sorted({name for name in named if named.count(name) > 1}):
        raise UsageError(
            f"key and measures of the view {view.name} name {twice[0]} more than once",
            remedy="a column is of the key or a measure, and named once",
        )
    of_windows = {f"{view.window}_{end}".lower() for end in ("start", "end")} if view.window else set()
    if taken := [name for name in named if name.lower() in of_windows]:
        raise UsageError(
            f"column {taken[0]!r} of the view {view.name} has the name of a column that its table has for the window",
            remedy=f"call it {taken[0]}_",
        )


def _check_windows(view: AdditiveView) -> None:
    """Raise UsageError unless a view has a window and all that belongs to it, or a limit of keys and none of that."""
    if view.windows is None:
        if view.window:
            raise UsageError(f"the view {view.name} has the window {view.window}", remedy="declare its windows")
        if view.speed.watermark:
            raise UsageError(
                f"the view {view.name} has no window, so no row of it is late", remedy="leave out the watermark"
            )
        if view.max_keys < 1:
            raise UsageError(
                f"the view {view.name} has no window, so its keys are kept for ever",
                remedy="declare max_keys, how many are expected at most",
            )
        return
    if view.window not in view.key:
        raise UsageError(f"the window {view.window!r} of the view {view.name} is not in its key", remedy="add it")
    if not view.speed.watermark:
        raise UsageError(f"the view {view.name} has windows", remedy="declare how long its stream waits: watermark")
    if view.max_keys:
        raise UsageError(f"the view {view.name} has windows, which end", remedy="leave out max_keys")
