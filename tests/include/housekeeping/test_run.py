"""Housekeeping of tables and leftovers, on a real PostgreSQL, without Spark."""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg2
import pytest
from sqlalchemy import create_engine, func, select, text

from include import lake
from include.errors import AnotherWriter, ServiceUnreachable
from include.housekeeping import run, sweep
from include.housekeeping.run import holding_files, keep_house
from include.lake import scan
from include.ledger import quarantine
from include.ledger.archive import landing_files, removal
from include.ledger.database import session
from include.ledger.intervals import locks
from include.ledger.intervals.states import RETIRED
from include.ledger.models import Attempt, Revision
from include.ledger.streams import generations, launches
from include.pipelines import load_pipeline
from include.settings import settings
from include.times import Interval
from tests.conftest import Home
from tests.support.committed import DAY, commit, register
from tests.support.leases import held_lease
from tests.support.ledger_faults import end_backends, lock_holders

pytestmark = pytest.mark.services


def test_second_housekeeping_is_refused_when_one_runs(pipeline: str) -> None:
    with holding_files(pipeline), pytest.raises(AnotherWriter, match="another housekeeping"), holding_files(pipeline):
        pass
    with holding_files(pipeline):
        assert True


@pytest.fixture
def attempt(postgres: Home) -> tuple[int, int]:
    return ended_attempt(0)


def ended_attempt(number: int) -> tuple[int, int]:
    """An interval of the declared pipeline with an attempt that has ended."""
    interval = register("nest_cameras", number, 0, 10)
    with session() as ledger:
        row = Attempt(interval_id=interval, run_by="test", code_version="1", source="kafka", ended_at=func.now())
        ledger.add(row)
        ledger.flush()
        return interval, row.id


def revise(attempt: tuple[int, int], name: str, state: str, days: int) -> Path:
    """A revision with a file, in that state for so many days."""
    location = lake.uri("tables", "nest_cameras", "date=2026-11-18/interval=2026-11-18T05", name)
    folder = Path(lake.filesystem(location)[1])
    folder.mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"rows")
    moment = datetime.now(UTC) - timedelta(days=days)
    with session() as ledger:
        ledger.add(
            Revision(
                id=name,
                table_name="nest_cameras",
                table_partition="date=2026-11-18/interval=2026-11-18T05",
                interval_id=attempt[0],
                attempt_id=attempt[1],
                location=location,
                rows=1,
                content_hash="h",
                code_version="1",
                state=state,
                built_at=moment,
                retired_at=moment if state in RETIRED else None,
                files={"part-0.parquet": {"rows": 1, "bytes": 4}},
            )
        )
    return folder


def quiet(line: str) -> None:
    """Nobody reads it."""


def catalogue(*folders: Path) -> None:
    """A table partition at each of the folders, in the metastore's own tables, as Hive writes it."""
    engine = create_engine(settings().database("catalog"))
    with engine.begin() as connection:
        for statement in (
            """INSERT INTO "DBS" ("DB_ID", "DB_LOCATION_URI", "NAME") VALUES (1, 'file:/lake', 'lake')
               ON CONFLICT DO NOTHING""",
            """INSERT INTO "TBLS" ("TBL_ID", "CREATE_TIME", "DB_ID", "LAST_ACCESS_TIME", "RETENTION", "TBL_NAME",
               "IS_REWRITE_ENABLED") VALUES (1, 0, 1, 0, 0, 'nest_cameras', false) ON CONFLICT DO NOTHING""",
        ):
            connection.execute(text(statement))
        known = connection.scalar(text('SELECT count(*) FROM "SDS"')) or 0
        for number, folder in enumerate(folders, known):
            for statement in (
                """INSERT INTO "SDS" ("SD_ID", "IS_COMPRESSED", "IS_STOREDASSUBDIRECTORIES", "LOCATION", "NUM_BUCKETS")
                   VALUES (:number, false, false, :location, 0)""",
                """INSERT INTO "PARTITIONS" ("PART_ID", "CREATE_TIME", "LAST_ACCESS_TIME", "PART_NAME", "SD_ID",
                   "TBL_ID") VALUES (:number, 0, 0, :partition, :number, 1)""",
            ):
                values = {"number": number, "partition": f"date=2026-11-18/interval={number}"}
                connection.execute(text(statement), {**values, "location": f"file:{folder}"})
    engine.dispose()


def test_old_revisions_are_removed_when_they_are_not_in_use(postgres: Home, attempt: tuple[int, int]) -> None:
    pipeline = load_pipeline("nest_cameras")
    registered = revise(attempt, "r1", "registered", 30)
    old = [revise(attempt, f"r{n}", s, 8) for n, s in enumerate(("superseded", "rejected", "discarded", "built"), 2)]
    young = revise(attempt, "r6", "superseded", 6)
    pointed_at = revise(attempt, "r7", "superseded", 30)
    catalogue(pointed_at)
    dry = keep_house(pipeline, dry_run=True, progress=quiet)
    assert dry["revisions"]["revisions"] == len(old)
    assert all(folder.exists() for folder in (*old, young, pointed_at, registered))
    done = keep_house(pipeline, dry_run=False, progress=quiet)
    assert done["revisions"] == {"revisions": 4, "bytes": 16}
    assert [line for line in done["kept"] if "r7 (superseded)" in line]
    assert not any(folder.exists() for folder in old)
    assert all(folder.exists() for folder in (young, pointed_at, registered))
    with session() as ledger:
        states = dict(ledger.execute(select(Revision.id, Revision.state)).tuples().all())
    assert {states[f"r{n}"] for n in range(2, 6)} == {"removed"}
    assert (states["r1"], states["r6"], states["r7"]) == ("registered", "superseded", "superseded")


def test_directory_stays_when_the_catalog_points_at_it_whatever_the_ledger_says_of_it(postgres: Home) -> None:
    attempt = ended_attempt(9)
    kept, gone = (
        [revise(attempt, f"removed-{which}", "removed", 30), old_directory(f"unknown-{which}")] for which in "ab"
    )
    catalogue(*kept)
    keep_house(load_pipeline("nest_cameras"), dry_run=False, progress=quiet)
    assert all(folder.exists() for folder in kept)
    assert not any(folder.exists() for folder in gone)


def test_revisions_are_looked_up_by_date_when_a_table_has_many(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    known = [revise(ended_attempt(20), "r20", "removed", 30)]
    unknown = [old_directory("unknown-c"), old_directory("unknown-d", "2026-11-17")]
    states, looked_up = sweep.states_at, []
    monkeypatch.setattr(sweep, "states_at", lambda table, at: looked_up.append((table, [*at])) or states(table, at))
    monkeypatch.setattr(scan, "_ENTRIES", 1)
    done = keep_house(load_pipeline("nest_cameras"), dry_run=False, progress=quiet)
    assert len(done["orphans"]) == 2
    assert [folder.exists() for folder in (*known, *unknown)] == [False] * 3
    dates = [{at.split("date=")[1][:10] for at in locations} for table, locations in looked_up if locations]
    assert sorted(map(sorted, dates)) == [["2026-11-17"], ["2026-11-18"]]


def old_directory(name: str, date: str = "2026-11-18") -> Path:
    """A directory of a revision that the ledger does not know."""
    location = lake.uri("tables", "nest_cameras", f"date={date}/interval=2026-11-18T05", name)
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    folder = aged(Path(lake.filesystem(location)[1]) / "part-0.parquet", long_ago).parent
    os.utime(folder, (long_ago.timestamp(), long_ago.timestamp()))
    return folder


def test_nothing_is_deleted_when_the_lock_was_lost(postgres: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    old = revise(ended_attempt(8), "r8", "superseded", 8)

    def lose_the_lock(place: str) -> None:
        with psycopg2.connect(postgres.database) as connection, connection.cursor() as cursor:
            end_backends(cursor, [*lock_holders(cursor)])

    monkeypatch.setattr(run, "crash_point", lose_the_lock)
    with pytest.raises(ServiceUnreachable):
        keep_house(load_pipeline("nest_cameras"), dry_run=False, progress=quiet)
    assert old.exists()
    monkeypatch.undo()
    keep_house(load_pipeline("nest_cameras"), dry_run=False, progress=quiet)
    assert not old.exists()


def test_revisions_and_leftovers_go_when_the_merge_of_a_day_never_ends(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = revise(ended_attempt(7), "r10", "superseded", 8)
    leftover = Path(lake.filesystem(lake.uri("landing", "nest_cameras", "0a1b2c3d-000000008-1"))[1])
    long_ago = datetime.now(UTC) - timedelta(hours=2)
    aged(leftover / "fate=empty" / "part-0.parquet", long_ago)
    for each in (leftover / "fate=empty", leftover):
        os.utime(each, 2 * (long_ago.timestamp(),))

    def killed(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(run.compaction, "closed_days", killed)
    with pytest.raises(SystemExit):
        keep_house(load_pipeline("nest_cameras"), dry_run=False, progress=quiet)
    assert not old.exists()
    assert not leftover.exists()


def test_files_go_in_the_run_that_merged_them_when_everything_is_due(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their folders have just changed: the archived rows beside them went before."""
    register("isp_hits", 0, 0, 20)
    for number in range(2):
        commit("isp_hits", number, 10 * number, 10 * number + 10, quarantined=3, empty=2, archived=4)
    monkeypatch.setattr(run, "damage_of", lambda revisions, records: "")
    folder = Path(lake.filesystem(lake.uri("quarantine", "isp_hits"))[1])
    assert len([*folder.iterdir()]) == 2
    done = keep_house(load_pipeline("isp_hits"), dry_run=False, older_than="0s", progress=quiet)
    assert done["compacted"] == {"days": 2, "files": 4, "rows": 10}
    assert [path for path in done["orphans"] if path.startswith("landing")] == []
    (merged,) = folder.iterdir()
    assert merged.name.startswith(f"{DAY.date()}-")
    landing = Path(lake.filesystem(lake.uri("landing", "isp_hits"))[1])
    assert [each.name for each in landing.iterdir()] == ["compacted"]


def test_landing_goes_in_portions_and_each_revision_is_read_once_when_many_micro_batches_are_due(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    register("auction_bids", 0, 0, 50)
    batches = [commit("auction_bids", number, 10 * number, 10 * number + 10, archived=3) for number in range(5)]
    monkeypatch.setattr(removal, "_AT_ONCE", 2)
    monkeypatch.setattr(scan, "_AT_ONCE", 2)
    damage, settled, looked_up = [], [], []
    monkeypatch.setattr(run, "damage_of", lambda revisions, records: damage.append(revisions) or "")
    mark, at = removal.mark_removed, landing_files.files_at
    monkeypatch.setattr(removal, "mark_removed", lambda name, ids: settled.append([*ids]) or mark(name, ids))
    monkeypatch.setattr(landing_files, "files_at", lambda name, paths: looked_up.append(paths) or at(name, paths))
    done = keep_house(load_pipeline("auction_bids"), dry_run=False, older_than="0s", progress=quiet)
    assert (done["landing"]["micro_batches"], done["landing"]["files"]) == (5, 5)
    assert settled == [batches[:2], batches[2:4], batches[4:]]
    assert len(damage) == 1
    assert [len(paths) for paths in looked_up if paths] == [2, 2, 1]
    assert not Path(lake.filesystem(lake.uri("landing", "auction_bids", "0"))[1]).exists()


def test_all_landing_of_a_damaged_interval_stays_and_is_named_once_when_it_is_of_several_portions(
    postgres: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    register("wiki_changes", 0, 0, 50)
    for number in range(5):
        commit("wiki_changes", number, 10 * number, 10 * number + 10, archived=3)
    monkeypatch.setattr(removal, "_AT_ONCE", 2)
    done = keep_house(load_pipeline("wiki_changes"), dry_run=False, older_than="0s", progress=quiet)
    assert done["landing"] == {"micro_batches": 0, "files": 0, "bytes": 0}
    assert len([line for line in done["kept"] if "no published run of it has counted" in line]) == 1
    assert lake.exists(lake.uri("landing/wiki_changes/4/fate=archived/part.parquet"))


def test_leftovers_of_killed_jobs_go_only_when_they_are_old(postgres: Home) -> None:
    pipeline, root = load_pipeline("nest_cameras"), Path(lake.filesystem(lake.root())[1])
    leftovers = [
        root / "landing" / "nest_cameras" / "0a1b2c3d-000000007-1" / "fate=archived" / "part-0.parquet",
        root / "tables" / "nest_cameras" / "_staging-999" / "date=2026-11-20" / "part-0.parquet",
        root / "tables" / "nest_cameras" / "date=2026-11-20" / "interval=x" / "r20261120T000000-999" / "p.parquet",
        root / "quarantine" / "nest_cameras" / "0a1b2c3d-000000007.parquet",
        root / "quarantine" / "nest_cameras" / "0a1b2c3d-000000006-0000.parquet",
    ]
    for path in leftovers:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not committed")
    assert keep_house(pipeline, dry_run=False, progress=quiet)["orphans"] == []
    assert all(path.exists() for path in leftovers)
    long_ago = (datetime.now(UTC) - timedelta(hours=2)).timestamp()
    for path in leftovers:
        for each in (path, *path.parents):
            if each == root:
                break
            os.utime(each, (long_ago, long_ago))
    assert len(keep_house(pipeline, dry_run=True, progress=quiet)["orphans"]) == len(leftovers)
    assert all(path.exists() for path in leftovers)
    assert len(keep_house(pipeline, dry_run=False, progress=quiet)["orphans"]) == len(leftovers)
    assert not any(path.exists() for path in leftovers)


def test_files_of_a_long_attempt_stay_as_long_as_its_process_lives(postgres: Home) -> None:
    began = datetime.now(UTC) - timedelta(hours=3)
    with session() as ledger:
        row = Attempt(interval_id=register("wiki_changes", 5, 0, 10), run_by="test", code_version="1", source="kafka")
        row.started_at = began
        ledger.add(row)
        ledger.flush()
        name = f"r20261120T000000-{row.id}"
    root = Path(lake.filesystem(lake.root())[1])
    built = root / "tables" / "wiki_changes" / "date=2026-11-20" / "interval=x" / name / "p.parquet"
    built.parent.mkdir(parents=True)
    built.write_bytes(b"a table that was built before the views")
    for each in (built, built.parent):
        os.utime(each, 2 * ((datetime.now(UTC) - timedelta(hours=2)).timestamp(),))
    pipeline, interval = load_pipeline("wiki_changes"), Interval(DAY + timedelta(hours=5), DAY + timedelta(hours=6))
    with locks.attempt_under_way("wiki_changes", interval):
        assert keep_house(pipeline, dry_run=False, progress=quiet)["orphans"] == []
        assert built.exists()
    assert keep_house(pipeline, dry_run=False, progress=quiet)["orphans"] == [str(built.parent.relative_to(root))]
    assert not built.exists()


@pytest.mark.parametrize("between_two_tasks", [False, True])
def test_what_an_attempt_has_built_stays_while_it_is_under_way_when_everything_is_due(
    postgres: Home, between_two_tasks: bool
) -> None:
    hour = 12 + between_two_tasks
    interval, attempt = ended_attempt(hour)
    folder = revise((interval, attempt), f"under-way-{hour}", "built", 0)
    with session() as ledger:
        row = ledger.get_one(Attempt, attempt)
        row.ended_at = None
        row.started_at = datetime.now(UTC) - timedelta(minutes=5 if between_two_tasks else 300)
    pipeline, begin = load_pipeline("nest_cameras"), DAY + timedelta(hours=hour)
    place = Interval(begin, begin + timedelta(hours=1))
    with nullcontext() if between_two_tasks else locks.attempt_under_way(pipeline.name, place):
        kept = keep_house(pipeline, dry_run=False, older_than="0s", progress=quiet)["kept"]
    assert f"revisions: attempt {attempt} of {place} is under way; what it has built stays" in kept
    assert folder.exists()
    with session() as ledger:
        # Its driver died long ago.
        ledger.get_one(Attempt, attempt).started_at = datetime.now(UTC) - timedelta(hours=5)
    keep_house(pipeline, dry_run=False, older_than="0s", progress=quiet)
    assert not folder.exists()


def test_rows_of_a_replay_stay_while_it_is_under_way_and_go_when_it_was_killed(postgres: Home) -> None:
    pipeline, root = load_pipeline("nest_cameras"), Path(lake.filesystem(lake.root())[1])
    path = root / "landing" / "nest_cameras" / "replay-000000003-0a1b2c3d" / "fate=archived" / "part-0.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not committed")
    with quarantine.deciding(pipeline.name):
        assert keep_house(pipeline, dry_run=False, older_than="0s", progress=quiet)["orphans"] == []
    assert path.exists()
    assert keep_house(pipeline, dry_run=False, older_than="0s", progress=quiet)["orphans"] != []
    assert not path.exists()


def test_checkpoints_of_older_generations_and_logs_of_earlier_drivers_go_when_they_are_old(postgres: Home) -> None:
    with held_lease("gps_positions") as lease:
        for beyond in (-1, 9):
            generations.open_generation(lease, started_by="test", reason="test", beyond=beyond)
    launches.note_intent("a" * 32, "gps_positions", launches.this_host(), str(log_of("gps_positions-aaaaaaaa")))

    old, newest = datetime.now(UTC) - timedelta(days=8), datetime.now(UTC)
    kept = [
        checkpoint("gps_positions", "g10", old),
        checkpoint("gps_positions", "other", old),
        checkpoint("gps", "g0", old),
        aged(log_of("gps_positions-aaaaaaaa"), old),
        aged(log_of("gps_positions-bbbbbbbb"), newest),
        aged(log_of("gps_positions_lines-cccccccc"), old),
    ]
    gone = [
        checkpoint("gps_positions", "g0", old),
        checkpoint("gps_positions", "g2", old),
        aged(log_of("gps_positions-dddddddd"), old),
    ]
    pipeline = load_pipeline("gps_positions")
    for dry_run in (True, False):
        done = keep_house(pipeline, dry_run=dry_run)
        assert done["generations"] == {"generations": 2, "files": 2, "bytes": 12}
        assert done["logs"] == {"files": 1, "bytes": 6}
        assert done["deleted"] == {"files": 3, "bytes": 18}
        assert [path.exists() for path in gone] == 3 * [dry_run]
    assert [path for path in kept if not path.exists()] == []
    assert keep_house(pipeline, dry_run=False)["deleted"] == {"files": 0, "bytes": 0}


def test_checkpoints_of_an_older_generation_stay_when_they_are_new(postgres: Home) -> None:
    with held_lease("auction_bids") as lease:
        for reason in ("first", "second"):
            generations.open_generation(lease, started_by="test", reason=reason)
    kept = checkpoint("auction_bids", "g1", datetime.now(UTC))
    assert keep_house(load_pipeline("auction_bids"), dry_run=False)["generations"]["generations"] == 0
    assert kept.exists()


def checkpoint(pipeline: str, generation: str, changed: datetime) -> Path:
    """A file of a checkpoint."""
    return aged(
        Path(lake.filesystem(lake.uri("checkpoints", pipeline, generation, "archive", "offsets", "0"))[1]), changed
    )


def log_of(name: str) -> Path:
    return settings().home / "logs" / "streams" / f"{name}.log"


def aged(path: Path, changed: datetime) -> Path:
    """A file of six bytes that was changed then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"offset")
    os.utime(path, (changed.timestamp(), changed.timestamp()))
    return path
