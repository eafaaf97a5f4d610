"""An erasure also reaches what a view that is no longer declared has left; on a real PostgreSQL and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import select

from include import catalog, lake
from include.erasure import steps
from include.erasure.find import Search
from include.erasure.run import Wish, erase
from include.errors import TidemarkError, UsageError
from include.ledger.database import session
from include.ledger.erasures import unfinished
from include.ledger.erasures.intent import Found
from include.ledger.intervals.states import RevisionState
from include.ledger.models import Attempt, Erasure, Revision, TableBegin
from include.pipelines import Declarations, load_pipeline
from include.pipelines.spec import Pipeline
from tests.conftest import Home
from tests.support.attempts import begin_attempt, hour

pytestmark = pytest.mark.services

WISH = Wish(("cam-1",), ("device_id",), "asked", "me@here")
PARTITION = "date=2026-11-18"


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline whose archive holds no record of the key."""
    monkeypatch.setattr("include.erasure.run.search", lambda *_: Search(Found(set(), set(), set(), 0), 0))
    name = str(request.node.name)[5:60]
    return replace(load_pipeline("nest_cameras"), name=name, views=(), reports=(), outputs=())


@pytest.fixture
def view(pipeline: Pipeline) -> Iterator[str]:
    """The table of a view that the pipeline has had."""
    table = f"{pipeline.name}_former"
    with session() as ledger:
        ledger.add(TableBegin(pipeline=pipeline.name, table_name=table, first_begin=hour(0).from_time))
    yield table
    for kind in ("tables", "iceberg"):
        lake.delete(lake.uri(kind, table))


def write(table: str, *folders: str) -> Path:
    """Write a file to a folder of the table, and return the folder."""
    folder = Path(lake.filesystem(lake.uri("tables", table, *folders))[1])
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"cam-1")
    return folder


def revise(pipeline: Pipeline, table: str, name: str, state: RevisionState, location: str = "") -> Path:
    """A revision with a file, of an attempt that has ended."""
    attempt = begin_attempt(pipeline.name, hour(0))
    now = datetime.now(UTC)
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt)
        row.ended_at = now
        ledger.add(
            Revision(
                id=name, table_name=table, table_partition=PARTITION, interval_id=row.interval_id, attempt_id=attempt,
                location=location or lake.uri("tables", table, PARTITION, name), rows=1, content_hash="h",
                code_version="1", state=state, built_at=now, retired_at=now, files={},
            )
        )  # fmt: skip
    return write(table, PARTITION, name)


def erased(pipeline: Pipeline) -> list[str]:
    """Erase the key and return what remains."""
    remains: list[str] = erase(pipeline, WISH, lambda line: None)["remains"]
    return remains


def test_leftovers_in_the_table_of_a_removed_view_go_when_something_is_erased(pipeline: Pipeline, view: str) -> None:
    registered = revise(pipeline, view, "r1", RevisionState.REGISTERED)
    removed = revise(pipeline, view, "r2", RevisionState.REMOVED)
    staged, unknown = write(view, "_staging-0a1b-999999"), write(view, PARTITION, "0a1b-999998")
    remains = erased(pipeline)
    assert [each.exists() for each in (removed, staged, unknown, registered)] == [False, False, False, True]
    assert not any(view in each for each in remains)


def test_leftovers_are_named_when_the_removed_view_has_an_iceberg_table(pipeline: Pipeline, view: str) -> None:
    staged = write(view, "_staging-0a1b-999999")
    Path(lake.filesystem(lake.uri("iceberg", view, "metadata"))[1]).mkdir(parents=True)
    (named,) = (each for each in erased(pipeline) if view in each)
    assert f"below tables/{view}, which is no longer declared" in named
    assert staged.exists()


def test_leftovers_are_named_when_a_declaration_is_refused_and_may_name_the_table(
    pipeline: Pipeline, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = Declarations((pipeline,), {"other": ValueError()})  # type: ignore[dict-item]
    monkeypatch.setattr("include.housekeeping.leftovers.declarations", lambda: refused)
    staged = write(view, "_staging-0a1b-999999")
    assert [each for each in erased(pipeline) if f"tables/{view}" in each]
    assert staged.exists()


def test_nothing_is_erased_when_revisions_of_a_removed_view_lie_outside_of_the_lake(
    pipeline: Pipeline, view: str
) -> None:
    """The folder in this lake may be that very revision, by another spelling."""
    folder = revise(pipeline, view, "r1", RevisionState.REGISTERED, "file:///elsewhere/r1")
    with pytest.raises(UsageError, match="outside of the lake"):
        erased(pipeline)
    assert folder.exists()
    assert unfinished.unfinished(pipeline.name) is None


def test_replaced_revision_of_a_removed_view_stays_when_the_catalog_points_at_it(
    pipeline: Pipeline, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = revise(pipeline, view, "r1", RevisionState.SUPERSEDED)
    location = lake.uri("tables", view, PARTITION, "r1")
    asked: list[str] = []

    def pointed_at(tables: list[str]) -> set[str]:
        asked.extend(tables)
        return {catalog.comparable_location(location)}

    monkeypatch.setattr(catalog, "pointed_at", pointed_at)
    begun = begun_of(pipeline, view)
    with pytest.raises(TidemarkError, match="the catalog points at") as refused:
        steps.sweep(pipeline, begun, lambda line: None)
    assert f"drop {PARTITION} from lake.{view}" in refused.value.remedy
    assert view in asked
    assert folder.exists()


def test_no_folder_is_left_with_a_partition_s_name_when_its_replaced_revision_was_deleted(
    pipeline: Pipeline, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = revise(pipeline, view, "r1", RevisionState.SUPERSEDED)
    orphan = write(view, "r2")
    monkeypatch.setattr(catalog, "pointed_at", lambda tables: set())
    steps.sweep(pipeline, begun_of(pipeline, view), lambda line: None)
    assert not folder.exists()
    assert not orphan.exists()
    assert list(Path(lake.filesystem(lake.uri("tables", view))[1]).iterdir()) == []


def begun_of(pipeline: Pipeline, view: str) -> unfinished.Begun:
    """An erasure of records that the view's intervals hold."""
    with session() as ledger:
        intervals = list(ledger.scalars(select(Revision.interval_id).where(Revision.table_name == view)))
        said = {"columns": ["device_id"], "reason": "asked", "begun_by": "me@here", "salt": "00", "key_hashes": []}
        ledger.add(Erasure(pipeline=pipeline.name, intervals=intervals, last_build=0, counts={}, **said))
    begun = unfinished.unfinished(pipeline.name)
    assert begun is not None
    return begun
