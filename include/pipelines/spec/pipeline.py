"""A pipeline: everything declared for one source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from include.errors import UsageError
from include.pipelines.spec.archive import Archive, Retention
from include.pipelines.spec.ddl import fields_of
from include.pipelines.spec.decoders import UNKNOWN_FIELDS, Decoder, Json, check_decoder
from include.pipelines.spec.file_formats import FileFormat
from include.pipelines.spec.names import (
    OWN_QUERIES,
    check_count,
    check_identifier,
    check_kind,
    check_pipeline_name,
    check_served_columns,
    check_tuple,
)
from include.pipelines.spec.outputs import Flags, KafkaTopic, Rows, check_flags, check_output, check_tables
from include.pipelines.spec.references import CatalogTable, Reference
from include.pipelines.spec.reports import Listing, Report, Top, check_report
from include.pipelines.spec.sources import KafkaTopics
from include.pipelines.spec.views import AdditiveView, JdbcTable, KafkaMessages, check_event_time
from include.times import Schedule, hourly


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
    reports: tuple[Report, ...] = ()
    outputs: tuple[Rows, ...] = field(default=(), kw_only=True)
    """Where else the stream sends each committed row."""
    schedule: Schedule = field(default_factory=hourly)
    retention: Retention = field(default_factory=Retention)
    spark_slots: int = field(default=1, kw_only=True)
    """Slots that a Spark driver of its intervals takes in Airflow's pool, which has one per core, or as many as the
    largest driver takes."""
    restarts_on_new_code: bool = field(default=False, kw_only=True)
    """Whether Airflow replaces the stream's driver when deployed code can continue from the driver's checkpoints."""
    declared_as: str = ""
    """Name of the declaration, when the pipeline runs under another name (`include/pipelines/spec/lines.py`)."""

    def __post_init__(self) -> None:
        # The name of a run over lines is no module's.
        (check_identifier if self.declared_as else check_pipeline_name)(self.name, "pipeline")
        _check_kinds(self)
        check_decoder(self.decoder)
        for view in self.views:
            _check_view_name(view.name, self.name)
            check_event_time(view, self.archive)
        for view in self._with_tables:
            check_served_columns(view.key, view.measures, view.columns, view.name, self.name)
        for output in self.outputs:
            others = [each.name for each in self.outputs if each is not output]
            check_output(output, [view.name for view in self.views] + others, self.archive_columns, self.name)
        check_tables(self.name, self.outputs, self.live_tables)
        _check_written_topics(self)
        _check_names(self)
        if self.archive.delta and self.delta_view in self.tables:
            raise UsageError("'delta' is the name of the Delta archive's view", remedy="rename the view of that name")
        if self.keeps_unknown_fields:
            _check_kept(self.archive)
        if self.flags:
            check_flags(self.flags, [view.name for view in self.views], self.archive_columns, self.name)
        for report in self.reports:
            check_report(report, self.views, self.archive, self.name)

    @property
    def code(self) -> str:
        """Name of its declaration and of the modules with its functions."""
        return self.declared_as or self.name

    @property
    def transforms(self) -> tuple[str, ...]:
        """Names of all functions that it takes from the module of its transforms."""
        views, flags = self.views, self.flags
        sinks = (sink for view in views for sink in view.sinks if isinstance(sink, KafkaMessages))
        named = (
            self.archive.rows,
            *(name for view in views for name in (view.rows, view.aggregate)),
            *(sink.messages for sink in sinks),
            *((flags.rules, flags.limits) if flags else ()),
            *(output.rows for output in self.outputs),
            *(report.rows for report in self.reports if isinstance(report, Listing)),
        )
        return tuple(name for name in named if name)

    @property
    def keeps_unknown_fields(self) -> bool:
        """Whether the archive has a column for fields that are not in the messages' schema."""
        return isinstance(self.decoder, Json) and self.decoder.unknown == "keep"

    @property
    def joins_catalog(self) -> bool:
        """Whether a reference is a table of the catalog, so that the sessions that join it need the catalog."""
        return any(isinstance(each.source, CatalogTable) for each in self.references.values())

    @property
    def archive_columns(self) -> str:
        """DDL of the archive table's own columns: those declared, and `unknown_fields` where it is kept."""
        return f"{self.archive.columns}, {UNKNOWN_FIELDS} STRING" if self.keeps_unknown_fields else self.archive.columns

    @property
    def table(self) -> str:
        """Name of the archive table in the catalog database `lake`."""
        return self.name

    @property
    def top_report(self) -> Top:
        """The first `Top` report; without one, the keys of the first view with windows by its first measure.

        Raises UsageError when no view has windows.
        """
        for report in self.reports:
            if isinstance(report, Top):
                return report
        for view in self.views:
            if not view.is_total and view.plain_key:
                return Top(f"Largest by {view.measures[0]}", view.name, view.measures[0], view.plain_key)
        raise UsageError(
            f"{self.name} has no view with windows", remedy=f"add one, or look at ./tidemark shell {self.name}"
        )

    @property
    def watched_reports(self) -> list[Listing]:
        """The reports whose outages the stream notifies about."""
        return [report for report in self.reports if isinstance(report, Listing) and report.up]

    def file_format(self, table: str) -> FileFormat:
        """Return the format of a table's files."""
        return self.archive.file_format if table == self.table else "parquet"

    def formerly(self, table: str) -> dict[str, tuple[str, ...]]:
        """Return the renamed columns of a table with the names that they had before, newest first.

        Raises UsageError for a table that is not declared.
        """
        if table == self.table:
            return self.archive.formerly
        for view in self.views:
            if self.view_table(view) == table:
                return view.formerly
        raise UsageError(
            f"the table {table!r} is not declared", remedy=f"it has {', '.join(self.tables)}", pipeline=self.name
        )

    def view_table(self, view: AdditiveView) -> str:
        """Return the name of a batch view's table in the catalog database `lake`."""
        return f"{self.name}_{view.name}"

    @property
    def delta_view(self) -> str:
        """Name of the view of the Delta archive's validated rows in the catalog database `lake`."""
        return f"{self.name}_delta"

    @property
    def iceberg_tables(self) -> tuple[str, ...]:
        """The tables that are also Iceberg tables of the same name."""
        views = (self.view_table(view) for view in self.views if view.iceberg)
        return (*((self.table,) if self.archive.iceberg else ()), *views)

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables, archive first."""
        return (self.table, *(self.view_table(view) for view in self.views))

    @property
    def catalog_names(self) -> set[str]:
        """The names in the catalog database `lake` that are the pipeline's: of its tables and of its Delta view."""
        return {*self.tables, *([self.delta_view] if self.archive.delta else [])}

    @property
    def live_tables(self) -> dict[str, str]:
        """The tables of PostgreSQL's database `serving` that the stream keeps for views, each with the view's name."""
        return {self.view_table(view): view.name for view in self._with_tables}

    @property
    def _with_tables(self) -> list[AdditiveView]:
        return [view for view in self.views if any(isinstance(sink, JdbcTable) for sink in view.sinks)]

    @property
    def own_topics(self) -> set[str]:
        """The topics that intervals read again: nobody else may write these."""
        return {*(view.speed.topic for view in self.views), *([self.flags.topic] if self.flags else [])}

    @property
    def written_topics(self) -> dict[str, str]:
        """All topics that streams and intervals may write, each with what writes it."""
        return {topic: writer for writer, topic in _written_topics(self)}


def _check_kinds(pipeline: Pipeline) -> None:
    """Raise UsageError where a part of the pipeline is of another class: Python takes it, and DAGs or drivers fail."""
    check_kind(pipeline.source, "the source", KafkaTopics)
    check_kind(pipeline.decoder, "the decoder", Decoder)
    check_kind(pipeline.archive, "the archive", Archive)
    check_kind(pipeline.flags, "flags", Flags | None)
    check_kind(pipeline.schedule, "the schedule", Schedule, 'every("15m") or hourly()')
    check_kind(pipeline.retention, "retention", Retention, 'Retention(landing="2d", revisions="7d")')
    check_kind(pipeline.references, "references", Mapping, '{"NAME": Reference(…)}')
    for name, reference in pipeline.references.items():
        check_kind(reference, f"the reference {name}", Reference)
    check_count(pipeline.spark_slots, "spark_slots")
    check_kind(pipeline.restarts_on_new_code, "restarts_on_new_code", bool, "True or False")
    check_tuple(pipeline.views, "views", AdditiveView)
    check_tuple(pipeline.reports, "reports", Report)
    check_tuple(pipeline.outputs, "outputs", Rows)


def _check_view_name(name: str, pipeline: str) -> None:
    check_identifier(name, "view")
    if name in OWN_QUERIES:
        raise UsageError(
            f"the view {name!r} has the name of a query of Tidemark's own",
            remedy=f"give it another name, not one of {', '.join(OWN_QUERIES)}",
            pipeline=pipeline,
        )


def _check_written_topics(pipeline: Pipeline) -> None:
    """Raise UsageError for a topic that the pipeline writes and its source reads: it would read its own messages."""
    for writer, topic in _written_topics(pipeline):
        if pipeline.source.reads(topic):
            raise UsageError(
                f"{writer} writes the topic {topic}, which the pipeline reads ({pipeline.source})",
                remedy="write a topic of another name, or declare a source that does not read it",
                pipeline=pipeline.name,
            )


def _check_names(pipeline: Pipeline) -> None:
    """Raise UsageError when two views or reports have one name, or two parts write a topic that must be of one."""
    named = {
        "views": [view.name for view in pipeline.views],
        "reports": [report.title for report in pipeline.reports],
    }
    for kind, names in named.items():
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UsageError(f"two {kind} have the name {twice[0]!r}", remedy="rename one", pipeline=pipeline.name)
    written = [topic for _, topic in _written_topics(pipeline)]
    for topic in sorted(pipeline.own_topics):
        if written.count(topic) > 1:
            writers = " and ".join(writer for writer, each in _written_topics(pipeline) if each == topic)
            raise UsageError(
                f"{writers} write the topic {topic}, whose messages would be taken for those of one",
                remedy="give each a topic of its own",
                pipeline=pipeline.name,
            )


def _written_topics(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield each topic that streams and intervals of the pipeline may write, after what writes it."""
    for view in pipeline.views:
        yield f"the view {view.name}", view.speed.topic
        sinks = [sink for sink in view.sinks if isinstance(sink, KafkaMessages)]
        yield from ((f"a sink of the view {view.name}", topic) for sink in sinks for topic in sink.topics)
    if pipeline.flags:
        yield "flags", pipeline.flags.topic
    for report in pipeline.reports:
        if isinstance(report, Listing) and report.notify:
            yield f"the report {report.title!r}", report.notify
    for output in pipeline.outputs:
        if isinstance(output.to, KafkaTopic):
            yield from ((f"the output {output.name!r}", topic) for topic in output.to.topics)


def _check_kept(archive: Archive) -> None:
    """Raise UsageError when the archive already declares the column for unknown fields."""
    taken = {each.name.lower() for each in fields_of(archive.columns)} | {name.lower() for name in archive.partition_by}
    if UNKNOWN_FIELDS in taken:
        raise UsageError(
            f'unknown="keep" makes a column {UNKNOWN_FIELDS!r}, and the archive declares one of that name',
            remedy="give the declared one another name",
        )
