"""Building an interval without services: what stays of a build that fails, and what a rebuild does not ask for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from include import lake
from include.errors import ServiceUnreachable, UsageError
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.findings import BuildFindings, Findings, findings_of
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline
from include.pipelines.spec import Listing, Report
from include.reconciliation import Reconciliation
from include.times import Interval
from include.versions import view_version
from spark_jobs.archive.replayed import Replayed
from spark_jobs.archive.schema import archive_schema
from spark_jobs.intervals import build, write
from spark_jobs.intervals.read import Reading
from spark_jobs.reconciliation.interval_run import IntervalRun
from tests.conftest import SetSettings

pytestmark = pytest.mark.spark

HOUR = Interval(datetime(2026, 11, 20, 5, tzinfo=UTC), datetime(2026, 11, 20, 6, tzinfo=UTC))


@pytest.fixture
def built_here(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_settings: SetSettings) -> Path:
    """A lake without services; two hits on two days were read, and the speed view's topic cannot be."""
    schema = archive_schema(load_pipeline("isp_hits"))
    hits = [
        {"zipcode": "94103", "hittime": datetime(2026, 11, day, 5, 30), "isp": "one", "kafka_topic": "isp-hits",
         "kafka_partition": 0, "kafka_offset": day, "kafka_timestamp": HOUR.from_time, "kafka_element": 0}
        for day in (19, 20)
    ]  # fmt: skip
    rows = spark.createDataFrame([tuple(hit.get(name) for name in schema.names) for hit in hits], schema)
    rows = rows.withColumn("event_time", rows.hittime).withColumn("date", rows.hittime.cast("date").cast("string"))

    def read(run: IntervalRun, hashed_by: Any, writes: Any) -> Reading:
        writes(rows)
        return Reading(rows, {}, {}, 0, (), Reconciliation())

    def unreachable(*_: Any) -> Reconciliation:
        raise ServiceUnreachable("Kafka does not answer")

    monkeypatch.setattr(build, "read_interval", read)
    monkeypatch.setattr(build, "check_compacted_topics", lambda _: None)
    monkeypatch.setattr(build, "reconcile_view", unreachable)
    monkeypatch.setattr(build, "reconcile_total", unreachable)
    monkeypatch.setattr(build, "replayed_rows", lambda *_: Replayed(rows.limit(0), 0, ""))
    monkeypatch.setattr(build, "collect_report", lambda *_: ({"sections": []}, []))
    monkeypatch.setattr(build.revisions, "registered_of_interval", lambda _: [])
    set_settings(TIDEMARK_LAKE=tmp_path.as_uri())
    return tmp_path


def built(
    spark: Any, *, is_rebuild: bool, reports: tuple[Report, ...] = ()
) -> tuple[list[BuiltRevision], BuildFindings]:
    """Build the hour as `build` does, and return the revisions and what was found."""
    pipeline = replace(load_pipeline("isp_hits"), reports=reports)
    pinned = PinnedInterval(1, pipeline.name, HOUR, (), {})
    attempt = AttemptSpec(1, pinned, Source.ARCHIVE, "1", Findings(), None, is_rebuild)
    found: list[BuiltRevision] = []
    with write.deleted_on_failure(each.location for each in found):
        names: dict[str, dict[str, str]] = {table: {} for table in pipeline.tables}
        findings, _ = build._build(IntervalRun(spark, pipeline, attempt), found, {}, names)
    return found, findings


def files(lake_folder: Path) -> list[Path]:
    return [path for path in lake_folder.rglob("*") if path.is_file()]


def test_no_file_stays_in_the_tables_when_the_build_fails_after_they_were_written(spark: Any, built_here: Path) -> None:
    with pytest.raises(ServiceUnreachable, match="Kafka does not answer"):
        built(spark, is_rebuild=False)
    assert files(built_here) == []


def test_speed_views_are_not_asked_for_when_a_registered_partition_is_built_again(spark: Any, built_here: Path) -> None:
    found, _ = built(spark, is_rebuild=True)
    assert {each.table for each in found} == set(load_pipeline("isp_hits").tables)
    assert len([each for each in found if each.table == "isp_hits"]) == 2
    assert all(Path(each.location.removeprefix("file://")).is_dir() for each in found)


def test_build_notes_the_version_of_each_view_when_it_is_done(spark: Any, built_here: Path) -> None:
    pipeline = load_pipeline("isp_hits")
    findings = built(spark, is_rebuild=True)[1]
    assert findings.view_versions == {
        pipeline.view_table(view): view_version(pipeline.name, view.name) for view in pipeline.views
    }
    assert findings_of(Findings(findings).as_json()).build == findings


def test_no_file_stays_when_only_the_first_partition_got_its_files(
    spark: Any, built_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    move, moved = lake.move, []

    def failing(source: str, target: str) -> None:
        if moved:
            raise OSError("No space left on device")
        move(source, target)
        moved.append(target)

    monkeypatch.setattr(lake, "move", failing)
    with pytest.raises(OSError, match="No space left"):
        built(spark, is_rebuild=True)
    assert len(moved) == 1
    assert files(built_here) == []


def test_first_error_is_reported_when_the_files_cannot_be_deleted_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(location: str) -> None:
        raise ServiceUnreachable(f"{location}: the store does not answer")

    monkeypatch.setattr(lake, "delete", unreachable)
    with pytest.raises(ValueError, match="the first"), write.deleted_on_failure(["a", "b"]):
        raise ValueError("the first")


def test_nothing_is_read_when_a_listing_names_a_column_that_its_function_does_not_return(
    spark: Any, built_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "read_interval", lambda *_: pytest.fail("was read"))
    listing = Listing("Users", rows="users_by_zip", columns=("zipcode", "usres"))
    with pytest.raises(UsageError, match=r"function users_by_zip of .*isp_hits\.py: \[UNRESOLVED_COLUMN.*usres"):
        built(spark, is_rebuild=True, reports=(listing,))
