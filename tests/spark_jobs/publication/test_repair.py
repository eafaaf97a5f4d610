"""The repair of the catalog while an interval is published; the ledger is real, the catalog a dictionary."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from include.catalog.changes import CatalogChange, CatalogRepair
from include.errors import UsageError
from include.ledger.database import session
from include.ledger.intervals import locks
from include.ledger.models import IntervalRow
from include.pipelines.spec import Pipeline
from spark_jobs.publication import repair
from tests.conftest import Home
from tests.support.attempts import begin_attempt, hour, note_build, register
from tests.support.ledger_world import MemoryCatalog

pytestmark = pytest.mark.services

PIPELINE = "nest_cameras"


@pytest.fixture
def session_of(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the Spark session: the catalog's entries."""
    monkeypatch.setattr(repair, "Catalog", MemoryCatalog)
    monkeypatch.setattr(repair, "check_storage", lambda pipeline: None)
    return SimpleNamespace(catalog={})


def change(partition: str, repair: CatalogRepair) -> list[CatalogChange]:
    return [CatalogChange(PIPELINE, PIPELINE, partition, repair)]


def test_partition_is_not_dropped_when_a_publication_is_registering_it(
    session_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    built = note_build(begin_attempt(PIPELINE, hour(0)))
    session_of.catalog[PIPELINE, built.partition] = "file:///being-registered"
    plan = change(built.partition, "drop from the catalog")
    with locks.publishing(PIPELINE, hour(0)):
        repair.repair(session_of, plan)
    assert session_of.catalog == {(PIPELINE, built.partition): "file:///being-registered"}
    assert f"{PIPELINE} {built.partition} is left: somebody else is publishing" in caplog.text
    repair.repair(session_of, plan)
    assert session_of.catalog == {}


def test_partition_is_not_pointed_back_when_a_publication_is_registering_it_again(session_of: Any) -> None:
    attempt = begin_attempt(PIPELINE, hour(1))
    built = note_build(attempt)
    register(attempt, built)
    key = (PIPELINE, built.partition)
    session_of.catalog[key] = "file:///being-registered"
    plan = change(built.partition, "point the catalog")
    with locks.publishing(PIPELINE, hour(1)):
        repair.repair(session_of, plan)
    assert session_of.catalog[key] == "file:///being-registered"
    repair.repair(session_of, plan)
    assert session_of.catalog[key] == built.location


def test_partition_is_not_pointed_at_the_revision_of_another_pipeline(session_of: Any) -> None:
    """Its view had the table before, which was dropped; readers would add up the rows of both."""
    attempt = begin_attempt(PIPELINE, hour(2))
    built = note_build(attempt)
    register(attempt, built)
    plan = change(built.partition, "point the catalog")
    with session() as ledger:
        ledger.execute(update(IntervalRow).where(IntervalRow.from_time == hour(2).from_time).values(pipeline="nest"))
    repair.repair(session_of, plan)
    assert session_of.catalog == {}
    with session() as ledger:
        ledger.execute(update(IntervalRow).where(IntervalRow.pipeline == "nest").values(pipeline=PIPELINE))
    repair.repair(session_of, plan)
    assert session_of.catalog == {(PIPELINE, built.partition): built.location}


def test_other_pipelines_are_repaired_when_the_tables_of_one_are_refused(
    session_of: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def check(pipeline: Pipeline) -> None:
        if pipeline.name == "gps_positions":
            raise UsageError("lake.gps_positions has registered files with other columns", pipeline=pipeline.name)

    monkeypatch.setattr(repair, "check_storage", check)
    partition = "date=2026-11-20/interval=by hand"
    session_of.catalog.update({(name, partition): "file:///elsewhere" for name in ("gps_positions", PIPELINE)})
    plan = [CatalogChange(name, name, partition, "drop from the catalog") for name in ("gps_positions", PIPELINE)]
    with pytest.raises(UsageError, match="other columns"):
        repair.repair(session_of, plan)
    assert [*session_of.catalog] == [("gps_positions", partition)]
    assert "gps_positions is left as it is: lake.gps_positions has registered" in caplog.text


def test_partition_that_names_no_interval_is_dropped(session_of: Any) -> None:
    partition = "date=2026-11-20/interval=by hand"
    session_of.catalog[PIPELINE, partition] = "file:///elsewhere"
    repair.repair(session_of, change(partition, "drop from the catalog"))
    assert session_of.catalog == {}
