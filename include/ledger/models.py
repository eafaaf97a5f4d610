"""The ledger's tables. Every column carries its comment into the database, where psql shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Computed,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    UniqueConstraint,
    false,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "pk": "pk_%(table_name)s",
}


OFFSETS = 10**19
"""More offsets than Kafka has: the distance between the spans of a topic's partitions."""

SPAN = (
    f"numrange(topic_partition * {OFFSETS}::numeric + from_offset, topic_partition * {OFFSETS}::numeric + until_offset)"
)
"""A range that differs between the topic partitions of a topic: partitions fill up side by side, and an index over
offsets alone would find the same offsets in all of them."""


class Base(DeclarativeBase):
    """Declarative base: big integers and times with time zone throughout."""

    metadata = MetaData(naming_convention=_NAMES)
    type_annotation_map = {int: BigInteger, datetime: DateTime(timezone=True), dict[str, Any]: JSONB}


def _now(comment: str) -> Mapped[datetime]:
    return mapped_column(server_default=func.now(), comment=comment)


class Writer(Base):
    """The lease of a pipeline's stream: who may commit."""

    __tablename__ = "writers"
    __table_args__ = {"comment": "Who may commit for a pipeline: a lease with a growing fencing token"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    token: Mapped[int] = mapped_column(comment="Fencing token; grows with every new holder")
    holder: Mapped[str] = mapped_column(comment="host:pid:start time of the driver")
    acquired_at: Mapped[datetime] = _now("When this holder took the lease")
    renewed_at: Mapped[datetime] = _now("The driver's last sign of life")
    expires_at: Mapped[datetime] = mapped_column(comment="From then on another driver may take the lease")
    stop_requested: Mapped[bool] = mapped_column(default=False, comment="The driver shall stop after its batch")
    application_id: Mapped[str] = mapped_column(default="", comment="Spark application id")
    ui_address: Mapped[str] = mapped_column(
        default="", server_default="", comment="Spark's own pages of it; empty: none"
    )
    code: Mapped[dict[str, Any]] = mapped_column(
        default=dict, deferred=True, server_default="{}", comment="Its modules: path to a hash of the file"
    )
    replaced_for: Mapped[str] = mapped_column(
        default="", server_default="", comment="Changed modules for which a driver was last replaced; empty: none"
    )
    command: Mapped[str] = mapped_column(
        default="", server_default="", comment="Command that holds it instead of a driver; empty: none"
    )


class StreamLaunch(Base):
    """A driver that was started detached."""

    __tablename__ = "stream_launches"
    __table_args__ = {"comment": "Drivers started detached (by Airflow): intent noted before the start"}

    id: Mapped[str] = mapped_column(primary_key=True, comment="Random id, also in the driver's environment")
    number: Mapped[int] = mapped_column(
        BigInteger, Identity(), unique=True, comment="Order of the intents, also when the clock is set back"
    )
    pipeline: Mapped[str] = mapped_column(index=True, comment="Name of the pipeline")
    launched_at: Mapped[datetime] = _now("When the intent was noted")
    host: Mapped[str] = mapped_column(comment="Where it was started")
    pid: Mapped[int | None] = mapped_column(comment="Process id of spark-submit, once known")
    application: Mapped[str] = mapped_column(
        default="", server_default="", comment="Id of its application on YARN; empty for a process"
    )
    log: Mapped[str] = mapped_column(comment="Path of its log file on that host, or URL of its application's page")
    ended_at: Mapped[datetime | None] = mapped_column(comment="When it was found ended")
    exit_code: Mapped[int | None] = mapped_column(comment="Its exit code, once known")
    ended_for: Mapped[str] = mapped_column(
        default="", server_default="", comment="Why Airflow ended it; empty: it did not"
    )
    error: Mapped[str] = mapped_column(
        default="", server_default="", comment="The error with which it ended; empty: none was noted"
    )


class Topic(Base):
    """A topic's identity."""

    __tablename__ = "topics"
    __table_args__ = {"comment": "Identity of the topics a pipeline has read"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    topic: Mapped[str] = mapped_column(primary_key=True, comment="Name of the topic")
    topic_id: Mapped[str] = mapped_column(comment="Kafka's topic id; a recreated topic has another one")
    topic_partitions: Mapped[int] = mapped_column(comment="Number of topic partitions when last seen")
    first_seen_at: Mapped[datetime] = _now("When the id was first stored")
    left_at: Mapped[datetime | None] = mapped_column(
        comment="When the pipeline stopped reading it, after which its archive does not grow; null: it is read"
    )
    left_by: Mapped[str | None] = mapped_column(comment="user@host that said so")
    left_for: Mapped[str | None] = mapped_column(comment="Why")


class MicroBatch(Base):
    """A committed micro-batch."""

    __tablename__ = "micro_batches"
    __table_args__ = (
        UniqueConstraint("query_id", "batch_id"),
        Index("ix_micro_batches_pipeline", "pipeline", "query", "id"),
        Index("ix_micro_batches_decoder", "query_id", "decoder_version"),
        Index("ix_micro_batches_committed", "pipeline", "query", "committed_at"),
        {"comment": "Committed micro-batches; a batch without a row here was not committed"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Commit order")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    query: Mapped[str] = mapped_column(comment="`archive`, or the name of a speed view")
    query_id: Mapped[str] = mapped_column(comment="Spark's id of the query, kept in its checkpoint")
    batch_id: Mapped[int] = mapped_column(comment="Spark's batch number within the query")
    token: Mapped[int] = mapped_column(comment="Fencing token of the driver that committed it")
    committed_at: Mapped[datetime] = _now("When it was committed")
    records: Mapped[int] = mapped_column(default=0, comment="Records seen (visible messages)")
    rows: Mapped[int] = mapped_column(default=0, comment="Rows landed, or keys emitted by a speed view")
    seconds: Mapped[float] = mapped_column(default=0.0, comment="Duration of the batch until its commit, s")
    watermark: Mapped[datetime | None] = mapped_column(
        comment="Speed views: rows whose window ended at or before this were dropped as late"
    )
    decoder_version: Mapped[str | None] = mapped_column(comment="Version of the decoding code; null: not noted then")
    watched: Mapped[list[str] | None] = mapped_column(
        JSONB(none_as_null=True),
        comment="The reports whose outages were looked for in its rows: JSON of title, key and up, or the title alone; "
        "null: none",
    )


class ViewKeys(Base):
    """How many keys a view without a window has."""

    __tablename__ = "view_keys"
    __table_args__ = {"comment": "How many keys each view without a window has, as its stream counted them last"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    view: Mapped[str] = mapped_column(primary_key=True, comment="Name of the view")
    keys: Mapped[int] = mapped_column(comment="How many keys it has")
    version: Mapped[int] = mapped_column(comment="The micro-batch after which they were counted")
    counted_at: Mapped[datetime] = _now("When they were counted")


class ProgressRow(Base):
    """What Spark reported about a query at one moment."""

    __tablename__ = "query_progress"
    __table_args__ = (
        Index("ix_query_progress_query", "pipeline", "query", "id"),
        {"comment": "What Spark last told of each running query, for pages and metrics; only the newest rows are kept"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order in which they were noted")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    query: Mapped[str] = mapped_column(comment="`archive`, `flags`, or the name of a speed view")
    batch_id: Mapped[int] = mapped_column(comment="Spark's batch number within the query")
    at: Mapped[datetime] = mapped_column(comment="When the micro-batch, or the look for new data, began")
    input_rows: Mapped[int] = mapped_column(comment="Records it read")
    input_rate: Mapped[float] = mapped_column(comment="Records that arrived per second")
    processing_rate: Mapped[float] = mapped_column(comment="Records that it worked off per second")
    seconds: Mapped[float] = mapped_column(comment="Duration in all, s")
    parts: Mapped[dict[str, Any]] = mapped_column(comment="Duration of each part, s, by Spark's name of it")
    watermark: Mapped[datetime | None] = mapped_column(comment="The query's watermark; null without one")
    state_rows: Mapped[int] = mapped_column(comment="Rows in its state store")
    state_bytes: Mapped[int] = mapped_column(comment="Memory that these take, bytes")


class MicroBatchRange(Base):
    """The offsets of one topic partition in a micro-batch."""

    __tablename__ = "micro_batch_ranges"
    __table_args__ = (
        Index("ix_micro_batch_ranges_offsets", "topic", "topic_partition", "until_offset"),
        # Finds what overlaps a range without a scan of all that came after it.
        Index("ix_micro_batch_ranges_span", text(SPAN), postgresql_using="gist"),
        {"comment": "Offset ranges of committed micro-batches, with the fate of every offset"},
    )

    micro_batch_id: Mapped[int] = mapped_column(
        ForeignKey("micro_batches.id", ondelete="CASCADE"), primary_key=True, comment="The micro-batch"
    )
    topic: Mapped[str] = mapped_column(primary_key=True, comment="Name of the topic")
    topic_partition: Mapped[int] = mapped_column(primary_key=True, comment="Number of the topic partition")
    topic_id: Mapped[str] = mapped_column(comment="Kafka's topic id at the commit")
    from_offset: Mapped[int] = mapped_column(comment="First offset, included")
    until_offset: Mapped[int] = mapped_column(comment="Last offset, excluded")
    archived: Mapped[int] = mapped_column(default=0, comment="Records with at least one archive row")
    empty: Mapped[int] = mapped_column(default=0, comment="Valid records with nothing to archive")
    quarantined: Mapped[int] = mapped_column(default=0, comment="Records in quarantine")
    gaps: Mapped[int] = mapped_column(default=0, comment="Offsets with no visible record")
    erased: Mapped[int] = mapped_column(
        default=0, server_default="0", comment="Records that were erased since; they had another fate before"
    )


class Position(Base):
    """How far a query has committed."""

    __tablename__ = "positions"
    __table_args__ = {"comment": "The next offset each query will commit, per topic partition"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    query: Mapped[str] = mapped_column(primary_key=True, comment="`archive`, or the name of a speed view")
    topic: Mapped[str] = mapped_column(primary_key=True, comment="Name of the topic")
    topic_partition: Mapped[int] = mapped_column(primary_key=True, comment="Number of the topic partition")
    next_offset: Mapped[int] = mapped_column(comment="All offsets below are committed")
    micro_batch_id: Mapped[int] = mapped_column(comment="The micro-batch that moved it last")


class LandingFileRow(Base):
    """What a committed micro-batch has in one file."""

    __tablename__ = "landing_files"
    __table_args__ = (
        Index("ix_landing_files_path", "path"),
        Index(
            "ix_landing_files_loose",
            "micro_batch_id",
            postgresql_where=text("removed_at IS NULL AND compacted_at IS NULL"),
        ),
        Index(
            "ix_landing_files_event_times",
            text("tstzrange(event_time_min, event_time_max, '[]')"),
            postgresql_using="gist",
            postgresql_where=text("fate = 'archived'"),
        ),
        Index("ix_landing_files_quarantined", "micro_batch_id", postgresql_where=text("fate = 'quarantined'")),
        {"comment": "What each committed micro-batch has in which file of landing or quarantine"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Surrogate key")
    micro_batch_id: Mapped[int] = mapped_column(
        ForeignKey("micro_batches.id", ondelete="CASCADE"), index=True, comment="The micro-batch that wrote it"
    )
    fate: Mapped[str] = mapped_column(comment="archived, empty or quarantined")
    path: Mapped[str] = mapped_column(comment="Path below the lake's URI; a compacted file holds many micro-batches")
    rows: Mapped[int] = mapped_column(comment="Rows of the micro-batch in the file")
    bytes: Mapped[int] = mapped_column(comment="Size of the file, bytes")
    event_time_min: Mapped[datetime | None] = mapped_column(comment="Earliest event time in the file")
    event_time_max: Mapped[datetime | None] = mapped_column(comment="Latest event time in the file")
    compacted_at: Mapped[datetime | None] = mapped_column(comment="When its rows were merged into a file of the day")
    removed_at: Mapped[datetime | None] = mapped_column(
        comment="From then on its rows are read from the registered revisions; the file is deleted after it"
    )


class IntervalRow(Base):
    """A pinned interval."""

    __tablename__ = "intervals"
    __table_args__ = (
        UniqueConstraint("pipeline", "from_time"),
        Index("ix_intervals_end", "pipeline", "to_time"),
        Index("ix_intervals_pinned_at", "pipeline", "pinned_at"),
        Index("ix_intervals_open", "pipeline", "from_time", postgresql_where=text("state <> 'registered'")),
        Index("ix_intervals_apart", "pipeline", "from_time", postgresql_where=text("NOT adjoins")),
        Index("ix_intervals_declared_begin", "declared", "from_time", postgresql_where=text("state = 'registered'")),
        Index("ix_intervals_declared_end", "declared", "to_time", postgresql_where=text("state = 'registered'")),
        {"comment": "Intervals, pinned once to offset ranges; reruns and backfills reuse them"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Surrogate key")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    from_time: Mapped[datetime] = mapped_column(comment="Start of the interval, included")
    to_time: Mapped[datetime] = mapped_column(comment="End of the interval, excluded")
    pinned_at: Mapped[datetime] = _now("When its ranges were written")
    pinned_by: Mapped[str] = mapped_column(comment="user@host that pinned it")
    state: Mapped[str] = mapped_column(default="pinned", comment="pinned, registered or failed")
    # Deferred: it may be a hundred times as long as the rest of the row, which most queries join.
    verdict: Mapped[dict[str, Any] | None] = mapped_column(deferred=True, comment="The verdict of its last attempt")
    adjoins: Mapped[bool] = mapped_column(
        default=False,
        server_default=false(),
        comment="Whether the pinned interval before it ends where it begins; false: it may not",
    )
    declared: Mapped[int | None] = mapped_column(
        ForeignKey("declared_tables.id"),
        comment="Tables that the code of its last published build declared; null: unknown, or nothing is published",
    )


class PinnedCount(Base):
    """How many intervals a pipeline has; migration 0053's triggers keep this and `QuarantineTotal`."""

    __tablename__ = "pinned_counts"
    __table_args__ = {"comment": "How many rows of `intervals` each pipeline has; kept by a trigger"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    intervals: Mapped[int] = mapped_column(comment="How many intervals are pinned, in any state")


class DeclaredTables(Base):
    """A set of tables that code of a pipeline has declared."""

    __tablename__ = "declared_tables"
    __table_args__ = {"comment": "Sets of tables that code of a pipeline has declared"}

    id: Mapped[int] = mapped_column(primary_key=True, comment="Surrogate key")
    pipeline: Mapped[str] = mapped_column(index=True, comment="Name of the pipeline")
    tables: Mapped[list[Any]] = mapped_column(JSONB, comment="Names of the tables, in order")


class TableBegin(Base):
    """Where the registered rows of a table begin."""

    __tablename__ = "table_begins"
    __table_args__ = {
        "comment": "Where the registered rows of each table begin; a row for every table that ever had some"
    }

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    table_name: Mapped[str] = mapped_column(primary_key=True, comment="Table in the catalog database lake")
    first_begin: Mapped[datetime] = mapped_column(
        comment="Start of the first interval of which a revision was ever registered"
    )


class IntervalRange(Base):
    """The offsets of one topic partition that an interval is pinned to."""

    __tablename__ = "interval_ranges"
    __table_args__ = (
        Index("ix_interval_ranges_span", text(SPAN), postgresql_using="gist"),
        Index("ix_interval_ranges_begin", "topic", "topic_partition", "topic_id", "from_offset"),
        {"comment": "Pinned offset ranges; consecutive intervals tile per topic partition"},
    )

    interval_id: Mapped[int] = mapped_column(
        ForeignKey("intervals.id", ondelete="CASCADE"), primary_key=True, comment="The interval"
    )
    topic: Mapped[str] = mapped_column(primary_key=True, comment="Name of the topic")
    topic_partition: Mapped[int] = mapped_column(primary_key=True, comment="Number of the topic partition")
    topic_id: Mapped[str] = mapped_column(comment="Kafka's topic id when pinned")
    from_offset: Mapped[int] = mapped_column(comment="First offset, included")
    until_offset: Mapped[int] = mapped_column(comment="Last offset, excluded")
    archived: Mapped[int | None] = mapped_column(comment="Records with at least one archive row")
    empty: Mapped[int | None] = mapped_column(comment="Valid records with nothing to archive")
    quarantined: Mapped[int | None] = mapped_column(comment="Records in quarantine")
    gaps: Mapped[int | None] = mapped_column(comment="Offsets with no visible record")
    erased: Mapped[int] = mapped_column(
        default=0, server_default="0", comment="Records that were erased; they had another fate before"
    )
    odd_timestamps: Mapped[int] = mapped_column(
        default=0, server_default="0", comment="Records passed over at pinning: timestamps too far ahead to end it"
    )
    first_odd_offset: Mapped[int | None] = mapped_column(comment="The first of them")
    first_odd_timestamp: Mapped[int | None] = mapped_column(comment="Its timestamp, ms since 1970, as Kafka has it")
    last_timestamp: Mapped[int | None] = mapped_column(
        comment="Timestamp of the record before until_offset when pinned, ms since 1970; null where none was visible"
    )


class Attempt(Base):
    """One run of an interval."""

    __tablename__ = "attempts"
    __table_args__ = (
        Index("ix_attempts_open", "interval_id", postgresql_where=text("ended_at IS NULL")),
        {"comment": "Runs of intervals: who ran what, with which code, and how it ended"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Surrogate key")
    interval_id: Mapped[int] = mapped_column(
        ForeignKey("intervals.id", ondelete="CASCADE"), index=True, comment="The interval"
    )
    started_at: Mapped[datetime] = _now("When it started")
    ended_at: Mapped[datetime | None] = mapped_column(comment="When it ended")
    run_by: Mapped[str] = mapped_column(comment="user@host, or Airflow's run id")
    code_version: Mapped[str] = mapped_column(comment="Version of the pipeline's code")
    source: Mapped[str] = mapped_column(comment="kafka or archive: where the ranges were read from")
    exit_code: Mapped[int | None] = mapped_column(comment="Exit code of CONTRACT.md, once ended")
    verdict: Mapped[dict[str, Any] | None] = mapped_column(deferred=True, comment="What it found, so far")


class Build(Base):
    """What an attempt built in one go, and whether it was published."""

    __tablename__ = "builds"
    __table_args__ = (
        Index(
            "ix_builds_registering",
            "interval_id",
            postgresql_where=text("registering_at IS NOT NULL AND published_at IS NULL"),
        ),
        Index("ix_builds_unproved", "interval_id", postgresql_where=text("published_at IS NOT NULL AND NOT proved")),
        Index(
            "ix_builds_not_in_delta", "interval_id", postgresql_where=text("published_at IS NOT NULL AND NOT in_delta")
        ),
        {"comment": "Builds of attempts: an attempt that is run again builds again, and its latest build counts"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order in which they were noted")
    attempt_id: Mapped[int] = mapped_column(
        ForeignKey("attempts.id", ondelete="CASCADE"), index=True, comment="The attempt"
    )
    interval_id: Mapped[int] = mapped_column(
        ForeignKey("intervals.id", ondelete="CASCADE"), index=True, comment="The interval"
    )
    noted_at: Mapped[datetime] = _now("When its revisions were noted")
    findings: Mapped[dict[str, Any]] = mapped_column(comment="What it and its publication found")
    changes: Mapped[dict[str, Any] | None] = mapped_column(
        comment="What registering it changes: table partitions to point, to drop and to keep; noted before the first"
    )
    registering_at: Mapped[datetime | None] = mapped_column(comment="When these changes were noted")
    published_at: Mapped[datetime | None] = mapped_column(
        comment="When they were all made, or a later build was found published instead"
    )
    matched: Mapped[int | None] = mapped_column(comment="Reconciliation: sides that agree; a copy from the findings")
    pending: Mapped[int | None] = mapped_column(comment="Reconciliation: differences that other intervals explain")
    late: Mapped[int | None] = mapped_column(comment="Reconciliation: rows that arrived after their window was closed")
    unexplained: Mapped[int | None] = mapped_column(comment="Reconciliation: differences that nothing explains")
    passed: Mapped[bool | None] = mapped_column(comment="Whether its checkpoint passed; null: not judged")
    proved: Mapped[bool] = mapped_column(
        default=False,
        server_default=false(),
        comment="Whether nothing is left to prove of it: the proof is written, or none is due; false: it may be",
    )
    in_delta: Mapped[bool] = mapped_column(
        default=False,
        server_default=false(),
        comment="Whether the archive's Delta table has what it registered, or what came later; false: it may lack it",
    )
    columns: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB(none_as_null=True),
        comment="By table, its declared columns with their types; null: noted by code that did not keep them",
    )
    also_named: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB(none_as_null=True),
        comment="By table, former names that its files have besides, each with the column of the same values",
    )
    view_versions: Mapped[dict[str, str] | None] = mapped_column(
        JSONB,
        Computed("findings -> 'view_versions'", persisted=True),
        comment="By a view's table, the version of the code that added it up: a part of the findings",
    )
    partition_by: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB(none_as_null=True),
        comment="The archive's further partition columns, each with the column of its values; null: without any, or "
        "noted by code that did not keep them",
    )


class ExpectationRow(Base):
    """What one expectation found in a build."""

    __tablename__ = "expectation_results"
    __table_args__ = (
        Index("ix_expectation_results_table", "table_name", "build_id"),
        {"comment": "What each expectation found in each build; a copy from the findings, for questions over time"},
    )

    build_id: Mapped[int] = mapped_column(
        ForeignKey("builds.id", ondelete="CASCADE"), primary_key=True, comment="The build"
    )
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False, comment="Its place in the suite, from 0")
    table_name: Mapped[str] = mapped_column(comment="Table in the catalog database lake")
    expectation: Mapped[str] = mapped_column(comment="Type of the expectation, as Great Expectations names it")
    column_name: Mapped[str] = mapped_column(comment="Its columns; empty for one about the whole table")
    words: Mapped[str] = mapped_column(comment="The expectation as a sentence")
    success: Mapped[bool] = mapped_column(comment="Whether it was met")
    observed: Mapped[str] = mapped_column(comment="What it observed, as text")
    value: Mapped[float | None] = mapped_column(comment="What it observed as a number; of rows: the share that met it")
    low: Mapped[float | None] = mapped_column(comment="The least value with which it is met")
    high: Mapped[float | None] = mapped_column(comment="The greatest value with which it is met")
    unexpected_count: Mapped[int] = mapped_column(comment="Rows that did not meet it")
    checked: Mapped[int | None] = mapped_column(comment="Rows that it looked at; null: not told")


class Revision(Base):
    """An immutable directory with one table partition's files."""

    __tablename__ = "revisions"
    __table_args__ = (
        Index("ix_revisions_table_partition", "table_name", "table_partition"),
        {"comment": "Immutable directories of table partitions; at most one per partition is registered"},
    )

    id: Mapped[str] = mapped_column(primary_key=True, comment="Name of the directory")
    table_name: Mapped[str] = mapped_column(primary_key=True, comment="Table in the catalog database lake")
    table_partition: Mapped[str] = mapped_column(primary_key=True, comment="date=…/interval=…")
    interval_id: Mapped[int] = mapped_column(
        ForeignKey("intervals.id", ondelete="CASCADE"), index=True, comment="The interval that delivered it"
    )
    attempt_id: Mapped[int] = mapped_column(
        ForeignKey("attempts.id", ondelete="CASCADE"), index=True, comment="The attempt that built it"
    )
    build_id: Mapped[int | None] = mapped_column(
        ForeignKey("builds.id", ondelete="CASCADE"), index=True, comment="The attempt's build that it belongs to"
    )
    location: Mapped[str] = mapped_column(comment="URI of the directory")
    rows: Mapped[int] = mapped_column(comment="Rows in its files")
    content_hash: Mapped[str] = mapped_column(comment="Order-independent hash of its rows")
    code_version: Mapped[str] = mapped_column(comment="Version of the pipeline's code that built it")
    state: Mapped[str] = mapped_column(
        default="built",
        comment="built, validated, registering, registered, superseded, rejected, discarded or removed",
    )
    built_at: Mapped[datetime] = _now("When it was built")
    registered_at: Mapped[datetime | None] = mapped_column(comment="When the catalog was pointed at it")
    retired_at: Mapped[datetime | None] = mapped_column(comment="When it was superseded, rejected or discarded")
    files: Mapped[dict[str, Any]] = mapped_column(comment="File name to rows, bytes, sha256 and offset statistics")


class ListedRow(Base):
    """A row that a report with notifications lists, as a build found."""

    __tablename__ = "listed_rows"
    __table_args__ = {"comment": "What reports with notifications list per build, and what was sent of it"}

    interval_id: Mapped[int] = mapped_column(
        ForeignKey("intervals.id", ondelete="CASCADE"), primary_key=True, comment="The interval"
    )
    report: Mapped[str] = mapped_column(primary_key=True, comment="Title of the report")
    key: Mapped[str] = mapped_column(primary_key=True, comment="JSON object of the report's key columns")
    build_id: Mapped[int] = mapped_column(
        primary_key=True, autoincrement=False, comment="The build that lists it; 0: noted before builds were"
    )
    row: Mapped[dict[str, Any]] = mapped_column(comment="The row as it was listed")
    notified_at: Mapped[datetime | None] = mapped_column(comment="When the operators were told of it")


class OutageRow(Base):
    """Something that is down by a watched report's rows, until they find it up."""

    __tablename__ = "outages"
    __table_args__ = (
        Index("ix_outages_open", "pipeline", "report", "key", unique=True, postgresql_where=text("end_offset IS NULL")),
        Index(
            "ix_outages_untold",
            "pipeline",
            "id",
            postgresql_where=text("told_at IS NULL OR (end_offset IS NOT NULL AND end_told_at IS NULL)"),
        ),
        Index("ix_outages_end", "pipeline", "report", "end_micro_batch"),
        {"comment": "Outages that the stream found in archive rows, noted with the micro-batch, and what was told"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order in which they were found")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    report: Mapped[str] = mapped_column(comment="Title of the report")
    key: Mapped[str] = mapped_column(comment="JSON object of the report's key columns")
    micro_batch: Mapped[int] = mapped_column(comment="The micro-batch that found it down")
    topic: Mapped[str] = mapped_column(comment="Topic of the first row that is down")
    topic_id: Mapped[str] = mapped_column(comment="Kafka's id of that topic")
    topic_partition: Mapped[int] = mapped_column(comment="Number of its topic partition")
    record_offset: Mapped[int] = mapped_column(comment="Offset of its record")
    element: Mapped[int] = mapped_column(comment="Its position inside the message")
    began_at: Mapped[datetime] = mapped_column(comment="Timestamp of its record")
    row: Mapped[dict[str, Any]] = mapped_column(comment="Its columns, as the report names them")
    told_at: Mapped[datetime | None] = mapped_column(comment="When the operators were told of it")
    end_micro_batch: Mapped[int | None] = mapped_column(comment="The micro-batch that found it up again")
    end_topic: Mapped[str | None] = mapped_column(comment="Topic of the row that is up again; null: none came yet")
    end_topic_id: Mapped[str | None] = mapped_column(comment="Kafka's id of that topic")
    end_partition: Mapped[int | None] = mapped_column(comment="Number of its topic partition")
    end_offset: Mapped[int | None] = mapped_column(comment="Offset of its record")
    end_element: Mapped[int | None] = mapped_column(comment="Its position inside the message")
    ended_at: Mapped[datetime | None] = mapped_column(comment="Timestamp of its record")
    end_row: Mapped[dict[str, Any] | None] = mapped_column(
        JSONB(none_as_null=True), comment="Its columns, as the report names them"
    )
    end_told_at: Mapped[datetime | None] = mapped_column(comment="When the operators were told that it is over")


class Replay(Base):
    """A quarantined record that a replay delivered."""

    __tablename__ = "replays"
    __table_args__ = {"comment": "Quarantined records that decoded later, each delivered once and for ever"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    topic: Mapped[str] = mapped_column(primary_key=True, comment="Name of the topic")
    topic_id: Mapped[str] = mapped_column(primary_key=True, comment="Kafka's topic id when the record was landed")
    topic_partition: Mapped[int] = mapped_column(primary_key=True, comment="Number of the topic partition")
    record_offset: Mapped[int] = mapped_column(primary_key=True, comment="The record's offset")
    fate: Mapped[str] = mapped_column(comment="archived, or empty: valid, with nothing to archive")
    replayed_at: Mapped[datetime] = _now("When it was replayed")
    replayed_by: Mapped[str] = mapped_column(comment="user@host that replayed it")
    decoder_version: Mapped[str] = mapped_column(comment="Version of the decoding code that it passed")
    micro_batch_id: Mapped[int] = mapped_column(
        ForeignKey("micro_batches.id"), index=True, comment="The batch of query `replay` that holds its rows"
    )
    interval_id: Mapped[int | None] = mapped_column(
        ForeignKey("intervals.id", ondelete="SET NULL"),
        index=True,
        comment="The interval that delivers its rows; null until the next one is pinned",
    )


class QuarantineNote(Base):
    """What was decided or found about a quarantined record, one row each time."""

    __tablename__ = "quarantine_notes"
    __table_args__ = (
        Index("ix_quarantine_notes_record", "pipeline", "topic", "topic_partition", "record_offset"),
        {"comment": "Quarantined records: discarded by whom and why, and what a replay found; only ever added to"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order in which they were noted")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    topic: Mapped[str] = mapped_column(comment="Name of the topic")
    topic_id: Mapped[str] = mapped_column(comment="Kafka's topic id when the record was landed")
    topic_partition: Mapped[int] = mapped_column(comment="Number of the topic partition")
    record_offset: Mapped[int] = mapped_column(comment="The record's offset")
    kind: Mapped[str] = mapped_column(comment="discarded, or failed: a replay found it still bad")
    noted_at: Mapped[datetime] = _now("When it was noted")
    noted_by: Mapped[str] = mapped_column(comment="user@host that discarded or replayed it")
    reason: Mapped[str] = mapped_column(comment="Why it was discarded, or the reason code that the replay found")
    detail: Mapped[str] = mapped_column(default="", comment="What the replay found in detail")
    decoder_version: Mapped[str] = mapped_column(default="", comment="Version of the decoding code of the replay")


class QuarantineCount(Base):
    """How many records came into quarantine in an hour."""

    __tablename__ = "quarantine_counts"
    __table_args__ = {"comment": "Records that came into quarantine, by the hour of their commit and by reason"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    hour: Mapped[datetime] = mapped_column(primary_key=True, comment="Start of the hour of the commit")
    reason: Mapped[str] = mapped_column(primary_key=True, comment="Reason code")
    records: Mapped[int] = mapped_column(comment="How many records")
    last_batch: Mapped[int] = mapped_column(comment="The last micro-batch that brought one of them")


class QuarantineTotal(Base):
    """How many records ever came into quarantine."""

    __tablename__ = "quarantine_totals"
    __table_args__ = {
        "comment": "Records that ever came into quarantine, the sums of `quarantine_counts`; kept by a trigger"
    }

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    reason: Mapped[str] = mapped_column(primary_key=True, comment="Reason code")
    records: Mapped[int] = mapped_column(comment="How many records")


class DivertedRecord(Base):
    """A record that made its micro-batch throw and was taken out of it."""

    __tablename__ = "diverted_records"
    __table_args__ = {"comment": "Records that make decoding throw: quarantined undecoded, and never decoded again"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    topic: Mapped[str] = mapped_column(primary_key=True, comment="Name of the topic")
    topic_id: Mapped[str] = mapped_column(primary_key=True, comment="Kafka's topic id when the record was landed")
    topic_partition: Mapped[int] = mapped_column(primary_key=True, comment="Number of the topic partition")
    record_offset: Mapped[int] = mapped_column(primary_key=True, comment="The record's offset")
    reason: Mapped[str] = mapped_column(comment="What it made the decoder throw")
    micro_batch_id: Mapped[int] = mapped_column(
        ForeignKey("micro_batches.id", ondelete="CASCADE"), index=True, comment="The micro-batch that diverted it"
    )


class BatchFailure(Base):
    """A way in which a micro-batch failed to be written, and how often."""

    __tablename__ = "batch_failures"
    __table_args__ = {"comment": "Failed writes of micro-batches; after identical ones a record is searched"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    query_id: Mapped[str] = mapped_column(primary_key=True, comment="Spark's id of the query")
    batch_id: Mapped[int] = mapped_column(primary_key=True, comment="Spark's batch number within the query")
    error_hash: Mapped[str] = mapped_column(primary_key=True, comment="Hash of the error without its numbers")
    query: Mapped[str] = mapped_column(comment="`archive`")
    error: Mapped[str] = mapped_column(comment="The error's root cause, one line")
    failures: Mapped[int] = mapped_column(comment="How often the micro-batch failed so")
    first_at: Mapped[datetime] = _now("When it first failed so")
    last_at: Mapped[datetime] = _now("When it last failed so")


class Generation(Base):
    """A generation of a pipeline's stream: checkpoints and speed views that belong together."""

    __tablename__ = "generations"
    __table_args__ = {"comment": "Generations of a pipeline's stream; the highest number is the current one"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    number: Mapped[int] = mapped_column(primary_key=True, comment="0 at the first start, then one more each time")
    started_at: Mapped[datetime] = _now("When it was opened")
    started_by: Mapped[str] = mapped_column(comment="user@host that opened it")
    reason: Mapped[str] = mapped_column(comment="Why it was opened")
    fingerprints: Mapped[dict[str, Any]] = mapped_column(
        comment="By query: the facts that its checkpoint depends on, as of its first start"
    )
    positions: Mapped[dict[str, Any]] = mapped_column(
        comment="By query: topic, topic partition and offset where it began in this generation"
    )
    topics: Mapped[dict[str, Any]] = mapped_column(
        server_default=text("'{}'"), comment="By speed view: Kafka's id of the compacted topic that it writes"
    )
    event_time: Mapped[str | None] = mapped_column(
        comment="Column, or field of one, that was the archive's event time at the last start"
    )


class Loss(Base):
    """Offsets that were removed from Kafka before they were archived."""

    __tablename__ = "losses"
    __table_args__ = (
        UniqueConstraint("pipeline", "topic_id", "topic_partition", "from_offset"),
        {"comment": "Offsets removed from Kafka before they were archived, and who accepted that; kept for ever"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Surrogate key")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    topic: Mapped[str] = mapped_column(comment="Name of the topic")
    topic_id: Mapped[str] = mapped_column(comment="Kafka's topic id")
    topic_partition: Mapped[int] = mapped_column(comment="Number of the topic partition")
    from_offset: Mapped[int] = mapped_column(comment="First lost offset, included")
    until_offset: Mapped[int] = mapped_column(comment="Last lost offset, excluded")
    found_at: Mapped[datetime] = _now("When it was found first")
    accepted_at: Mapped[datetime | None] = mapped_column(comment="When it was accepted")
    accepted_by: Mapped[str | None] = mapped_column(comment="user@host that accepted it")
    reason: Mapped[str | None] = mapped_column(comment="Why it was accepted")


class EventGapRow(Base):
    """Time of a followed event stream whose events the service no longer had."""

    __tablename__ = "event_gaps"
    __table_args__ = (
        UniqueConstraint("pipeline", "position"),
        {"comment": "Positions that a followed event stream refused as too old, and what is missing; kept for ever"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Surrogate key")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    stream: Mapped[str] = mapped_column(comment="URL of the stream, without secrets and query")
    position: Mapped[str] = mapped_column(comment="SHA-256 of the stream and the refused position")
    answer: Mapped[str] = mapped_column(comment="What the service answered")
    from_at: Mapped[datetime] = mapped_column(comment="Time of the last event before the gap")
    until_at: Mapped[datetime | None] = mapped_column(comment="Time of the first event after it; null: none came yet")
    found_at: Mapped[datetime] = _now("When the position was refused first")
    accepted_at: Mapped[datetime | None] = mapped_column(comment="When the follower went on after it")
    accepted_by: Mapped[str | None] = mapped_column(comment="user@host that told it to")


class TopicIncarnation(Base):
    """A closed incarnation of a topic: it was deleted, and the pipeline adopted its successor."""

    __tablename__ = "topic_incarnations"
    __table_args__ = (
        UniqueConstraint("pipeline", "topic_id"),
        {"comment": "Topics that were deleted and created again: the incarnations before the current one"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Surrogate key")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    topic: Mapped[str] = mapped_column(comment="Name of the topic")
    topic_id: Mapped[str] = mapped_column(comment="Kafka's topic id of the closed incarnation")
    topic_partitions: Mapped[int] = mapped_column(comment="Number of its topic partitions when last seen")
    successor_id: Mapped[str] = mapped_column(comment="Topic id of the incarnation that was adopted instead")
    closed_at: Mapped[datetime] = _now("When its successor was adopted")
    closed_by: Mapped[str] = mapped_column(comment="user@host that adopted the successor")
    reason: Mapped[str] = mapped_column(comment="Why")


class Repin(Base):
    """An interval whose ranges were resolved again."""

    __tablename__ = "repins"
    __table_args__ = {"comment": "Intervals that were pinned again on request, with the ranges before and after"}

    id: Mapped[int] = mapped_column(primary_key=True, comment="Surrogate key")
    interval_id: Mapped[int] = mapped_column(
        ForeignKey("intervals.id", ondelete="CASCADE"), index=True, comment="The interval"
    )
    repinned_at: Mapped[datetime] = _now("When")
    repinned_by: Mapped[str] = mapped_column(comment="user@host, or Airflow's run id")
    last_build: Mapped[int] = mapped_column(
        comment="Builds of the interval up to this one had other ranges; 0: there was none"
    )
    old_ranges: Mapped[list[Any]] = mapped_column(JSONB, comment="topic, topic_id, partition and offsets before")
    new_ranges: Mapped[list[Any]] = mapped_column(JSONB, comment="topic, topic_id, partition and offsets after")


class LimitsVersion(Base):
    """Limits that flags are raised by."""

    __tablename__ = "limits_versions"
    __table_args__ = (
        Index("ix_limits_versions_pipeline", "pipeline", "id"),
        {"comment": "Limits that flags are raised by, as the batch layer learned them; only an erasure changes them"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="The version that a flag names")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    learned_at: Mapped[datetime] = _now("When they were learned")
    learned_from: Mapped[list[Any]] = mapped_column(JSONB, comment="table, partition and revision that they come from")
    limits: Mapped[list[Any]] = mapped_column(JSONB, comment="rule, subject and number of each")
    erased_rules: Mapped[list[str]] = mapped_column(
        JSONB,
        default=list,
        server_default="[]",
        comment="Rules that erasures took limits of: flags were raised by these before",
    )


class FlagRun(Base):
    """A start of the query that raises flags."""

    __tablename__ = "flag_runs"
    __table_args__ = {"comment": "Starts of the queries that raise flags: by which limits and code, from where on"}

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order of the starts")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    limits_version: Mapped[int | None] = mapped_column(
        ForeignKey("limits_versions.id"), comment="The limits that it uses; null: from here on nothing could be flagged"
    )
    token: Mapped[int] = mapped_column(comment="Fencing token of the driver")
    rules_version: Mapped[str] = mapped_column(comment="Version of the decoding code and the rules")
    flags_topic_id: Mapped[str | None] = mapped_column(
        comment="Kafka's id of the topic that it writes flags to; null: not noted then"
    )
    started_at: Mapped[datetime] = _now("When it was started")


class FlagRunStart(Base):
    """Where a run of the flags' query begins in one topic partition."""

    __tablename__ = "flag_run_starts"
    __table_args__ = (
        Index("ix_flag_run_starts_offsets", "topic_id", "topic_partition", "from_offset"),
        {"comment": "From these offsets on a run's limits are in force, until a later run begins"},
    )

    flag_run_id: Mapped[int] = mapped_column(
        ForeignKey("flag_runs.id", ondelete="CASCADE"), primary_key=True, comment="The run"
    )
    topic_id: Mapped[str] = mapped_column(primary_key=True, comment="Kafka's topic id")
    topic_partition: Mapped[int] = mapped_column(primary_key=True, comment="Number of the topic partition")
    from_offset: Mapped[int] = mapped_column(comment="First offset, included")


class LineSourceRow(Base):
    """A pipeline that was read from lines instead of Kafka."""

    __tablename__ = "line_sources"
    __table_args__ = {"comment": "Pipelines run over lines of files or a socket: nothing of them has Kafka offsets"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name that the run goes under")
    declared_as: Mapped[str] = mapped_column(index=True, comment="Name of the declared pipeline")
    kind: Mapped[str] = mapped_column(comment="files or socket")
    guarantee: Mapped[str] = mapped_column(comment="What holds for its records, in words")
    first_started_at: Mapped[datetime] = _now("When it was first started")


class LineConnection(Base):
    """A connection to a socket."""

    __tablename__ = "line_connections"
    __table_args__ = {"comment": "Connections over which lines were received, and how each ended"}

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order in which they were opened")
    pipeline: Mapped[str] = mapped_column(index=True, comment="Name that the run goes under")
    address: Mapped[str] = mapped_column(comment="socket://host:port")
    opened_at: Mapped[datetime] = _now("When it was opened")
    closed_at: Mapped[datetime | None] = mapped_column(comment="When its end was noted")
    lines: Mapped[int] = mapped_column(default=0, comment="Lines received and written to files of the lake")
    cut_bytes: Mapped[int] = mapped_column(default=0, comment="Bytes behind the last whole line when it ended; dropped")
    ended: Mapped[str | None] = mapped_column(comment="How it ended, and whether something may be lost")


class LineFile(Base):
    """A file of lines."""

    __tablename__ = "line_files"
    __table_args__ = (
        UniqueConstraint("pipeline", "location"),
        Index("ix_line_files_order", "pipeline", "id"),
        {"comment": "Files of lines in the order in which they are read, noted before anything reads them"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order of reading; grows under the pipeline's lease")
    pipeline: Mapped[str] = mapped_column(comment="Name that the run goes under")
    location: Mapped[str] = mapped_column(comment="URI of the file")
    bytes: Mapped[int] = mapped_column(comment="Its size when it was noted, bytes; it must not change")
    modified_at: Mapped[datetime] = mapped_column(comment="Its modification time then: the arrival of its lines")
    noted_at: Mapped[datetime] = _now("When it was noted")
    source_name: Mapped[str] = mapped_column(comment="What its lines are counted in: the file, or the connection")
    first_line: Mapped[int] = mapped_column(comment="Number of its first line there; lines are counted from 1")


class LineSpan(Base):
    """The files that a micro-batch read."""

    __tablename__ = "line_spans"
    __table_args__ = {"comment": "Which files of lines each micro-batch read; a query's spans follow each other"}

    micro_batch_id: Mapped[int] = mapped_column(
        ForeignKey("micro_batches.id", ondelete="CASCADE"), primary_key=True, comment="The micro-batch"
    )
    after_file: Mapped[int] = mapped_column(comment="Files of the pipeline behind this one were read ...")
    until_file: Mapped[int] = mapped_column(comment="... up to this one, included")


class LineCount(Base):
    """The lines of one source in a micro-batch of the archive query."""

    __tablename__ = "line_counts"
    __table_args__ = {"comment": "Lines of committed micro-batches with the fate of each; these are no Kafka offsets"}

    micro_batch_id: Mapped[int] = mapped_column(
        ForeignKey("micro_batches.id", ondelete="CASCADE"), primary_key=True, comment="The micro-batch"
    )
    source_name: Mapped[str] = mapped_column(primary_key=True, comment="URI of the file, or the connection")
    from_line: Mapped[int] = mapped_column(comment="First line, included; counted from 1")
    until_line: Mapped[int] = mapped_column(comment="Last line, excluded")
    archived: Mapped[int] = mapped_column(comment="Lines with at least one archive row")
    empty: Mapped[int] = mapped_column(comment="Valid lines with nothing to archive")
    quarantined: Mapped[int] = mapped_column(comment="Lines in quarantine")


class Approval(Base):
    """A question to a person: whether a build that failed only by warnings is registered."""

    __tablename__ = "approvals"
    __table_args__ = {"comment": "Builds that failed only by warnings: what was asked, who decided what, and why"}

    id: Mapped[int] = mapped_column(primary_key=True, comment="Grows; of a build, the last one counts")
    build_id: Mapped[int] = mapped_column(ForeignKey("builds.id", ondelete="CASCADE"), index=True, comment="The build")
    interval_id: Mapped[int] = mapped_column(
        ForeignKey("intervals.id", ondelete="CASCADE"), index=True, comment="The interval"
    )
    suite: Mapped[str] = mapped_column(comment="Version of what was expected; a decision is about no other")
    asked_at: Mapped[datetime] = _now("When it was asked")
    warnings: Mapped[list[Any]] = mapped_column(JSONB, comment="Expectations of severity warn that were not met")
    approved: Mapped[bool | None] = mapped_column(comment="Whether it is registered; null: nobody has decided")
    decided_at: Mapped[datetime | None] = mapped_column(comment="When it was decided")
    decided_by: Mapped[str | None] = mapped_column(comment="user@host, or the user of Airflow")
    reason: Mapped[str | None] = mapped_column(comment="Why")


class AlertRow(Base):
    """Something that the operators were notified of."""

    __tablename__ = "alerts"
    __table_args__ = (
        Index("ix_alerts_open", "key", unique=True, postgresql_where=text("closed_at IS NULL")),
        {"comment": "What operators are told of: once when it begins, once when it is over"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order in which they were raised")
    key: Mapped[str] = mapped_column(comment="What it is about; of one key, one alert is open at a time")
    pipeline: Mapped[str] = mapped_column(index=True, comment="Name of the pipeline")
    alert: Mapped[dict[str, Any]] = mapped_column(comment="what, place, todo and further facts, as they were told")
    since: Mapped[datetime] = mapped_column(comment="Since when it is so")
    raised_at: Mapped[datetime] = _now("When it was noticed")
    closed_at: Mapped[datetime | None] = mapped_column(comment="When it was found to be over")
    told: Mapped[dict[str, Any]] = mapped_column(comment="By channel: when its beginning was told there")
    told_closed: Mapped[dict[str, Any]] = mapped_column(comment="By channel: when its end was told there")
    failed: Mapped[dict[str, Any]] = mapped_column(
        server_default=text("'{}'"), comment="By channel: when it was last tried there in vain, by the ledger's clock"
    )


class ProofRow(Base):
    """A proof that was written."""

    __tablename__ = "proofs"
    __table_args__ = (
        Index("ix_proofs_pipeline", "pipeline", "id"),
        {"comment": "Proofs of registered intervals in the order of their chain; only ever added to"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order of the chain")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    build_id: Mapped[int] = mapped_column(
        ForeignKey("builds.id", ondelete="CASCADE"), unique=True, comment="The build that was registered"
    )
    tables: Mapped[list[Any]] = mapped_column(JSONB, comment="Tables whose chains it continues")
    path: Mapped[str] = mapped_column(comment="Path of its file below the lake")
    sha256: Mapped[str] = mapped_column(comment="SHA-256 of the file")
    signed_by: Mapped[str | None] = mapped_column(comment="Public key, in hexadecimal; null: unsigned")
    written_at: Mapped[datetime] = _now("When it was written")


class ReferenceVersion(Base):
    """A content of a reference that was read from its source."""

    __tablename__ = "reference_versions"
    __table_args__ = (
        Index("ix_reference_versions", "pipeline", "name", "id"),
        {"comment": "Contents of references in the order in which their sources were found to hold them"},
    )

    id: Mapped[int] = mapped_column(
        primary_key=True, comment="Order of reading; of a reference, the last one is newest"
    )
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    name: Mapped[str] = mapped_column(comment="Name of the reference")
    sha256: Mapped[str] = mapped_column(comment="SHA-256 of its content, which names the kept file")
    rows: Mapped[int] = mapped_column(comment="Number of its rows")
    source: Mapped[str] = mapped_column(comment="Where it was read, without addresses and secrets")
    taken_at: Mapped[datetime] = _now("When this content was first read, after another one or none")


class Erasure(Base):
    """An erasure of what is kept about persons or things."""

    __tablename__ = "erasures"
    __table_args__ = (
        Index("ix_erasures_unfinished", "pipeline", unique=True, postgresql_where=text("ended_at IS NULL")),
        {"comment": "Erasures: who erased how much and why, never what; one at a time is under way in a pipeline"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order in which they were begun")
    pipeline: Mapped[str] = mapped_column(index=True, comment="Name of the pipeline")
    columns: Mapped[list[Any]] = mapped_column(
        JSONB, comment="Paths inside archive rows that the keys were looked for in"
    )
    reason: Mapped[str] = mapped_column(comment="Why")
    begun_by: Mapped[str] = mapped_column(comment="user@host that asked for it")
    begun_at: Mapped[datetime] = _now("When its records were noted: from then on nobody reads them any more")
    salt: Mapped[str] = mapped_column(comment="Random salt of the hashes, in hexadecimal")
    key_hashes: Mapped[list[Any]] = mapped_column(JSONB, comment="Salted SHA-256 of each key")
    counts: Mapped[dict[str, Any]] = mapped_column(comment="How many records, rows, files and intervals")
    intervals: Mapped[list[Any]] = mapped_column(JSONB, comment="Intervals whose tables are built anew without them")
    outages: Mapped[list[Any]] = mapped_column(
        JSONB,
        default=list,
        server_default="[]",
        comment="Of each outage that it deleted: report, salted SHA-256 of the thing, first and last micro-batch",
    )
    last_build: Mapped[int] = mapped_column(comment="Builds up to this one may hold erased rows and are not registered")
    generation: Mapped[int | None] = mapped_column(comment="The stream's generation that it opened; null: no views")
    ended_at: Mapped[datetime | None] = mapped_column(comment="When nothing of it was left to do; null: unfinished")


class ErasedRecord(Base):
    """A record whose rows or bytes were erased."""

    __tablename__ = "erased_records"
    __table_args__ = (
        Index("ix_erased_records_erasure", "erasure_id"),
        {"comment": "Coordinates of erased records; whatever reads them from Kafka again leaves them out"},
    )

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    topic: Mapped[str] = mapped_column(primary_key=True, comment="Name of the topic")
    topic_partition: Mapped[int] = mapped_column(primary_key=True, comment="Number of the topic partition")
    record_offset: Mapped[int] = mapped_column(primary_key=True, comment="The record's offset")
    topic_id: Mapped[str] = mapped_column(primary_key=True, comment="Kafka's topic id")
    fate: Mapped[str] = mapped_column(comment="The fate that it had before")
    erasure_id: Mapped[int] = mapped_column(ForeignKey("erasures.id"), comment="The erasure")


class FieldNumber(Base):
    """The number by which files and the Iceberg table know a field of a table."""

    __tablename__ = "field_numbers"
    __table_args__ = (
        UniqueConstraint("table_name", "number"),
        {"comment": "Numbers of the fields of Iceberg tables, each given once and never again"},
    )

    table_name: Mapped[str] = mapped_column(primary_key=True, comment="Table in the catalog database lake")
    path: Mapped[str] = mapped_column(primary_key=True, comment="The column, or the path of a field inside of one")
    number: Mapped[int] = mapped_column(comment="By which files and the Iceberg table know it")
    given_at: Mapped[datetime] = _now("When it got its number")


class RowOutput(Base):
    """How far an output has sent the archive's rows."""

    __tablename__ = "row_outputs"
    __table_args__ = {"comment": "How far each output has sent the archive's rows, and what it waits for"}

    pipeline: Mapped[str] = mapped_column(primary_key=True, comment="Name of the pipeline")
    output: Mapped[str] = mapped_column(primary_key=True, comment="Name of the output")
    micro_batch_id: Mapped[int] = mapped_column(default=0, comment="The archive's last micro-batch that was sent")
    replay: Mapped[int] = mapped_column(default=-1, comment="Number of the last quarantine replay that was sent")
    rows: Mapped[int] = mapped_column(default=0, comment="Rows sent in all, repeated ones counted once")
    refused: Mapped[int] = mapped_column(default=0, comment="Rows that could not be sent")
    sent_at: Mapped[datetime | None] = mapped_column(comment="When something was sent last")
    waits_for: Mapped[str] = mapped_column(default="", comment="Why nothing can be sent now; empty while it can")
    waits_since: Mapped[datetime | None] = mapped_column(comment="Since when; null while something can be sent")
    target: Mapped[str] = mapped_column(
        default="", server_default="", comment="Where its rows go; empty: not noted then"
    )


class RefusedRow(Base):
    """A row that an output could not send."""

    __tablename__ = "refused_rows"
    __table_args__ = (
        UniqueConstraint("pipeline", "output", "topic_id", "topic_partition", "record_offset", "element"),
        {"comment": "Archived rows that an output could not send, and why"},
    )

    id: Mapped[int] = mapped_column(primary_key=True, comment="Order in which they were noted")
    pipeline: Mapped[str] = mapped_column(comment="Name of the pipeline")
    output: Mapped[str] = mapped_column(comment="Name of the output")
    topic: Mapped[str] = mapped_column(comment="Name of the topic")
    topic_id: Mapped[str] = mapped_column(comment="Kafka's topic id when the record was read")
    topic_partition: Mapped[int] = mapped_column(comment="Number of the topic partition")
    record_offset: Mapped[int] = mapped_column(comment="The record's offset")
    element: Mapped[int] = mapped_column(comment="The row's position in the message; -1: all rows of the record")
    reason: Mapped[str] = mapped_column(comment="Reason code")
    detail: Mapped[str] = mapped_column(comment="What was wrong")
    refused_at: Mapped[datetime] = _now("When it was noted")
