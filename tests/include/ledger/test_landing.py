"""What the ledger says about removed and compacted landing, on a real PostgreSQL, without Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from include.ledger.archive import landing, micro_batches
from include.ledger.intervals.revisions import RETIRED
from sqlalchemy import create_engine, func, select, text

from include import lake
from include.errors import AnotherWriter, TidemarkError, UsageError
from include.housekeeping import compaction
from include.housekeeping.run import _alone, keep_house
from include.intervals.pinning import check_repin
from include.ledger.database import engine, session
from include.ledger.intervals import pins
from include.ledger.models import (
    Attempt,
    IntervalRange,
    IntervalRow,
    LandingFile,
    MicroBatch,
    MicroBatchRange,
    Revision,
)
from include.offsets import OffsetRange, TopicPartition, intersection, merged
from include.pipelines import load_pipeline
from include.settings import settings
from include.times import Interval
from tests.conftest import Home

pytestmark = pytest.mark.services

TP = TopicPartition("events", 0)
DAY = datetime(2026, 11, 18, 5, tzinfo=UTC)


def span(begin: int, until: int) -> OffsetRange:
    return OffsetRange(TP, begin, until)


@pytest.fixture(scope="module")
def postgres(new_home: Callable[..., Home]) -> Iterator[Home]:
    """An embedded PostgreSQL that this process itself talks to."""
    made = new_home()
    made.run("up", "postgres")
    os.environ["TIDEMARK_HOME"] = str(made.path)
    settings.cache_clear()
    engine.cache_clear()
    yield made
    engine().dispose()
    engine.cache_clear()
    del os.environ["TIDEMARK_HOME"]
    settings.cache_clear()
    made.end()


@pytest.fixture
def pipeline(postgres: Home, request: pytest.FixtureRequest) -> str:
    """A name of its own for each test: nothing of another test is in its way."""
    return str(request.node.name)[:60]


def commit(pipeline: str, number: int, begin: int, until: int, **rows: int) -> int:
    """A micro-batch with a file of the named rows per outcome."""
    with session() as ledger:
        batch = MicroBatch(
            pipeline=pipeline, query="archive", query_id=pipeline, batch_id=number, token=1, committed_at=DAY
        )
        ledger.add(batch)
        ledger.flush()
        ledger.add(
            MicroBatchRange(
                micro_batch_id=batch.id,
                topic="events",
                topic_partition=0,
                topic_id="id",
                from_offset=begin,
                until_offset=until,
            )
        )
        for outcome, count in rows.items():
            path = f"landing/{pipeline}/{number}/outcome={outcome}/part.parquet"
            if outcome == "quarantined":
                path = f"quarantine/{pipeline}/0a1b2c3d-{number:09d}-0000.parquet"
            table = pa.table({"kafka_offset": range(begin, begin + count), "value": [b"x"] * count})
            system, at = lake.filesystem(lake.uri(path))
            system.create_dir(at.rsplit("/", 1)[0], recursive=True)
            pq.write_table(table, at)
            size = lake.size(lake.uri(path))
            ledger.add(LandingFile(micro_batch_id=batch.id, outcome=outcome, path=path, rows=count, bytes=size))
        return batch.id


def register(pipeline: str, number: int, begin: int, until: int, state: str = "registered") -> int:
    """An interval pinned to the offsets."""
    start = DAY + timedelta(hours=number)
    with session() as ledger:
        row = IntervalRow(
            pipeline=pipeline, from_time=start, to_time=start + timedelta(hours=1), pinned_by="test", state=state
        )
        ledger.add(row)
        ledger.flush()
        ledger.add(
            IntervalRange(
                interval_id=row.id,
                topic="events",
                topic_partition=0,
                topic_id="id",
                from_offset=begin,
                until_offset=until,
            )
        )
        return row.id


def test_ranges_join_when_they_touch_and_are_cut_when_they_overlap() -> None:
    assert merged([span(5, 9), span(0, 5), span(12, 12), span(10, 11)]) == [span(0, 9), span(10, 11)]
    assert intersection(span(0, 5), span(3, 9)) == span(3, 5)
    assert intersection(span(0, 5), span(5, 9)) is None
    assert intersection(span(0, 5), OffsetRange(TopicPartition("events", 1), 0, 5)) is None


def test_batch_is_settled_only_when_all_its_offsets_lie_in_registered_intervals(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    register(pipeline, 1, 10, 20)
    register(pipeline, 2, 20, 30, state="pinned")
    inside = commit(pipeline, 0, 0, 8, archived=3)
    across_registered = commit(pipeline, 1, 8, 15, archived=3)
    commit(pipeline, 2, 15, 25, archived=3)
    commit(pipeline, 3, 25, 30, archived=3)
    settled = landing.settled_batches(pipeline, datetime.now(UTC), ("archived",))
    assert settled == {inside: [span(0, 8)], across_registered: [span(8, 15)]}
    assert landing.settled_batches(pipeline, DAY, ("archived",)) == {}


def test_removed_offsets_are_read_from_intervals_and_no_file_of_theirs_is_named(pipeline: str) -> None:
    first, second = register(pipeline, 0, 0, 10), register(pipeline, 1, 10, 20)
    batches = [commit(pipeline, 0, 0, 4, archived=2), commit(pipeline, 1, 4, 6, empty=2)]
    batches += [commit(pipeline, 2, 6, 12, archived=2)]
    commit(pipeline, 3, 12, 20, archived=2)
    assert landing.removed_ranges(pipeline, [span(0, 20)]) == []
    landing.mark_removed([batches[0], batches[2]])
    # The batch without archived rows lies between two removed ones: one range.
    assert landing.removed_ranges(pipeline, [span(0, 20)]) == [span(0, 12)]
    assert landing.removed_ranges(pipeline, [span(2, 8)]) == [span(2, 8)]
    assert landing.removed_ranges(pipeline, [span(12, 20)]) == []
    left = micro_batches.files_covering(pipeline, [span(0, 20)], "archived")
    assert left == [f"landing/{pipeline}/3/outcome=archived/part.parquet"]
    found = landing.holdings(pipeline, "no_table", [span(0, 12)])
    assert [(h.interval_id, h.ranges) for h in found] == [(first, (span(0, 10),)), (second, (span(10, 12),))]


def test_removed_offsets_outside_of_registered_intervals_are_an_error(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    with pytest.raises(TidemarkError, match=r"events-0 \[5, 12\)"):
        landing.holdings(pipeline, "no_table", [span(5, 12)])


def test_interval_is_not_pinned_again_when_its_landing_was_removed(pipeline: str) -> None:
    register(pipeline, 0, 0, 10)
    landing.mark_removed([commit(pipeline, 0, 0, 10, archived=2)])
    with session() as ledger:
        pinned = pins.find(ledger, pipeline, DAY)
        assert pinned is not None
        assert pinned.interval == Interval(DAY, DAY + timedelta(hours=1))
        with pytest.raises(UsageError, match="were removed"):
            check_repin(ledger, replace(load_pipeline("nest_cameras"), name=pipeline), pinned)


def rows_of(paths: list[str]) -> list[dict[str, Any]]:
    tables = [pq.ParquetFile(lake.filesystem(lake.uri(path))[1]).read() for path in paths]
    return sorted(pa.concat_tables(tables).to_pylist(), key=lambda row: row["kafka_offset"])


def test_day_is_compacted_into_one_file_and_again_when_more_of_it_is_settled(pipeline: str) -> None:
    interval = register(pipeline, 0, 0, 20)
    for number in range(4):
        commit(pipeline, number, 5 * number, 5 * number + 5, quarantined=2, empty=1)
    now = datetime.now(UTC)
    before = rows_of(micro_batches.files_covering(pipeline, [span(0, 20)], "quarantined"))
    days = compaction.closed_days(pipeline, now)
    assert [(day.outcome, len(day.files)) for day in days] == [("empty", 4), ("quarantined", 4)]
    for day in days:
        compaction.compact(pipeline, day)
    assert compaction.closed_days(pipeline, now) == []
    for offsets in ([span(0, 20)], [span(6, 7)]):
        paths = micro_batches.files_covering(pipeline, offsets, "quarantined")
        assert len(paths) == 1
        assert rows_of(paths) == before

    # A batch that was not settled then joins the same file.
    commit(pipeline, 4, 20, 30, quarantined=3)
    assert compaction.closed_days(pipeline, now) == []
    register(pipeline, 1, 20, 40)
    (day,) = compaction.closed_days(pipeline, now)
    compaction.compact(pipeline, day)
    paths = micro_batches.files_covering(pipeline, [span(0, 40)], "quarantined")
    assert len(paths) == 1
    assert [row["kafka_offset"] for row in rows_of(paths)] == [0, 1, 5, 6, 10, 11, 15, 16, 20, 21, 22]
    assert interval


def test_day_is_not_compacted_when_a_file_holds_other_rows_than_the_ledger_counts(pipeline: str) -> None:
    register(pipeline, 0, 0, 20)
    commit(pipeline, 0, 0, 10, quarantined=3)
    commit(pipeline, 1, 10, 20, quarantined=3)
    paths = micro_batches.files_covering(pipeline, [span(0, 20)], "quarantined")
    _, at = lake.filesystem(lake.uri(paths[0]))
    pq.write_table(pq.ParquetFile(at).read().slice(1), at)
    (day,) = compaction.closed_days(pipeline, datetime.now(UTC))
    with pytest.raises(TidemarkError, match="holds 2 rows, the ledger counts 3"):
        compaction.compact(pipeline, day)
    assert micro_batches.files_covering(pipeline, [span(0, 20)], "quarantined") == paths


def test_digest_differs_when_a_row_is_doubled_lost_or_changed_but_not_by_order() -> None:
    rows = [{"a": 1, "b": None}, {"a": 2, "b": b"x"}, {"a": 3, "b": b"y"}]

    def digest(*chosen: dict[str, Any]) -> compaction.RowDigest:
        return compaction.RowDigest().plus(pa.Table.from_pylist(list(chosen)))

    whole = digest(*rows)
    assert digest(*reversed(rows)) == whole
    assert digest(*rows[:2]) != whole
    assert digest(*rows, rows[0]) != whole
    assert digest(rows[0], rows[0], rows[2]) != whole
    # A file from before a column was added holds the same rows.
    assert digest({"a": 1}).plus(pa.Table.from_pylist(rows[1:])) == whole


def test_second_housekeeping_is_refused_while_one_runs(pipeline: str) -> None:
    with _alone(pipeline), pytest.raises(AnotherWriter, match="another housekeeping"), _alone(pipeline):
        pass
    with _alone(pipeline):
        assert True


def test_files_of_old_offsets_are_found_by_the_index_when_much_came_after(pipeline: str) -> None:
    with session() as ledger:
        connection = ledger.connection()
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        plan = connection.exec_driver_sql(
            "EXPLAIN SELECT 1 FROM micro_batch_ranges WHERE int8range(from_offset, until_offset) && int8range(5, 9)"
        )
        assert any("ix_micro_batch_ranges_span" in line for (line,) in plan)


@pytest.fixture
def attempt(postgres: Home) -> tuple[int, int]:
    """An interval of the declared pipeline with an attempt that has ended."""
    interval = register("nest_cameras", 0, 0, 10)
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


def catalogue(partition: str, location: str) -> None:
    """A table partition in the metastore's own tables, as Hive writes it."""
    engine = create_engine(settings().database("catalog"))
    with engine.begin() as connection:
        for statement in (
            """INSERT INTO "DBS" ("DB_ID", "DB_LOCATION_URI", "NAME") VALUES (1, 'file:/lake', 'lake')""",
            """INSERT INTO "SDS" ("SD_ID", "IS_COMPRESSED", "IS_STOREDASSUBDIRECTORIES", "LOCATION", "NUM_BUCKETS")
               VALUES (1, false, false, :location, 0)""",
            """INSERT INTO "TBLS" ("TBL_ID", "CREATE_TIME", "DB_ID", "LAST_ACCESS_TIME", "RETENTION", "TBL_NAME",
               "IS_REWRITE_ENABLED") VALUES (1, 0, 1, 0, 0, 'nest_cameras', false)""",
            """INSERT INTO "PARTITIONS" ("PART_ID", "CREATE_TIME", "LAST_ACCESS_TIME", "PART_NAME", "SD_ID", "TBL_ID")
               VALUES (1, 0, 0, :partition, 1, 1)""",
        ):
            connection.execute(text(statement), {"partition": partition, "location": location})
    engine.dispose()


def test_old_revisions_go_and_those_in_use_stay(postgres: Home, attempt: tuple[int, int]) -> None:
    pipeline = load_pipeline("nest_cameras")
    registered = revise(attempt, "r1", "registered", 30)
    old = [revise(attempt, f"r{n}", s, 8) for n, s in enumerate(("superseded", "rejected", "discarded", "built"), 2)]
    young = revise(attempt, "r6", "superseded", 6)
    pointed_at = revise(attempt, "r7", "superseded", 30)
    catalogue("date=2026-11-18/interval=2026-11-18T05", f"file:{pointed_at}")
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


def test_leftovers_of_killed_jobs_go_only_when_they_are_old(postgres: Home) -> None:
    pipeline, root = load_pipeline("nest_cameras"), Path(lake.filesystem(lake.root())[1])
    leftovers = [
        root / "landing" / "nest_cameras" / "0a1b2c3d-000000007-1" / "outcome=archived" / "part-0.parquet",
        root / "tables" / "nest_cameras" / "_staging-999" / "date=2026-11-20" / "part-0.parquet",
        root / "tables" / "nest_cameras" / "date=2026-11-20" / "interval=x" / "r20261120T000000-999" / "p.parquet",
        root / "quarantine" / "nest_cameras" / "0a1b2c3d-000000007-0000.parquet",
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
    assert len(keep_house(pipeline, dry_run=True, progress=quiet)["orphans"]) == 4
    assert all(path.exists() for path in leftovers)
    assert len(keep_house(pipeline, dry_run=False, progress=quiet)["orphans"]) == 4
    assert not any(path.exists() for path in leftovers)
