"""Parts of a total that are damaged, without a row or of other code, on a real ledger."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from include import lake
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.evidence import SpeedPosition
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts, Validation
from include.ledger.lineage import BuiltRevision
from include.offsets import TopicPartition
from include.pipelines import load_pipeline
from include.reconciliation import ReconciliationCounts
from include.versions import view_version
from spark_jobs.reconciliation import totals
from spark_jobs.reconciliation.interval_run import IntervalRun
from spark_jobs.reconciliation.totals import _Meeting
from tests.conftest import Home
from tests.support.attempts import TOPIC, begin_attempt, hour

pytestmark = pytest.mark.services

PIPELINE = load_pipeline("isp_hits")
VIEW = next(view for view in PIPELINE.views if view.is_total)
WITHIN = TopicPartition(TOPIC, 0)


def register_part(number: int, *, rows: int = 1, version: str = "") -> Path:
    """Register an hour with its part of the total, and return the part's file; without a row there is none.

    `version` is the noted version of the view.
    """
    attempt = begin_attempt(PIPELINE.name, hour(number), topic_partitions=1)
    spec = attempts.load_attempt(attempt)
    partition = f"interval={spec.pinned.interval.label}"
    location = lake.uri("tables", PIPELINE.view_table(VIEW), partition, f"r-{attempt}")
    file = Path(lake.filesystem(location)[1]) / "part-0.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"rows")
    files: dict[str, Any] = {file.name: {"rows": 1, "bytes": 4}}
    built = BuiltRevision(PIPELINE.view_table(VIEW), partition, f"r-{attempt}", location, rows, "v2:0123", files)
    findings = BuildFindings(
        spec.pinned.ranges,
        {WITHIN: FateCounts(95, 2, 3, 0)},
        RecordCounts(in_ranges=100, archived=95, empty=2, quarantined=3),
        ReconciliationCounts(matched=1),
        view_versions={PIPELINE.view_table(VIEW): version} if version else {},
    )
    delivered = (built,) if rows else ()
    builds.note_build(spec, delivered, findings, columns={PIPELINE.view_table(VIEW): {}})
    registration = builds.begin_registration(
        attempts.load_attempt(attempt), Validation(True, PIPELINE.name), Changes(points=delivered)
    )
    builds.finish_registration(registration)
    return file


def meeting_of(number: int, read: int = 300) -> _Meeting:
    """What a run of the hour again compares."""
    spec = attempts.load_attempt(begin_attempt(PIPELINE.name, hour(number), topic_partitions=1))
    run = IntervalRun(cast("Any", None), PIPELINE, spec)
    position = SpeedPosition({WITHIN: read}, batch_id=7, query_id="speed")
    return _Meeting(run, VIEW, position, frozenset(), frozenset({spec.pinned.id}))


def held_beside(number: int, read: int = 300) -> list[tuple[int, int]]:
    """The offsets that a run of the hour again takes from other intervals' parts; others are read from the archive."""
    meeting = meeting_of(number, read)
    held = meeting._held
    assert meeting.run.pinned.id not in {each.interval_id for each in held.parts}
    return [(each.from_offset, each.until_offset) for each in held.ranges]


def test_damaged_parts_are_left_to_the_archive_when_any_interval_is_run_again(
    postgres: Home, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, _ = (register_part(number) for number in range(3))
    assert held_beside(0) == [(100, 300)]
    first.unlink()
    second.write_bytes(b"other rows")
    with caplog.at_level(logging.WARNING):
        assert held_beside(0) == [(200, 300)]
        assert held_beside(1) == [(200, 300)]
    told = caplog.text
    assert f"file://{second.parent}: wrong size: part-0.parquet" in told
    assert f"file://{first.parent}: file missing: part-0.parquet" in told
    assert held_beside(2) == []


def test_archive_is_not_read_for_an_interval_when_its_part_of_the_total_is_without_a_row(postgres: Home) -> None:
    for number, rows in ((10, 1), (11, 0), (12, 0), (13, 1)):
        register_part(number, rows=rows)
    assert held_beside(13, read=1400)[-1] == (1000, 1300)
    assert held_beside(11, read=1400)[-2:] == [(1000, 1100), (1200, 1400)]
    assert held_beside(13, read=1299)[-1] == (1000, 1200)


def test_part_is_of_other_code_only_when_the_code_that_counts_the_view_was_another(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code version of them all is another than the current one, as after a change of a suite."""
    for number, version in ((20, view_version(PIPELINE.name, VIEW.name)), (21, "of before"), (22, ""), (23, "")):
        register_part(number, version=version)
    meeting = meeting_of(23, read=2400)
    asked = Mock(side_effect=totals.of_other_code)
    monkeypatch.setattr(totals, "of_other_code", asked)
    (same, *others) = [each.interval_id for each in meeting._held.parts[-3:]]
    assert same not in meeting.older
    assert meeting.older >= set(others)
    assert asked.call_count == 1, "it asks of each registered interval"
