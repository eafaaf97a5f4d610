"""Builds one interval from its pinned ranges: read, compare, aggregate, write revisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.catalog.columns import declared_types
from include.catalog.declared import check_own_tables, check_storage
from include.catalog.renames import shown_names
from include.crash_points import crash_point
from include.erasure.views import check_built
from include.errors import AnotherWriter, TidemarkError
from include.iceberg.field_ids import numbers_of_tables
from include.intervals.references import references_of
from include.ledger.connection import await_ledger
from include.ledger.erasures.coordinates import last_erasure
from include.ledger.intervals import attempts, builds, locks, revisions
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.lineage import BuiltRevision
from include.ledger.listings import ListedReport
from include.offsets import Fate, Fates, TopicPartition
from include.pipelines.spec import Pipeline
from include.pipelines.spec.references import check_references
from include.reconciliation import Reconciliation
from include.streams.event_time import check_event_time
from include.streams.written_topics import check_compacted_topics
from include.times import Stopwatch
from include.versions import code_version, view_version
from spark_jobs.archive.content_hash import HashVersion, common_version
from spark_jobs.archive.files import replaced_file
from spark_jobs.archive.replayed import Replayed, replayed_rows
from spark_jobs.archive.schema import archive_schema, with_partition_columns
from spark_jobs.decoding.records import load_references
from spark_jobs.intervals.drift import drift_section, find_drift
from spark_jobs.intervals.read import Reading, read_interval
from spark_jobs.intervals.report_sections import check_listings, collect_report
from spark_jobs.intervals.revision_comparison import compare_revisions
from spark_jobs.intervals.write import (
    TableLayout,
    archive_layout,
    deleted_on_failure,
    revision_name,
    view_layout,
    write_counted,
    write_revisions,
)
from spark_jobs.reconciliation.counted import CountedRows, count_fates, hashed, left_of
from spark_jobs.reconciliation.flags import reconcile_flags
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.reconciliation.outages import reconcile_outages
from spark_jobs.reconciliation.totals import reconcile_total
from spark_jobs.reconciliation.views import reconcile_view
from spark_jobs.references.take import with_content
from spark_jobs.spark.failures import SPARK_FAILURES
from spark_jobs.views.aggregate import aggregate_view
from spark_jobs.views.measures import declared_measures


def build(run: IntervalRun, *, new_references: bool = False) -> None:
    """Build the attempt's revisions and reconcile; all findings go to the ledger together at the end.

    The ranges are read from Kafka once. The archive table's files are written from the landing files, or from the same
    read where other code landed them, and read back: what they hold is compared with Kafka before anybody may register
    them. The batch views are computed from landing where all are the same, else from Kafka. Rows that replays put into
    the interval are added to both. A registered interval is built with the references' content of its last published
    build, unless `new_references` is set. Raises OffsetsLost when Kafka no longer holds the ranges, TopicRecreated when
    the topic is another, UsageError when the registered files are of another format or pipeline, or archived rows of
    another event time, or a reference file does not begin with its declared columns, or the topic of a speed view is
    gone or another one, ServiceUnreachable
    when an Iceberg table has a new field and its catalog does not answer, AnotherWriter while the interval is pinned
    again, when an erasure of the pipeline began meanwhile, and before an erasure has built the views again.
    """
    check_references(run.pipeline.references, run.pipeline.name)
    # Starting Spark takes as long as restarting PostgreSQL.
    await_ledger()
    check_storage(run.pipeline)
    check_own_tables(run.pipeline)
    check_event_time(run.pipeline)
    erasure = check_built(run.pipeline)
    also_named = {
        table: {before: name for name, before in shown_names(run.pipeline, table).items()}
        for table in run.pipeline.tables
    }
    numbers = numbers_of_tables(run.pipeline)
    earlier = {} if new_references else revisions.references_of_published(run.pinned.id)
    filled = with_content(run.spark, run.pipeline, earlier)
    with (
        locks.attempt_under_way(run.pipeline.name, run.pinned.interval),
        references_of(filled, run.pinned, anew=new_references) as (pipeline, references),
    ):
        check_references(pipeline.references, pipeline.name)
        run = replace(run, pipeline=pipeline, references=references)
        version = code_version(pipeline.name, run.versioned_references)
        source = attempts.readable_source(run.pinned, run.attempt.source)
        attempt = attempts.resume_attempt(run.attempt.id, version, source)
        run = replace(run, attempt=attempt)
        built: list[BuiltRevision] = []
        locations = (each.location for each in built)
        with deleted_on_failure(locations), overtaken_by_erasure(run.pinned, erasure):
            findings, listed = _build(run, built, numbers, also_named)
        named_too = {table: each for table, each in also_named.items() if each}
        # After any other failure the ledger may list them.
        with deleted_on_failure(locations, AnotherWriter):
            builds.note_build(
                attempt,
                built,
                findings,
                known=erasure,
                columns=declared_types(pipeline),
                also_named=named_too,
                partition_by=pipeline.archive.partition_by,
                listed=listed,
            )
        crash_point("revisions_noted")


@contextmanager
def overtaken_by_erasure(pinned: PinnedInterval, known: int) -> Iterator[None]:
    """Raise AnotherWriter instead of what a build fails with because an erasure takes its files away.

    `known` is the last erasure when the build began. An erasure waits for no build: it deletes each landing file that
    it has written anew, and the ledger no longer names it.
    """
    try:
        yield
    except (*SPARK_FAILURES, OSError, TidemarkError) as error:
        pipeline = pinned.pipeline
        if last_erasure(pipeline) > known:
            why = f"an erasure of {pipeline} began while {pinned.interval} was built"
        elif path := replaced_file(pipeline, error):
            why = f"{path} was written anew, as another file, while {pinned.interval} was built"
        else:
            raise
        raise AnotherWriter(
            f"{why}; this build is not used", remedy="run the interval again", pipeline=pipeline
        ) from error


def _build(
    run: IntervalRun,
    built: list[BuiltRevision],
    numbers: Mapping[str, Mapping[str, int]],
    also_named: Mapping[str, Mapping[str, str]],
) -> tuple[BuildFindings, list[ListedReport]]:
    """Write the revisions, add each to `built`, and return the findings and what its listings hold.

    Nothing of these is in the ledger yet. A rebuild is compared with what is registered, not with what the stream made:
    its result is not published.
    """
    spark, pipeline, pinned = run.spark, run.pipeline, run.pinned
    # Their rows are asked for last, after all else was built.
    check_listings(spark, pipeline)
    revision, watch = revision_name(run.attempt.id, datetime.now(UTC)), Stopwatch()
    registered = revisions.registered_of_interval(pinned.id)
    hashed_by = common_version(each.content_hash for each in registered)
    replayed = replayed_rows(spark, pipeline, pinned)
    if meets_stream := not run.attempt.is_rebuild:
        # Before anything is read: of such a topic every key is unexplained, and nothing would say why.
        check_compacted_topics(pipeline)

    def numbered(layout: TableLayout) -> TableLayout:
        return replace(layout, numbers=numbers.get(layout.table, {}), also_named=also_named[layout.table])

    def write(rows: DataFrame) -> CountedRows:
        archive = with_partition_columns(pipeline, replayed.added_to(rows))
        layout = archive_layout(pipeline, hashed_by, records=sum(len(r) for r in pinned.ranges))
        written = write_counted(archive, numbered(layout), pinned.interval, revision)
        built.extend(written.revisions)
        return left_of(written.counted, _counted(pipeline, replayed, hashed_by))

    with watch.part(f"read, write {pipeline.table} and compare"):
        reading = read_interval(run, hashed_by, write)
    rows = replayed.added_to(reading.rows)
    reconciliation = reading.reconciliation
    for view in pipeline.views:
        with watch.part(f"view {view.name}"):
            aggregated = aggregate_view(pipeline, view, rows, load_references(spark, pipeline))
            batch_view = declared_measures(pipeline, view, aggregated).persist()
            if meets_stream:
                reconcile = reconcile_total if view.is_total else reconcile_view
                reconciliation += reconcile(run, view, batch_view, replayed)
            layout = numbered(view_layout(pipeline, view, hashed_by))
            built += write_revisions(batch_view, layout, pinned.interval, revision)
    if pipeline.flags and meets_stream:
        with watch.part("flags"):
            # Without replayed rows: the stream saw those records in quarantine.
            reconciliation += reconcile_flags(run, reading.rows)
    for watched in pipeline.watched_reports if meets_stream else ():
        with watch.part(f"outages of {watched.title}"):
            # Without replayed rows here, too.
            reconciliation += reconcile_outages(run, watched, reading.rows)
    with watch.part("report and comparison"):
        report, listed = collect_report(run, reading.rows, replayed, built)
        findings = _findings(run, reading, reconciliation, replayed.records, report, (registered, built))
        findings = _with_drift(pipeline, rows, findings)
    return replace(findings, seconds=watch.seconds, references=run.references), listed


def _with_drift(pipeline: Pipeline, rows: DataFrame, findings: BuildFindings) -> BuildFindings:
    """Return the findings with the fields that the schema does not name, where these are kept."""
    if not pipeline.keeps_unknown_fields:
        return findings
    drift = find_drift(pipeline, rows, findings.records.archived + findings.records.replayed)
    report = {**findings.report, "sections": [*findings.report["sections"], drift_section(drift)]}
    return replace(findings, unknown_fields=drift, report=report)


def _counted(pipeline: Pipeline, replayed: Replayed, hashed_by: HashVersion) -> CountedRows:
    """Count the rows that replays put into the archive table."""
    if not replayed.records:
        return {}
    rows = replayed.rows.withColumn("fate", F.lit(Fate.ARCHIVED))
    return count_fates(hashed(rows, archive_schema(pipeline), hashed_by))


def _findings(
    run: IntervalRun,
    reading: Reading,
    reconciliation: Reconciliation,
    replayed: int,
    report: dict[str, object],
    revisions: tuple[list[BuiltRevision], list[BuiltRevision]],
) -> BuildFindings:
    ranges = run.pinned.ranges
    fates = {r.topic_partition: _fate_counts(reading, r.topic_partition) for r in ranges}
    return BuildFindings(
        ranges,
        fates,
        RecordCounts(
            in_ranges=sum(len(r) for r in ranges),
            archived=sum(counts.archived for counts in fates.values()),
            empty=sum(counts.empty for counts in fates.values()),
            quarantined=sum(counts.quarantined for counts in fates.values()),
            gaps=sum(counts.gaps for counts in fates.values()),
            erased=sum(counts.erased for counts in fates.values()),
            replayed=replayed,
            lost=reading.lost,
            compacted_since=reading.compacted_since,
        ),
        reconciliation.counts,
        reconciliation.examples(),
        tuple(reading.decoder_versions),
        reading.changed,
        compare_revisions(run, *revisions),
        report,
        view_versions={
            run.pipeline.view_table(view): view_version(run.pipeline.name, view.name, run.versioned_references)
            for view in run.pipeline.views
        },
        explained=reconciliation.explained,
    )


def _fate_counts(reading: Reading, tp: TopicPartition) -> FateCounts:
    fates = reading.fates.get(tp, Fates())
    return FateCounts(fates.archived, fates.empty, fates.quarantined, reading.gaps[tp], fates.erased)
