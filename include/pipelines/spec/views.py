"""Aggregates: their windows, and the places that hold them live."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Context
from typing import Literal, get_args

from include.errors import UsageError
from include.pipelines.spec.archive import AS_TIMESTAMP, Archive
from include.pipelines.spec.ddl import Field, Renamed, check_renamed, check_stored, fields_of, names_before
from include.pipelines.spec.file_formats import check_iceberg
from include.pipelines.spec.names import OWN_PREFIX, check_count, check_kind, check_known, check_topic, check_tuple
from include.times import TimeWindow, parse_duration

_OWN_COLUMNS = frozenset({"interval"})
"""The partition column of a view's table."""

_OWN_MEASURES = _OWN_COLUMNS | {"key", "side", "version"}
"""Beside these, measures stand in the speed view's messages, and where the sides of a key are compared."""

_OF_WINDOWS = frozenset({"start", "end"})
"""Beside these, too, where a view has windows."""

VERSION_HEADER = "version"
"""The header that names the version of a speed view's message: of a deletion, and of each one for a plain topic."""

SUMMED_EXACTLY = {
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

EXACT = Context(prec=60)
"""In which Python adds and orders measures: decimals have up to 38 digits, and its own context rounds to 28."""

_WATERMARKED = {"TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP WITH LOCAL TIME ZONE"}
"""Types of an event time by which a stream can forget windows."""

_IN_WINDOWS = _WATERMARKED | {"TIMESTAMP_NTZ", "TIMESTAMP WITHOUT TIME ZONE", "DATE", "STRING"}
"""Types of which Spark makes windows, where none is forgotten."""

_LEAST = {"key column": "what is counted by, or the window", "measure": "one that counts rows"}

_ENDS = [("start", "TIMESTAMP"), ("end", "TIMESTAMP")]

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
        check_count(self.topic_partitions, f"topic_partitions of {self.topic}")
        if self.watermark:
            parse_duration(self.watermark)


@dataclass(frozen=True)
class KafkaMessages:
    """A further sink of a speed view: messages for plain topics, at least once.

    The header `version` names the micro-batch, by which a reader recognises a repetition.
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
        check_count(self.topic_partitions, f"topic_partitions of {', '.join(self.topics)}")

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

    def __post_init__(self) -> None:
        check_count(self.rows, "rows of Console")


Sink = KafkaMessages | JdbcTable | Console


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
        of_view = f"of the view {self.name}"
        for names in ("key", "measures"):
            check_tuple(getattr(self, names), f"{names} {of_view}")
        check_tuple(self.sinks, f"sinks {of_view}", Sink)
        check_kind(self.speed, f"speed {of_view}", CompactedTopic)
        check_kind(self.windows, f"windows {of_view}", TimeWindow | None, 'TimeWindow("1h")')
        check_stored(self.columns, f"the view {self.name}")
        check_known(f"view {self.name}: mode", self.mode, get_args(Mode))
        _check_windows(self)
        _check_key(self)
        check_renamed(self.renamed, self.columns)
        if self.iceberg:
            check_iceberg("parquet", self.columns)
        own_measures = _OWN_MEASURES if self.is_total else _OWN_MEASURES | _OF_WINDOWS
        for each in fields_of(self.columns):
            name = each.name
            is_own = name.lower() in (own_measures if name in self.measures else _OWN_COLUMNS)
            if is_own or name.lower().startswith(OWN_PREFIX):
                raise UsageError(
                    f"column {name!r} of the view {self.name} is Tidemark's own",
                    remedy=f"call it {name}_"
                    if is_own
                    else f"call it _{name}, and say so in `renamed` if the table has it already",
                )
        _check_columns(self, {each.name: each for each in fields_of(self.columns)})


def check_event_time(view: AdditiveView, archive: Archive) -> None:
    """Raise UsageError when a stream cannot make the view's windows of the archive's event time."""
    kind = archive.event_time_kind
    if view.windows and kind.split(" COLLATE ")[0] not in (_WATERMARKED if view.mode == "update" else _IN_WINDOWS):
        raise UsageError(
            f"event_time {archive.event_time} is {kind}, and the view {view.name} has windows of it",
            remedy=AS_TIMESTAMP,
        )


def _check_columns(view: AdditiveView, columns: Mapping[str, Field]) -> None:
    """Raise UsageError unless the columns are those of the key and the measures, each of a type that it may have."""
    for part, names in (("key column", view.key), ("measure", view.measures)):
        if not names:
            raise UsageError(f"the view {view.name} has no {part}", remedy=f"declare {_LEAST[part]}")
        for name in names:
            if name not in columns:
                raise UsageError(
                    f"the {part} {name} of the view {view.name} is not among its columns: {', '.join(columns)}",
                    remedy=f"add it to the view's columns, or take it from its {part}s",
                )
    for name, each in columns.items():
        if name in view.measures:
            if each.kind not in SUMMED_EXACTLY:
                raise UsageError(
                    f"measure {name} of the view {view.name} is {each.kind}: "
                    "stream and interval add in different orders, and would not agree to the last digit",
                    remedy=f"declare it as DECIMAL or BIGINT, and let {view.aggregate} cast before it sums",
                )
        elif name not in view.key:
            raise UsageError(
                f"column {name} of the view {view.name} is neither of its key nor a measure: nothing compares it",
                remedy="add it to the view's key or measures, or take it from its columns",
            )
        elif "MAP" in _kinds(each):
            raise UsageError(
                f"the key column {name} of the view {view.name} has a MAP, which Spark does not order",
                remedy="make it text or a struct in the rows function",
            )


def _kinds(field: Field) -> set[str]:
    """Return the type of a field, and those of all that is inside of it."""
    return {field.kind}.union(*map(_kinds, field.inner))


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
    declared = next((each for each in fields_of(view.columns) if each.name == view.window), None)
    if declared and [(each.name.lower(), each.kind.removesuffix("_LTZ")) for each in declared.inner] != _ENDS:
        raise UsageError(
            f"the window {view.window} of the view {view.name} is declared as another type than windows have",
            remedy=f"declare {view.window} STRUCT<{', '.join(map(': '.join, _ENDS))}>",
        )
    if not view.speed.watermark:
        raise UsageError(f"the view {view.name} has windows", remedy="declare how long its stream waits: watermark")
    if view.max_keys:
        raise UsageError(f"the view {view.name} has windows, which end", remedy="leave out max_keys")
