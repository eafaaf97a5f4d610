"""`report --ranges` from the archive after its landing was removed and other code ran the interval again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from include.ledger.intervals.evidence import Recorded
from include.ledger.intervals.states import Source
from include.offsets import Fates, OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from spark_jobs.intervals import range_report
from spark_jobs.intervals.range_report import report_over

pytestmark = pytest.mark.spark

FIRST, OTHER = TopicPartition("events", 0), TopicPartition("events", 1)
PIPELINE = replace(load_pipeline("nest_cameras"), views=(), reports=())


def records_of(
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    archived: Mapping[TopicPartition, set[int]],
    recorded: list[Recorded],
    *ranges: OffsetRange,
) -> dict[str, int]:
    """Return the records by fate, while the archive has these of the ranges, and one empty record at offset 9."""
    rows = [(tp.topic, tp.partition, offset, 0) for tp, offsets in archived.items() for offset in sorted(offsets)]
    columns = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT"
    frame = spark.createDataFrame(rows, columns)
    empty = spark.createDataFrame([("empty", "events", 0, 9)], f"fate STRING, {columns.rpartition(',')[0]}")
    monkeypatch.setattr(range_report, "read_archived", lambda *_: frame)
    monkeypatch.setattr(range_report, "read_unarchived", lambda *_: empty)
    monkeypatch.setattr(range_report, "load_references", lambda *_: {})
    monkeypatch.setattr(range_report.losses, "accepted_in", lambda *_: [])
    monkeypatch.setattr(range_report, "replaced_by_other_code", lambda *_: [each.range for each in recorded])
    monkeypatch.setattr(range_report.evidence, "recorded_around", lambda *_: recorded)
    found: dict[str, int] = report_over(spark, PIPELINE, ranges, Source.ARCHIVE)["records"]
    return found


def test_record_is_empty_and_no_gap_when_other_code_left_it_out(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One offset of each topic partition never had a record; the archive has no row of three more of the first."""
    archived = {FIRST: set(range(5)), OTHER: set(range(9))}
    recorded = [
        Recorded(OffsetRange(FIRST, 0, 10), Fates(archived=5, empty=4), "a build"),
        Recorded(OffsetRange(OTHER, 0, 10), Fates(archived=9), "a build"),
    ]
    whole = [each.range for each in recorded]
    found = records_of(spark, monkeypatch, archived, recorded, *whole)
    assert found == {"in_ranges": 20, "archived": 14, "empty": 4, "quarantined": 0, "erased": 0, "gaps": 2, "lost": 0}


def test_nothing_is_left_out_when_the_code_that_landed_the_records_built_them(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = records_of(spark, monkeypatch, {FIRST: set(range(5))}, [], OffsetRange(FIRST, 0, 10))
    assert (found["empty"], found["gaps"]) == (1, 4)


def test_nothing_is_known_of_what_was_left_out_when_only_a_part_of_an_interval_is_asked_for(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = [Recorded(OffsetRange(FIRST, 0, 12), Fates(archived=5, empty=6), "a build")]
    found = records_of(spark, monkeypatch, {FIRST: set(range(5))}, recorded, OffsetRange(FIRST, 0, 10))
    assert (found["empty"], found["gaps"]) == (1, 4)
