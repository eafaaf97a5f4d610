"""What a rebuild compares besides hashes and files: real ledger and lake, the build itself is played."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from include import lake
from include.errors import AnotherWriter, TidemarkError, UsageError
from include.intervals import rebuild as rebuilding
from include.ledger.database import session
from include.ledger.erasures import unfinished
from include.ledger.erasures.coordinates import last_erasure
from include.ledger.intervals import attempts, builds, locks, revisions
from include.ledger.intervals.findings import BuildFindings, FateCounts, RecordCounts
from include.ledger.intervals.revisions import RegisteredRevision
from include.ledger.intervals.states import Source
from include.ledger.models import Erasure
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
from tests.support.attempts import hour
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
        built = built_revision(attempt, rows_of(spec.pinned.ranges))
        builds.note_build(spec, [built], findings, known=last_erasure(PIPELINE))
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


def register_again(*, is_deleted: bool) -> None:
    """Do what another run does, or an erasure, which deletes what was registered before."""
    [former] = revisions.registered(PIPELINE, PARTITION)
    register_hour(0)
    if is_deleted:
        lake.delete(former.location)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_nothing_is_said_of_the_rows_when_the_interval_is_registered_again_meanwhile(is_deleted: bool) -> None:
    def run(job: SparkSubmission) -> int:
        register_again(is_deleted=is_deleted)
        return building()(job)

    with pytest.raises(AnotherWriter, match=r"was registered again, or left the catalog, while it was rebuilt"):
        rebuilding.rebuild(PIPELINE, PARTITION, Source.KAFKA, run)
    assert rebuilding.rebuild(PIPELINE, PARTITION, Source.KAFKA, building())["equal"]


def test_damage_is_not_said_of_a_failed_rebuild_when_the_files_are_no_longer_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pointed_at(revision: RegisteredRevision) -> str:
        register_again(is_deleted=True)
        return revision.location

    [former] = revisions.registered(PIPELINE, PARTITION)
    lake.delete(f"{former.location}/part-0.parquet")
    monkeypatch.setattr(rebuilding, "_pointed_at", pointed_at)
    with pytest.raises(TidemarkError) as raised:
        rebuilding.rebuild(PIPELINE, PARTITION, Source.KAFKA, lambda _: 5)
    assert (raised.value.exit_code, raised.value.is_reported) == (5, True)
    assert "part-0" not in raised.value.message


def test_interval_is_not_pinned_again_when_its_files_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job reads the ranges of then."""

    def pointed_at(revision: RegisteredRevision) -> str:
        with pytest.raises(UsageError, match="an attempt of it is under way"), repinning:
            pass
        return revision.location

    repinning = locks.no_attempt_under_way(PIPELINE, hour(0))
    monkeypatch.setattr(rebuilding, "_pointed_at", pointed_at)
    assert rebuilding.rebuild(PIPELINE, PARTITION, Source.KAFKA, building())["equal"]


def begin_erasure(last_build: int) -> int:
    [revision] = revisions.registered(PIPELINE, PARTITION)
    with session() as ledger:
        row = Erasure(
            pipeline=PIPELINE,
            columns=["device_id"],
            reason="asked",
            begun_by="test",
            salt="00" * 16,
            key_hashes=[],
            counts={},
            intervals=[revision.interval_id],
            last_build=last_build,
        )
        ledger.add(row)
        ledger.flush()
        return row.id


@pytest.mark.parametrize("begins_meanwhile", [False, True])
def test_rebuild_names_the_erasure_when_it_has_still_to_build_the_interval(begins_meanwhile: bool) -> None:
    begun: list[int] = []

    def run(job: SparkSubmission) -> int:
        begun.append(begin_erasure(last_build=10**9))
        return building()(job)

    if not begins_meanwhile:
        begun.append(begin_erasure(last_build=10**9))
    try:
        with pytest.raises(AnotherWriter, match=r"erasure \d+ has still to build") as raised:
            rebuilding.rebuild(PIPELINE, PARTITION, Source.KAFKA, run)
    finally:
        unfinished.finish(begun[0], {})
    assert len(begun) == 1
    assert f"./tidemark erase {PIPELINE} --resume" in raised.value.remedy


def test_rebuild_compares_when_the_unfinished_erasure_has_built_the_interval() -> None:
    erasure = begin_erasure(last_build=0)
    try:
        assert rebuilding.rebuild(PIPELINE, PARTITION, Source.KAFKA, building())["equal"]
    finally:
        unfinished.finish(erasure, {})
