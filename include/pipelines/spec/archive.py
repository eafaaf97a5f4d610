"""The archive table: its rows, their rules, how they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from include.errors import UsageError
from include.pipelines.spec.ddl import Renamed, check_path, check_renamed, check_stored, fields_of, names_before
from include.pipelines.spec.file_formats import CHANGING, FileFormat, check_columns, check_delta, check_iceberg
from include.pipelines.spec.names import (
    KAFKA_COLUMNS,
    OWN_PREFIX,
    check_bounds,
    check_count,
    check_partition_columns,
    check_tuple,
    free_name,
)
from include.times import parse_duration


@dataclass(frozen=True)
class Required:
    """A column of an archive row that must be neither null nor an empty text."""

    column: str


@dataclass(frozen=True)
class SafeValue:
    """A column of an archive row that becomes a folder name: its values must be safe as one (`lake.SAFE_VALUE`).

    Null is not safe: Spark's folder name for it is a value that data can carry, too.
    """

    column: str


@dataclass(frozen=True)
class MaxBytes:
    """A text column of an archive row whose values have a maximum length in UTF-8; null passes."""

    column: str
    limit: int


EVENT_TIMES = (datetime(2, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
"""Every event time of the archive lies in `[first, second)`, whatever a pipeline declares.

Python has the years 1 to 9999 only, and a row's windows may begin before it and end after it. Times far in the future
are common: `9999-12-31` stands for "never".
"""


@dataclass(frozen=True)
class EventTimeWithin:
    """The event time's distance from the record's Kafka timestamp.

    The bound keeps one absurd event from moving the watermark and dropping everybody else's.
    """

    behind: str
    ahead: str

    def __post_init__(self) -> None:
        for duration in (self.behind, self.ahead):
            parse_duration(duration)

    @property
    def bounds(self) -> tuple[timedelta, timedelta]:
        """Behind and ahead as durations."""
        return parse_duration(self.behind), parse_duration(self.ahead)


@dataclass(frozen=True)
class Between:
    """Bounds of a number, both included: NaN and infinity break them, null does not."""

    column: str
    low: float
    high: float


@dataclass(frozen=True)
class Fits:
    """Every value of an archive row can be read from files of the format as it was written."""

    file_format: FileFormat


_NOT_OF_PARTITIONS = frozenset(
    {"date", "interval", "fate", "event_time", *(each.name for each in fields_of(KAFKA_COLUMNS))}
    # Of a file, when its rows are counted.
    | {"rows", "records", "parts", "sum_1", "sum_2"}
)
"""Names of columns that rows have beside those that an archive declares."""

_NUMBERS = frozenset(
    {"BYTE", "TINYINT", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT", "FLOAT", "REAL", "DOUBLE"}
    | {"DEC", "DECIMAL", "NUMERIC"}
)
"""Types that Spark compares with numbers, whatever their value: a text that is no number would end the stream."""

_TIMES = _NUMBERS | {"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ", "STRING"}
"""Types that Spark makes a time of: a number is one of seconds."""

_FOLDERS = _NUMBERS | {"BOOLEAN", "DATE", "STRING", "BINARY"}
"""Types with values that are safe as the name of a folder. A timestamp has a space and colons."""

_NO_TEXTS = frozenset({"ARRAY", "MAP", "STRUCT", "GEOMETRY", "GEOGRAPHY"})
"""Types whose values have no length in bytes."""

AS_TIMESTAMP = "declare it as TIMESTAMP, and make it one in the rows function"

Rule = Required | EventTimeWithin | SafeValue | MaxBytes | Between | Fits


@dataclass(frozen=True)
class Archive:
    """The archive table: one row per element that the `rows` function finds in a message."""

    rows: str
    """Name of the transform: message column to its row (a struct, null for none) or rows (an array of structs)."""
    takes_record: bool = field(default=False, kw_only=True)
    """Whether `rows` takes the record too: struct<key, headers, topic, partition, offset, timestamp>."""
    columns: str
    """DDL of the table's own columns; the Kafka columns are added."""
    event_time: str
    """Path of the event time inside a row, e.g. `last_event.start_time`."""
    rules: tuple[Rule, ...] = ()
    """Rules of each row; a message with a row that breaks one goes to quarantine whole."""
    partition_by: Mapping[str, str] = field(default_factory=dict)
    """Further partition columns of the table below `date`: name in the path to path inside a row, e.g.
    `{"zip": "zip_code"}`; not a name that a column has. Values must be safe as the name of a folder, else their record
    goes to quarantine."""
    file_format: FileFormat = field(default="parquet", kw_only=True)
    """Format of the registered table's files: parquet, orc, avro, csv or json. All other files are Parquet."""
    description: str = ""
    delta: bool = field(default=False, kw_only=True)
    """Also kept as the Delta table `<lake>/delta/<pipeline>`; the view `<pipeline>_delta` shows its validated rows."""
    iceberg: bool = field(default=False, kw_only=True)
    """Also an Iceberg table `lake.<pipeline>` over the registered files: a snapshot for each interval that passed."""
    subject: str = field(default="", kw_only=True)
    """Path inside a row to the key of the person or thing that the row is about, e.g. `device_id`: `./tidemark erase`
    finds the rows to erase by it."""
    renamed: Renamed = field(default_factory=dict, kw_only=True)
    """Columns that were called otherwise before, e.g. `{"provider": "isp"}`."""

    def __post_init__(self) -> None:
        check_tuple(self.rules, "rules", Rule)
        check_stored(self.columns, "the archive")
        for each in fields_of(self.columns):
            if (free := free_name(each.name)) != each.name:
                raise UsageError(
                    f"column {each.name!r} is Tidemark's own",
                    remedy=f"call it {free}, and say so in `renamed` if the table has it already",
                )
        check_columns(self.file_format, self.columns)
        check_renamed(self.renamed, self.columns)
        if self.renamed and (self.delta or self.file_format != "parquet"):
            raise UsageError(
                "columns of a Delta table, and of files that are not Parquet, are not renamed",
                remedy="add the new column beside the old one; once columns were renamed, keep Parquet, without Delta",
            )
        if self.subject:
            check_subject(self.subject, self.columns)
        if self.iceberg:
            check_iceberg(self.file_format, self.columns)
        if self.delta:
            check_delta(self.columns)
        check_partition_columns(self.partition_by)
        for name in self.partition_by:
            _check_partition_column(name, self.columns, self.formerly)
        _check_paths(self)

    @property
    def event_time_kind(self) -> str:
        """The event time's type, e.g. TIMESTAMP. Raises UsageError when its path leads nowhere."""
        return check_path(self.event_time, self.columns, "event_time").kind

    @property
    def formerly(self) -> dict[str, tuple[str, ...]]:
        """Its renamed columns with the names that they had before, newest first."""
        return names_before(self.renamed)

    def former_in(self, key: Sequence[str]) -> dict[str, str]:
        """Return the names that columns of a listing's key had before, each with the present one."""
        names = ((before, name) for name in key for before in self.formerly.get(name, ()))
        # The listing's function may give another column the former name.
        return {before: name for before, name in names if before not in key}

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Partition columns of the table above `interval`."""
        return ("date", *self.partition_by)

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The declared rules, and those that the partition columns and the files' format require."""
        safe = (SafeValue(column) for column in self.partition_by.values())
        return (*self.rules, *safe, *([Fits(self.file_format)] if self.file_format in CHANGING else []))


def _check_partition_column(name: str, columns: str, formerly: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError when a row, which has the partition columns too, would have two columns of the name."""
    # Files have a renamed column by its former names, too.
    declared = [*(each.name for each in fields_of(columns)), *(old for before in formerly.values() for old in before)]
    if name in _NOT_OF_PARTITIONS or name.startswith(OWN_PREFIX):
        raise UsageError(f"partition column {name!r} has a name that is Tidemark's own", remedy=f"call it by_{name}")
    if name in {each.lower() for each in declared}:
        raise UsageError(
            f"partition column {name!r} has the name of a column of the archive", remedy=f"call it by_{name}"
        )


def _check_paths(archive: Archive) -> None:
    """Raise UsageError when the event time, a rule or a partition column names what no row of the archive has."""
    if _word(kind := archive.event_time_kind) not in _TIMES:
        raise UsageError(f"event_time {archive.event_time} is {kind}, which is no time", remedy=AS_TIMESTAMP)
    for name, path in archive.partition_by.items():
        _check_folders(path, check_path(path, archive.columns, f"partition column {name!r}").kind)
    for rule in archive.rules:
        if isinstance(rule, Required | SafeValue | MaxBytes | Between):
            into_maps = not isinstance(rule, Required)
            found = check_path(rule.column, archive.columns, f"the rule {type(rule).__name__}", into_maps=into_maps)
            _check_rule(rule, found.kind)


def _word(kind: str) -> str:
    """Return the first word of a type: STRING of STRING COLLATE UNICODE."""
    return kind.split(" ")[0]


def _check_folders(path: str, kind: str) -> None:
    """Raise UsageError for a type of which no value is safe as a folder name: each record would go to quarantine."""
    if _word(kind) not in _FOLDERS:
        raise UsageError(
            f"{path} is {kind}, and no value of it may be the name of a folder",
            remedy="let the rows function make a text of letters, digits and . _ + - of it, e.g. with date_format",
        )


def _check_rule(rule: Rule, kind: str) -> None:
    """Raise UsageError when a rule cannot judge a column of this type.

    Not by the rule itself, whose code is part of what versions are made of.
    """
    if isinstance(rule, MaxBytes):
        check_count(rule.limit, f"the limit of MaxBytes for {rule.column}")
        if _word(kind) in _NO_TEXTS:
            raise UsageError(
                f"the rule MaxBytes measures {rule.column}, and it is {kind}",
                remedy="name a text; max_bytes of the decoder bounds a whole message",
            )
    if isinstance(rule, SafeValue):
        _check_folders(rule.column, kind)
    if isinstance(rule, Between):
        check_bounds(rule.low, rule.high, f"the rule Between for {rule.column}")
    if isinstance(rule, Between) and kind not in _NUMBERS:
        raise UsageError(
            f"the rule Between compares {rule.column} with numbers, and it is {kind}",
            remedy="name a number; the rows function makes one of a text with try_cast; EventTimeWithin bounds a time",
        )


def check_subject(path: str, columns: str) -> None:
    """Raise UsageError unless a path leads to a single value: a column, or a field of a struct column."""
    kinds = {each.name: each.kind for each in fields_of(columns)}
    name, _, inner = path.partition(".")
    if (
        name not in kinds
        or kinds[name].startswith(("ARRAY", "MAP"))
        or (kinds[name].startswith("STRUCT") != bool(inner))
    ):
        raise UsageError(
            f"{path!r} names no single value of a row",
            remedy=f"one of the columns {', '.join(kinds)}, or a field in one",
        )


@dataclass(frozen=True)
class Retention:
    """How long housekeeping keeps what is no longer needed."""

    landing: str = "2d"
    """Landing files whose rows lie in registered intervals, from their commit; unless other code read Kafka there."""
    revisions: str = "7d"
    """Revisions that are no longer registered, or never were, counted from then."""
    snapshots: int = 50
    """How many snapshots each Iceberg table keeps, the newest ones."""
    replaced: str = "7d"
    """Landing and quarantine files that nobody reads any more, counted from then: at least as long as the copies of
    PostgreSQL that one may restore, for they name these files. `revisions` must then be as long."""

    def __post_init__(self) -> None:
        for duration in (self.landing, self.revisions, self.replaced):
            parse_duration(duration)
        check_count(self.snapshots, "snapshots of Retention")
