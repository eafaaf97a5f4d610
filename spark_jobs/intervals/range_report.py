"""A pipeline's reports over any offset ranges: read, decoded and counted like an interval, without writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.ledger.archive.decoders import replaced_by_other_code
from include.ledger.archive.positions import stored_topics
from include.ledger.erasures.coordinates import erased_within
from include.ledger.intervals import evidence
from include.ledger.intervals.evidence import Recorded
from include.ledger.intervals.states import Source
from include.ledger.streams import losses
from include.offsets import ERASED, Fate, OffsetRange, TopicPartition, intersection, merged
from include.pipelines.spec import IDENTITY, Pipeline
from spark_jobs.archive.erased import without_erased
from spark_jobs.archive.reader import read_archived, read_unarchived
from spark_jobs.decoding.records import archive_rows, decode, load_references
from spark_jobs.intervals.pinned_fates import withhold_quarantined
from spark_jobs.intervals.report_sections import section_of
from spark_jobs.reconciliation.code_changes import RECORD, count_left_out, without_doubles
from spark_jobs.spark.kafka_source import read_ranges
from spark_jobs.views.aggregate import aggregate_view

FATES = (Fate.ARCHIVED, Fate.EMPTY, Fate.QUARANTINED, ERASED)


class _Read(NamedTuple):
    rows: DataFrame
    """The archive table's columns, and `event_time`."""
    records: dict[str, int]
    """Number of records by fate; gaps are not among them."""


def report_over(
    spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange], source: Source
) -> dict[str, Any]:
    """Return `{"pipeline", "source", "ranges", "records": {fate: count}, "reports": {title: section}}`.

    A section has `note`, `columns`, `rows` (objects by column) and `truncated`, the number of rows it leaves out; some
    have `keys`, the columns that identify a row.
    """
    read = (_from_kafka if source is Source.KAFKA else _from_archive)(spark, pipeline, ranges)
    references = load_references(spark, pipeline)
    views = {view.name: aggregate_view(pipeline, view, read.rows, references).persist() for view in pipeline.views}
    sections = [section_of(spark, pipeline, report, views, read.rows, "these offsets") for report in pipeline.reports]
    offsets = sum(map(len, ranges))
    lost = sum(len(each.range) for each in losses.accepted_in(pipeline.name, ranges))
    gaps = {"gaps": offsets - sum(read.records.values()), "lost": lost}
    return {
        "pipeline": pipeline.name,
        "source": source.value,
        "ranges": [_as_json(each) for each in ranges],
        "records": {"in_ranges": offsets, **read.records, **gaps},
        "reports": {section.pop("title"): _by_column(section) for section in sections},
    }


def _from_kafka(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> _Read:
    records = reduce(DataFrame.unionByName, [read_ranges(spark, part) for part in _one_each(ranges)])
    records = without_erased(records, pipeline.name, ranges)
    topic_ids = dict.fromkeys([r.topic_partition.topic for r in ranges], "") | stored_topics(pipeline.name)
    known = withhold_quarantined(spark, pipeline, ranges, topic_ids, [], records)
    decoded = decode(pipeline, *known).drop("key", "value", "headers", "date")
    decoded = decoded.persist(StorageLevel.MEMORY_AND_DISK)
    erased = len(erased_within(pipeline.name, ranges))
    return _Read(archive_rows(pipeline, decoded), {**_by_fate(decoded), ERASED: erased})


def _one_each(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """Split the ranges into parts with one range per topic partition: a read of Kafka takes only one each."""
    parts: list[dict[TopicPartition, OffsetRange]] = []
    for each in merged(ranges):
        part = next((part for part in parts if each.topic_partition not in part), None)
        if part is None:
            parts.append(part := {})
        part[each.topic_partition] = each
    return [list(part.values()) for part in parts]


def _from_archive(spark: SparkSession, pipeline: Pipeline, ranges: Sequence[OffsetRange]) -> _Read:
    rows = read_archived(spark, pipeline, ranges).persist(StorageLevel.MEMORY_AND_DISK)
    archived = rows.select(F.lit(Fate.ARCHIVED).alias("fate"), *IDENTITY)
    replaced = replaced_by_other_code(pipeline.name, ranges)
    unarchived = without_doubles(read_unarchived(spark, pipeline, ranges), rows, replaced)
    records = archived.unionByName(unarchived.select("fate", *RECORD, F.lit(0).alias("kafka_element")))
    counts = _by_fate(records)
    counts[Fate.EMPTY] += count_left_out(spark, records, _wholly_inside(pipeline, ranges, replaced))
    return _Read(rows, counts)


def _wholly_inside(
    pipeline: Pipeline, ranges: Sequence[OffsetRange], replaced: Sequence[OffsetRange]
) -> list[Recorded]:
    """Return what the intervals of the replaced offsets recorded, of their ranges that lie wholly inside of these.

    They recorded how many records met which fate, and not which: of a part of their ranges, nothing is known.
    """
    wholes = merged(ranges)
    recorded = evidence.recorded_around(pipeline.name, replaced) if replaced else []
    return [each for each in recorded if any(intersection(each.range, whole) == each.range for whole in wholes)]


def _by_fate(rows: DataFrame) -> dict[str, int]:
    """Count records, each by the first of its rows. `rows` has fate and kafka_element."""
    counts = rows.where("kafka_element = 0").groupBy("fate").agg(F.count("*").alias("records")).collect()
    counted = {row["fate"]: row["records"] for row in counts}
    return {str(fate): counted.get(fate, 0) for fate in FATES}


def _by_column(section: dict[str, Any]) -> dict[str, Any]:
    return {**section, "rows": [dict(zip(section["columns"], row, strict=True)) for row in section["rows"]]}


def _as_json(each: OffsetRange) -> dict[str, Any]:
    return {name: value for name, value in each.as_json().items() if name != "topic_id"}
