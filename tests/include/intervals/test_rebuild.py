"""What a rebuild compares besides hashes and files: real ledger and lake, the build itself is played."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include.intervals import rebuild as rebuilding
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts
from include.ledger.intervals.states import Source
from include.reconciliation import (
    ARCHIVE_AGAINST_KAFKA,
    ARCHIVE_AGAINST_LEDGER,
    Difference,
    DifferenceClass,
    Reconciliation,
    against_archive,
)
from include.spark.submission import SparkSubmission
from tests.conftest import Home
from tests.support.proved import PIPELINE, built_revision, register_hour, rows_of

pytestmark = pytest.mark.services

PARTITION = "date=2026-11-20/interval=2026-11-20T05"
UNEXPLAINED, CODE = DifferenceClass.UNEXPLAINED, DifferenceClass.CODE


@pytest.fixture(autouse=True, scope="module")
def registered(postgres: Home) -> None:
    register_hour(0)


def building(*found: Difference) -> Callable[[SparkSubmission], int]:
    """A job that builds the registered rows again, and finds these differences."""

    def run(job: SparkSubmission) -> int:
        attempt = int(job.arguments[list(job.arguments).index("--attempt") + 1])
        spec = attempts.load_attempt(attempt)
        compared = Reconciliation.of(found)
        findings = BuildFindings(
            spec.pinned.ranges,
            {each.topic_partition: FateCounts(95, 2, 3, 0) for each in spec.pinned.ranges},
            RecordCounts(in_ranges=200, archived=190, empty=4, quarantined=6),
            compared.counts,
            compared.examples(),
        )
        builds.note_build(spec, [built_revision(attempt, rows_of(spec.pinned.ranges))], findings)
        return 0

    return run


@pytest.fixture(autouse=True)
def _pointed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilding, "_pointed_at", lambda revision: revision.location)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (Source.KAFKA, f"{ARCHIVE_AGAINST_KAFKA} (archived)"),
        (Source.KAFKA, against_archive("hourly_counts")),
        (Source.ARCHIVE, ARCHIVE_AGAINST_LEDGER),
    ],
)
def test_rebuild_is_not_equal_when_the_same_rows_are_not_what_the_offsets_hold(source: Source, what: str) -> None:
    wrong = Difference(UNEXPLAINED, what, "nest-logs-0 offset 7 row 0", "in Kafka not once, in the archive once")
    comparison = rebuilding.rebuild(PIPELINE, PARTITION, source, building(wrong))
    assert comparison["rebuilt_hash"] == comparison["registered_hash"]
    assert comparison["differing_files"] == []
    assert not comparison["equal"]
    assert comparison["unexplained"] == [wrong.as_json()]
    [said] = rebuilding.differences(comparison)
    assert said == f"{what}, nest-logs-0 offset 7 row 0: in Kafka not once, in the archive once"


def test_rebuild_is_equal_when_only_what_streams_keep_differs_or_a_difference_is_explained() -> None:
    live = [
        Difference(UNEXPLAINED, "hourly_counts against nest-camera-stats", "94103", "count: speed view 1"),
        Difference(UNEXPLAINED, "outages of Offline cameras", "cam-1", "noted twice"),
        Difference(CODE, "archive row changed by the code", "nest-logs-0 offset 7 row 0", "in all 1 changed"),
    ]
    comparison = rebuilding.rebuild(PIPELINE, PARTITION, Source.KAFKA, building(*live))
    assert comparison["equal"]
    assert (comparison["unexplained"], rebuilding.differences(comparison)) == ([], [])
