"""What doctor and housekeeping do about tables and pipelines that are no longer declared; over a real ledger."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from include import lake
from include.doctor.examine import left_behind
from include.housekeeping import leftovers
from include.housekeeping.run import keep_house
from include.ledger.database import session
from include.ledger.intervals.states import RevisionState
from include.ledger.models import Attempt, Revision, TableBegin
from include.ledger.streams import generations
from include.pipelines import Declarations, load_pipeline
from tests.conftest import Home
from tests.support.attempts import begin_attempt, hour, note_begin
from tests.support.leases import held_lease

pytestmark = pytest.mark.services

NAME, VIEW = "isp_hits", "isp_hits_former_view"


@pytest.fixture(autouse=True)
def world(postgres: Home) -> Iterator[Path]:
    root = Path(lake.filesystem(lake.root())[1])
    yield root
    for each in (root / "tables", root / "landing", root / "iceberg"):
        shutil.rmtree(each, ignore_errors=True)


def revise(root: Path, table: str, name: str, state: RevisionState) -> Path:
    """A revision with a file that came into this state nine days ago."""
    with session() as ledger:
        note_begin(ledger, NAME, table, hour(0).from_time)
    attempt = begin_attempt(NAME, hour(0))
    moment = datetime.now(UTC) - timedelta(days=9)
    folder = root / "tables" / table / "date=2026-11-18" / name
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"rows")
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt)
        row.ended_at = moment
        ledger.add(
            Revision(
                id=name,
                table_name=table,
                table_partition="date=2026-11-18",
                interval_id=row.interval_id,
                attempt_id=attempt,
                location=lake.uri("tables", table, "date=2026-11-18", name),
                rows=1,
                content_hash="h",
                code_version="1",
                state=state,
                built_at=moment,
                retired_at=moment,
                files={"part-0.parquet": {"rows": 1, "bytes": 4}},
            )
        )
    return folder


def test_former_revisions_of_a_removed_view_go_as_others_do_and_doctor_names_what_is_left(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = revise(world, VIEW, "r1", RevisionState.SUPERSEDED)
    registered = revise(world, VIEW, "r2", RevisionState.REGISTERED)
    pipeline = load_pipeline(NAME)
    # As long as a declaration is refused, it may be the view's.
    refused = Declarations((pipeline,), {"other": ValueError()})  # type: ignore[dict-item]
    monkeypatch.setattr(leftovers, "declarations", lambda: refused)
    keep_house(pipeline, dry_run=False, progress=lambda line: None)
    assert old.exists()
    assert list(left_behind(deep=False)) == []
    monkeypatch.undo()
    [note] = [each for each in left_behind(deep=False) if NAME in each.what]
    assert note.notice
    assert note.what == f"views that {NAME} had: no longer declared, and still in the lake: tables/{VIEW}"
    done = keep_house(pipeline, dry_run=False, progress=lambda line: None)
    assert done["revisions"]["revisions"] == 1
    assert (old.exists(), registered.exists()) == (False, True)


def test_former_revisions_stay_when_the_removed_view_has_an_iceberg_table(world: Path) -> None:
    old = revise(world, VIEW, "r3", RevisionState.SUPERSEDED)
    (world / "iceberg" / VIEW / "metadata").mkdir(parents=True)
    keep_house(load_pipeline(NAME), dry_run=False, progress=lambda line: None)
    assert old.exists()


def test_folders_of_a_removed_pipeline_are_named_and_listed_for_their_sizes_by_a_deep_look_only(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_lease("former_pipeline") as lease:
        generations.open_generation(lease, started_by="test", reason="test")
    with session() as ledger:
        ledger.merge(TableBegin(pipeline="former_pipeline", table_name="former_view", first_begin=hour(0).from_time))
    # A declared stream of lines is none of them.
    with held_lease("isp_hits_files") as lines:
        generations.open_generation(lines, started_by="test", reason="test")
    for folder in (
        "tables/former_view/date=2026-11-18/r1",
        "landing/former_pipeline/0-1",
        "landing/isp_hits_files/0-1",
    ):
        (world / folder).mkdir(parents=True)
        (world / folder / "part-0.parquet").write_bytes(b"x" * 2_345_678)
    [note] = [each for each in left_behind(deep=True) if "former_pipeline" in each.what]
    assert note.what.endswith(": tables/former_view (2.3 MB), landing/former_pipeline (2.3 MB)")
    monkeypatch.setattr(lake, "list_entries", lambda *_, **__: pytest.fail("the folder may have millions of files"))
    notes = [each.what for each in left_behind(deep=False)]
    assert [each for each in notes if each.endswith(": tables/former_view, landing/former_pipeline")]
    assert not any("isp_hits_files" in each for each in notes)
