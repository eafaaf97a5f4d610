"""Rows that a stream sends on: outputs of archived rows, and flags with the limits that their rules compare with."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

from include.errors import UsageError
from include.pipelines.spec.archive import MaxBytes, Rule
from include.pipelines.spec.ddl import Field, check_apart, check_path, check_types, fields_of
from include.pipelines.spec.names import (
    IDENTITY,
    KAFKA_COLUMNS,
    OWN_QUERIES,
    TOPIC_ID,
    check_column,
    check_count,
    check_identifier,
    check_kind,
    check_length,
    check_topic,
    check_tuple,
)
from include.pipelines.spec.sources import PRODUCER_OPTIONS
from include.times import parse_duration

_SHORTEST_BATCH, _LONGEST_BATCH = timedelta(seconds=5), timedelta(minutes=5)

_SHORT = 4096
"""Bytes of a text that no flag is too large by."""

_SHORT_KIND = re.compile(
    "BOOLEAN|BYTE|TINYINT|SHORT|SMALLINT|INT|INTEGER|LONG|BIGINT|FLOAT|REAL|DOUBLE|DEC|DECIMAL|NUMERIC|DATE"
    "|TIMESTAMP(_NTZ|_LTZ)?"
)


class Limit(NamedTuple):
    """What the batch layer learned about one subject, for a rule to compare with."""

    rule: str
    subject: str
    """What it is about, e.g. a category or a bidder."""
    above: str | None = None
    """A decimal number; None for a rule that only asks whether the subject is known."""


@dataclass(frozen=True)
class Flags:
    """Archive rows that stateless rules single out: written to a topic in real time, recomputed per interval."""

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
    """How much of the registered intervals the limits are learned from, counted back from the last one."""
    commit_every: str = "60s"
    """How often the real-time query commits its position. The flags of records that come meanwhile wait some tenths of
    a second, and a driver that died is followed by one that reads again at most what came in such a period. From 5
    seconds, the least that Spark takes, to 5 minutes: after 10 without a commit a query counts as stalled."""
    topic_partitions: int = 4

    def __post_init__(self) -> None:
        parse_duration(self.learned_over)
        if not _SHORTEST_BATCH <= parse_duration(self.commit_every) <= _LONGEST_BATCH:
            raise UsageError(
                f"commit_every of the flags is {self.commit_every}", remedy="declare one from 5s to 5m, e.g. 60s"
            )
        check_topic(self.topic)
        check_tuple(self.learned_from, "learned_from of the flags")
        check_tuple(self.columns, "columns of the flags")
        check_count(self.topic_partitions, f"topic_partitions of {self.topic}")


@dataclass(frozen=True)
class KafkaTopic:
    """Where an output writes one message per row, at least once; each has the row's coordinates as headers."""

    topic: str = ""
    """Name of the topic for all rows; it takes precedence over the topic that a row names."""
    key: tuple[str, ...] = ()
    """Columns whose values are the key, a JSON object. Unset: the column `key` of the rows, else the coordinates."""
    row_topics: tuple[str, ...] = ()
    """The topics that rows may name in their column `topic`; created like `topic` if missing."""
    topic_partitions: int = 2
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of Kafka's producer, of those in `PRODUCER_OPTIONS`, e.g. `{"kafka.compression.type": "zstd"}`."""

    def __post_init__(self) -> None:
        check_tuple(self.key, "key")
        check_tuple(self.row_topics, "row_topics")
        for topic in (self.topic, *self.row_topics) if self.topic else self.row_topics:
            check_topic(topic)
        if not self.topic and not self.row_topics:
            raise UsageError("an output to Kafka names no topic", remedy="set topic, or row_topics for rows that do")
        check_count(self.topic_partitions, f"topic_partitions of {self}")
        if unknown := sorted(self.options.keys() - PRODUCER_OPTIONS.keys()):
            raise UsageError(
                f"the option {unknown[0]!r} cannot be set by an output",
                remedy=f"one of {', '.join(sorted(PRODUCER_OPTIONS))}",
            )

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the output may write to."""
        return (self.topic,) if self.topic else self.row_topics

    @property
    def target(self) -> str:
        """Where the rows go, for `is_same_target`."""
        return f"the topic {self.topic}" if self.topic else _ROW_TOPICS + ", ".join(self.row_topics)

    def __str__(self) -> str:
        return ", ".join(self.topics)


@dataclass(frozen=True)
class DatabaseTable:
    """Where an output keeps one table row per row, effectively once: the row's coordinates are the primary key."""

    connection: str = ""
    """Name of the connection in `TIDEMARK_JDBC_PROPERTIES`; unset: PostgreSQL's database `serving`."""
    table: str = ""
    """Name of the table; unset: `<pipeline>_<output>`. Created if missing."""

    def __post_init__(self) -> None:
        for name, what in ((self.connection, "connection"), (self.table, "table")):
            if name:
                check_identifier(name, what)

    def named(self, pipeline: str, output: str) -> DatabaseTable:
        """Return it with the table's name as an output of that name has it."""
        return replace(self, table=self.table or f"{pipeline}_{output}")

    def __str__(self) -> str:
        table = f"the table {self.table}" if self.table else "its table"
        return f"{table} of {self.connection or 'serving'}"


@dataclass(frozen=True)
class Rows:
    """An output of a pipeline: each committed archive row, or what a transform makes of it, is sent on."""

    name: str
    to: KafkaTopic | DatabaseTable
    rows: str = ""
    """Name of the transform: archive rows and references to at most one row for each, with its coordinates. Unset: the
    archive's rows as they are."""
    columns: str = ""
    """DDL of what the transform returns besides the coordinates."""

    def __post_init__(self) -> None:
        check_identifier(self.name, "output")
        check_kind(self.to, f"the target of the output {self.name}", KafkaTopic | DatabaseTable)
        if bool(self.rows) != bool(self.columns):
            raise UsageError(
                f"the output {self.name} declares {'rows' if self.rows else 'columns'} alone",
                remedy="declare the transform and the columns that it returns, or neither",
            )
        if self.columns:
            check_apart(fields_of(self.columns), f"the output {self.name}")
            check_types(self.columns, f"the output {self.name}")
        # As in Spark and in most databases, names that differ in case alone are one.
        anyway = {*IDENTITY, TOPIC_ID} if isinstance(self.to, DatabaseTable) else {*IDENTITY}
        declared = fields_of(self.columns) if self.columns else ()
        if taken := sorted(each.name for each in declared if each.name.lower() in anyway):
            raise UsageError(
                f"the output {self.name} declares {', '.join(taken)}, which each row has anyway",
                remedy="leave it out of columns",
            )


_ROW_TOPICS = "the topics "


def target_of(pipeline: str, output: Rows) -> str:
    """Return where the rows of a pipeline's output go, for `is_same_target`."""
    return output.to.target if isinstance(output.to, KafkaTopic) else str(output.to.named(pipeline, output.name))


def is_same_target(before: str, now: str) -> bool:
    """Return whether an output that went to one target goes on at the other.

    A list of topics that rows name may grow or shrink: each row goes where it says.
    """
    if before.startswith(_ROW_TOPICS) and now.startswith(_ROW_TOPICS):
        older, newer = (set(each.removeprefix(_ROW_TOPICS).split(", ")) for each in (before, now))
        return older <= newer or newer <= older
    return before == now


def tables_of(pipeline: str, outputs: Iterable[Rows]) -> list[DatabaseTable]:
    """Return the tables of databases that these outputs of a pipeline write, each with its name."""
    return [each.to.named(pipeline, each.name) for each in outputs if isinstance(each.to, DatabaseTable)]


def check_tables(pipeline: str, outputs: Iterable[Rows], live_tables: Mapping[str, str]) -> None:
    """Raise UsageError when two outputs, or an output and a view of those with tables, have one, or a name is too long.

    `live_tables`: tables of `serving` with the names of the pipeline's views that have them.
    """
    for table, view in live_tables.items():
        check_length(table, f"the view {view!r}", pipeline)
    writers = {DatabaseTable(table=table): f"the view {view!r}" for table, view in live_tables.items()}
    for output in outputs:
        if not isinstance(output.to, DatabaseTable):
            continue
        check_length(output.to.table or f"{pipeline}_{output.name}", f"the output {output.name!r}", pipeline)
        to = output.to.named(pipeline, output.name)
        if to in writers:
            raise UsageError(
                f"the output {output.name!r} goes to {to}, which {writers[to]} writes",
                remedy="give it a table of its own",
                pipeline=pipeline,
            )
        writers[to] = f"the output {output.name!r}"


def check_flags(flags: Flags, views: Collection[str], archive_columns: str, pipeline: str) -> None:
    """Raise UsageError when flags learn from a view, or carry a column, that the pipeline does not declare."""
    if missing := set(flags.learned_from) - set(views):
        raise UsageError(
            f"flags learn from views that are not declared: {', '.join(sorted(missing))}", pipeline=pipeline
        )
    columns = f"{archive_columns}, {KAFKA_COLUMNS}, event_time TIMESTAMP"
    for path in flags.columns:
        check_path(path, columns, "columns of the flags", into_arrays=True)


def long_columns(flags: Flags, archive_columns: str, rules: Iterable[Rule]) -> tuple[str, ...]:
    """Return the columns of flags whose length neither their type nor a rule `MaxBytes` bounds."""
    columns = fields_of(f"{archive_columns}, {KAFKA_COLUMNS}, event_time TIMESTAMP")
    short = {each.name for each in columns if _SHORT_KIND.fullmatch(each.kind)}
    short |= {rule.column for rule in rules if isinstance(rule, MaxBytes) and rule.limit <= _SHORT}
    return tuple(name for name in flags.columns if name not in short)


def check_postgresql(output: Rows, fields: Iterable[Field], pipeline: str) -> None:
    """Raise UsageError unless a table of PostgreSQL may have the columns of an output's rows.

    Only the settings say which database a named connection leads to, so its outputs are checked when they write.
    """
    for each in fields:
        check_column(
            each.name,
            f"the table of the output {output.name}",
            "declare rows and columns of the output, with another name for it",
            pipeline,
        )


def check_output(output: Rows, others: Collection[str], archive_columns: str, pipeline: str) -> None:
    """Raise UsageError when an output's name is taken, or a column that it names does not exist.

    `others`: names of the pipeline's views and other outputs.
    """
    if output.name in (*OWN_QUERIES, *others):
        raise UsageError(
            f"the output {output.name!r} has the name of a view, of another output or of Tidemark's own",
            remedy="give it a name of its own",
            pipeline=pipeline,
        )
    columns = output.columns or f"{archive_columns}, {KAFKA_COLUMNS}"
    if isinstance(output.to, DatabaseTable) and TOPIC_ID in {each.name.lower() for each in fields_of(columns)}:
        raise UsageError(
            f"the table of the output {output.name} has a column {TOPIC_ID} of its own, and so has the archive",
            remedy="declare rows and columns of the output, with another name for the archive's column",
            pipeline=pipeline,
        )
    if isinstance(output.to, DatabaseTable) and not output.to.connection:
        check_postgresql(output, fields_of(columns), pipeline)
    if isinstance(output.to, KafkaTopic):
        names = {each.name for each in fields_of(columns)}
        needed = [*output.to.key, *(["topic"] if not output.to.topic else [])]
        if missing := [name for name in needed if name not in names]:
            raise UsageError(
                f"the rows of the output {output.name} have no column {missing[0]!r}",
                remedy=f"they have {', '.join(sorted(names))}",
                pipeline=pipeline,
            )
