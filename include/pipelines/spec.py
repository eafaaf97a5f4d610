"""The words a pipeline is declared in: frozen dataclasses, checked when they are made.

A declaration holds facts and names; the functions that it names live in
`spark_jobs/transforms/<pipeline>.py`, its suite in `expectations/<pipeline>.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal

from include.errors import UsageError
from include.intervals import Schedule, hourly, parse_duration, parse_time

IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,62}")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

IDENTITY = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")
"""Columns that identify an archive row; `kafka_element` is its position inside its message, 0-based."""

KAFKA_COLUMNS = (
    "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP, kafka_element INT"
)


def check_identifier(name: str, what: str) -> None:
    """Raise UsageError unless `name` may become a table, column or folder name."""
    if not IDENTIFIER.fullmatch(name):
        raise UsageError(f"{what} {name!r} is not an identifier", remedy="lower case letters, digits and _")


CLIENT_OPTIONS = frozenset(
    {
        "kafka.client.id",
        "kafka.client.rack",
        "kafka.client.dns.lookup",
        "kafka.fetch.min.bytes",
        "kafka.fetch.max.bytes",
        "kafka.fetch.max.wait.ms",
        "kafka.max.partition.fetch.bytes",
        "kafka.max.poll.records",
        "kafka.receive.buffer.bytes",
        "kafka.send.buffer.bytes",
        "kafka.request.timeout.ms",
        "kafka.default.api.timeout.ms",
        "kafka.reconnect.backoff.ms",
        "kafka.reconnect.backoff.max.ms",
        "kafka.retry.backoff.ms",
        "kafka.connections.max.idle.ms",
        "kafka.metadata.max.age.ms",
        "kafka.check.crcs",
    }
)
"""Options of Kafka's client that a pipeline may set. What decides which records are read is not among them, and
addresses and secrets are settings (`TIDEMARK_KAFKA_…`)."""


@dataclass(frozen=True)
class KafkaTopics:
    """Topics to read: a set of names, a pattern, or topic partitions."""

    subscribe: tuple[str, ...] = ()
    """Names of the topics."""
    pattern: str = ""
    """A regular expression instead, which names match as a whole; a topic that appears later joins from its start."""
    assign: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Numbers of the topic partitions by topic instead; the topics must exist."""
    starting_offsets: Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]] = "earliest"
    """Where the first stream begins: everywhere alike, or per topic and topic partition (others: earliest)."""
    starting_time: str = ""
    """Or at the first record of this time or later, e.g. `2026-11-20T05:00:00Z`."""
    fail_on_data_loss: bool = True
    """Whether offsets that Kafka removed before they were read stop the stream until somebody accepts the loss;
    else it is accepted, recorded and told by the stream itself."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Kafka's client, of those in `CLIENT_OPTIONS`, e.g. `{"kafka.fetch.max.wait.ms": "100"}`."""
    topic_partitions: int = 4
    """How many partitions a topic gets when Tidemark creates it."""
    max_offsets_per_trigger: int = 200_000
    """The most offsets one micro-batch covers."""

    def __post_init__(self) -> None:
        if sum(map(bool, (self.subscribe, self.pattern, self.assign))) != 1:
            raise UsageError("a source needs one of subscribe, pattern and assign")
        for topic in self.named:
            if not TOPIC.fullmatch(topic):
                raise UsageError(f"topic {topic!r} is not a Kafka topic name")
        if unknown := sorted(self.options.keys() - CLIENT_OPTIONS):
            raise UsageError(
                f"the option {unknown[0]!r} cannot be set by a pipeline",
                remedy=f"one of {', '.join(sorted(CLIENT_OPTIONS))}",
            )
        if self.starting_time:
            parse_time(self.starting_time)
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UsageError(f"the pattern {self.pattern!r} is no regular expression: {error}") from None

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that are declared by name; none for a pattern."""
        return self.subscribe or tuple(self.assign)

    def __str__(self) -> str:
        return ", ".join(self.named) or f"topics like {self.pattern}"


@dataclass(frozen=True)
class Json:
    """One JSON object a message, decoded strictly (`spark_jobs/decoding/json.py`)."""

    schema: str
    """DDL of the object; fields that it does not name are ignored."""
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""


@dataclass(frozen=True)
class Text:
    """UTF-8 text: a message is struct<text: STRING>."""

    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""

    @property
    def schema(self) -> str:
        """DDL of a message."""
        return "text STRING"


@dataclass(frozen=True)
class Csv:
    """One line of CSV a message, decoded strictly (`spark_jobs/decoding/strict_csv.py`)."""

    schema: str
    """DDL of the line's columns, all of them, in their order."""
    separator: str = ","
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""


@dataclass(frozen=True)
class UserDefined:
    """A Python function decodes (`spark_jobs/decoding/user_defined.py`)."""

    function: str
    """Where it is, e.g. `spark_jobs.transforms.meters:decode`. It takes a value's bytes and returns a message as a
    dictionary; None or an exception sends the record to quarantine. A vectorised one takes a `pyarrow` array of
    values and returns a struct array, and must be a function of each value alone."""
    schema: str
    """DDL of a message."""
    vectorised: bool = False
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", self.function):
            raise UsageError(f"{self.function!r} names no function", remedy="write it like package.module:function")


@dataclass(frozen=True)
class Avro:
    """One Avro record a message, in the wire format of a Confluent-compatible schema registry: a zero byte, four
    bytes of schema id, the record; decoded strictly (`spark_jobs/decoding/avro_wire.py`).

    Each record is decoded with its own writer schema, whatever its version, and read as the declared one.
    """

    subject: str
    """Under which the producers register the versions."""
    schema: str
    """The Avro schema that records are read as, JSON: the newest version that the code knows. Fields of newer ones
    are ignored."""
    mode: Literal["PERMISSIVE", "FAILFAST"] = "PERMISSIVE"
    """What a value that cannot be decoded does: it goes to quarantine, or it ends the run, which names it."""
    max_bytes: int = 1_048_576
    """A longer value goes to quarantine."""

    def __post_init__(self) -> None:
        try:
            declared = json.loads(self.schema)
        except ValueError:
            declared = None
        if not isinstance(declared, dict) or declared.get("type") != "record":
            raise UsageError(f"the schema to read {self.subject!r} as is not an Avro record in JSON")


Decoder = Json | Text | Csv | UserDefined | Avro


@dataclass(frozen=True)
class Required:
    """A column of an archive row that must not be null."""

    column: str


@dataclass(frozen=True)
class SafeValue:
    """A column of an archive row that becomes a folder name: its values must be safe as one (`lake.SAFE_VALUE`).

    Null is not: Spark's name for it is a value that data can carry too.
    """

    column: str


@dataclass(frozen=True)
class MaxBytes:
    """A text column of an archive row that must not be longer, in UTF-8; null is not."""

    column: str
    limit: int


@dataclass(frozen=True)
class EventTimeWithin:
    """The event time's distance from the record's Kafka timestamp.

    The bound keeps one absurd event from moving the watermark and dropping everybody else's.
    """

    behind: str
    ahead: str

    @property
    def bounds(self) -> tuple[timedelta, timedelta]:
        """Behind and ahead as durations."""
        return parse_duration(self.behind), parse_duration(self.ahead)


@dataclass(frozen=True)
class Between:
    """Bounds of a number, both included: neither NaN nor an infinite one lies within. Null does."""

    column: str
    low: float
    high: float


Rule = Required | EventTimeWithin | SafeValue | MaxBytes | Between


@dataclass(frozen=True)
class Archive:
    """The archive table: one row per element that the `rows` function finds in a message."""

    rows: str
    """Name of the transform: message column to an array of row structs."""
    takes_record: bool = field(default=False, kw_only=True)
    """Whether `rows` takes the record too: struct<key, headers, topic, partition, offset, timestamp>."""
    columns: str
    """DDL of the table's own columns; the Kafka columns are added."""
    event_time: str
    """Path of the event time inside a row, e.g. `last_event.start_time`."""
    rules: tuple[Rule, ...] = ()
    """What a row must satisfy; a message with a row that does not goes to quarantine whole."""
    partition_by: Mapping[str, str] = field(default_factory=dict)
    """Further partition columns of the table below `date`: name in the path to path inside a row, e.g.
    `{"zip": "zip_code"}`. Values must be safe as the name of a folder, else their record goes to quarantine."""
    description: str = ""

    def __post_init__(self) -> None:
        for name in self.partition_by:
            check_identifier(name, "partition column")
            if name in ("date", "interval", "outcome"):
                raise UsageError(f"partition column {name!r} is Tidemark's own", remedy="choose another name")

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Partition columns of the table above `interval`."""
        return ("date", *self.partition_by)

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The declared rules, and what the partition columns ask for."""
        return (*self.rules, *(SafeValue(column) for column in self.partition_by.values()))


@dataclass(frozen=True)
class CompactedTopic:
    """A speed view's topic: the last value of each key counts."""

    topic: str
    watermark: str
    """How long the stream waits for late rows, e.g. `1 hour`."""
    topic_partitions: int = 2


@dataclass(frozen=True)
class KafkaMessages:
    """A further sink of a speed view: messages for plain topics, at least once.

    The value carries the `version`, by which a reader tells a repetition.
    """

    topic: str = ""
    """Name of the topic for all rows; it goes before the one that a row names."""
    messages: str = ""
    """Name of the transform: the view's rows to columns key, value and, without `topic`, topic. Unset: as JSON."""
    row_topics: tuple[str, ...] = ()
    """The topics that rows may name; created like `topic` if missing."""
    topic_partitions: int = 2

    def __post_init__(self) -> None:
        for topic in self.topics:
            if not TOPIC.fullmatch(topic):
                raise UsageError(f"topic {topic!r} is not a Kafka topic name")
        if not self.topic and not (self.messages and self.row_topics):
            raise UsageError(
                "a sink without a topic needs messages that name one", remedy="set messages and row_topics"
            )

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that the sink may write to."""
        return (self.topic,) if self.topic else self.row_topics


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
    """Windows of event time, aligned to the epoch in UTC; durations as Spark writes them, e.g. `10 minutes`."""

    length: str
    slide: str = ""
    """A window begins so often; unset: where the last one ends."""
    start: str = ""
    """How far the windows are shifted, e.g. `2 minutes`: they begin two minutes past the hour."""

    def __post_init__(self) -> None:
        if self.length_seconds % self.slide_seconds:
            raise UsageError(f"a slide of {self.slide} does not divide a window of {self.length}")

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
        """The windows as series in which each row lies in exactly one: several where they overlap."""
        starts = range(self.start_seconds, self.start_seconds + self.length_seconds, self.slide_seconds)
        return tuple(TimeWindow(self.length, "", f"{start} seconds") for start in starts)

    def __str__(self) -> str:
        slide = f" every {self.slide}" if self.slide else ""
        return f"{self.length}{slide}{f' from {self.start}' if self.start else ''}"


_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


def _seconds(duration: str) -> int:
    match = re.fullmatch(r"(\d+) (second|minute|hour|day)s?", duration)
    if not match:
        raise UsageError(f"not a duration of a window: {duration!r}", remedy="write it like 10 minutes or 1 hour")
    return int(match[1]) * _SECONDS[match[2]]


@dataclass(frozen=True)
class AdditiveView:
    """Aggregates whose measures add up: kept live in a topic and recomputed per interval."""

    name: str
    rows: str
    """Name of the transform that selects what is counted: archive rows (and references) to rows."""
    aggregate: str
    """Name of the transform: those rows to one row per key."""
    key: tuple[str, ...]
    measures: tuple[str, ...]
    columns: str
    """DDL of key and measures."""
    window: str
    """The key column that is a window struct<start, end>."""
    windows: TimeWindow
    """Its windows, those that the transform aggregates by."""
    speed: CompactedTopic
    mode: Literal["update", "complete"] = "update"
    """Emitted with each micro-batch: the keys that changed, or all of them. With `complete` no row is too late
    and no key is ever forgotten: for few keys."""
    sinks: tuple[Sink, ...] = ()
    """Where each micro-batch goes besides, out of the same read."""
    description: str = ""


@dataclass(frozen=True)
class Reference:
    """A small static table that transforms join, shipped with the code as CSV with a header."""

    path: Path
    columns: str


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
class Listing:
    """A report section: rows that a transform of the archive rows finds, from the archive rows of the interval."""

    title: str
    rows: str
    columns: tuple[str, ...]
    key: tuple[str, ...] = ()
    """The columns that tell one listed thing from another; needed for `notify`."""
    notify: str = ""
    """Topic that gets a message for each key that the interval before did not list."""

    def __post_init__(self) -> None:
        if self.notify and not (TOPIC.fullmatch(self.notify) and set(self.key) and set(self.key) <= set(self.columns)):
            raise UsageError(
                f"report {self.title!r} cannot notify topic {self.notify!r}",
                remedy="name a Kafka topic, and a key among the report's columns",
            )


@dataclass(frozen=True)
class Flags:
    """Archive rows that stateless rules single out: told to a topic within milliseconds, recomputed per interval."""

    topic: str
    rules: str
    """Name of the transform: learned limits to a column, array<struct<rule, above>> of an archive row."""
    limits: str
    """Name of the transform: registered rows of the views in `learned_from` to limits: rule, subject, above."""
    learned_from: tuple[str, ...]
    """Names of the views that the limits are learned from."""
    columns: tuple[str, ...]
    """Columns of the archive row that a flag carries."""
    learned_over: str = "7d"
    """Limits are learned from so much of the registered intervals, counted back from the last one."""
    commit_every: str = "30 seconds"
    """How often the real-time query commits its position; no flag waits for it."""
    topic_partitions: int = 4

    def __post_init__(self) -> None:
        parse_duration(self.learned_over)
        if not TOPIC.fullmatch(self.topic):
            raise UsageError(f"topic {self.topic!r} is not a Kafka topic name")


@dataclass(frozen=True)
class Retention:
    """How long housekeeping leaves what is no longer needed."""

    landing: str = "2d"
    """Landing files whose rows lie in registered intervals, counted from their commit."""
    revisions: str = "7d"
    """Revisions that are no longer registered, or never were, counted from then."""

    def __post_init__(self) -> None:
        for duration in (self.landing, self.revisions):
            parse_duration(duration)


@dataclass(frozen=True)
class Pipeline:
    """Everything declared for one source."""

    name: str
    description: str
    source: KafkaTopics
    decoder: Decoder
    archive: Archive
    views: tuple[AdditiveView, ...] = ()
    flags: Flags | None = None
    references: Mapping[str, Reference] = field(default_factory=dict)
    reports: tuple[Threshold | Top | Listing, ...] = ()
    schedule: Schedule = field(default_factory=hourly)
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        check_identifier(self.name, "pipeline")
        for view in self.views:
            check_identifier(view.name, "view")
        names = {view.name for view in self.views}
        if self.flags and not names.issuperset(self.flags.learned_from):
            raise UsageError(f"flags learn from views that are not declared: {self.flags.learned_from}")
        for report in self.reports:
            if isinstance(report, Threshold | Top) and report.view not in names:
                raise UsageError(f"report {report.title!r} names the unknown view {report.view!r}", pipeline=self.name)
            if isinstance(report, Top):
                view = next(view for view in self.views if view.name == report.view)
                plain = set(view.key) - {view.window}
                if not report.by or not set(report.by) <= plain or report.measure not in view.measures:
                    raise UsageError(
                        f"report {report.title!r} does not fit the view {view.name!r}",
                        remedy=f"by: some of {', '.join(sorted(plain))}; measure: one of {', '.join(view.measures)}",
                        pipeline=self.name,
                    )

    @property
    def table(self) -> str:
        """Name of the archive table in the catalog database `lake`."""
        return self.name

    @property
    def top_report(self) -> Top:
        """The first `Top` report. Raises UsageError when none is declared."""
        for report in self.reports:
            if isinstance(report, Top):
                return report
        raise UsageError(f"{self.name} declares no report of the kind Top", remedy="add one to its reports")

    def view_table(self, view: AdditiveView) -> str:
        """Name of a batch view's table in the catalog database `lake`."""
        return f"{self.name}_{view.name}"

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables, archive first."""
        return (self.table, *(self.view_table(view) for view in self.views))
