"""Compaction of closed days, on a real PostgreSQL, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.errors import AnotherWriter, ServiceUnreachable, TidemarkError
from include.housekeeping import compaction
from include.lake import row_groups
from include.lake.scan import scan_files
from include.ledger import quarantine
from include.ledger.archive import landing_files, removal
from include.ledger.archive.landing_files import LandingFile
from include.ledger.database import session
from include.ledger.erasures import unfinished
from include.ledger.models import IntervalRange, MicroBatch, MicroBatchRange
from include.offsets import Fate
from tests.support.committed import DAY, TP, commit, register, span


def rows_of(paths: list[str]) -> list[dict[str, Any]]:
    tables = [pq.ParquetFile(lake.filesystem(lake.uri(path))[1]).read() for path in paths]
    return sorted(pa.concat_tables(tables).to_pylist(), key=lambda row: row["kafka_offset"])


@pytest.mark.services
def test_day_is_compacted_into_one_file_and_again_when_more_of_it_is_settled(pipeline: str) -> None:
    interval = register(pipeline, 0, 0, 20)
    for number in range(4):
        commit(pipeline, number, 5 * number, 5 * number + 5, quarantined=2, empty=1)
    now = datetime.now(UTC)
    before = rows_of(landing_files.files_covering(pipeline, [span(0, 20)], "quarantined"))
    days = [*compaction.closed_days(pipeline, now)]
    assert [(day.fate, len(day.files)) for day in days] == [("empty", 4), ("quarantined", 4)]
    for day in days:
        compaction.compact(pipeline, day, lambda: None)
    assert [*compaction.closed_days(pipeline, now)] == []
    for offsets in ([span(0, 20)], [span(6, 7)]):
        paths = landing_files.files_covering(pipeline, offsets, "quarantined")
        assert len(paths) == 1
        assert rows_of(paths) == before

    # A batch that was not settled then joins the same file.
    commit(pipeline, 4, 20, 30, quarantined=3)
    assert [*compaction.closed_days(pipeline, now)] == []
    register(pipeline, 1, 20, 40)
    (day,) = compaction.closed_days(pipeline, now)
    compaction.compact(pipeline, day, lambda: None)
    paths = landing_files.files_covering(pipeline, [span(0, 40)], "quarantined")
    assert len(paths) == 1
    assert [row["kafka_offset"] for row in rows_of(paths)] == [0, 1, 5, 6, 10, 11, 15, 16, 20, 21, 22]
    assert interval


@pytest.mark.services
def test_day_is_not_compacted_when_a_file_holds_other_rows_than_the_ledger_counts(pipeline: str) -> None:
    register(pipeline, 0, 0, 20)
    commit(pipeline, 0, 0, 10, quarantined=3)
    commit(pipeline, 1, 10, 20, quarantined=3)
    paths = landing_files.files_covering(pipeline, [span(0, 20)], "quarantined")
    _, at = lake.filesystem(lake.uri(paths[0]))
    pq.write_table(pq.ParquetFile(at).read().slice(1), at)
    (day,) = compaction.closed_days(pipeline, datetime.now(UTC))
    with pytest.raises(TidemarkError, match=r"holds 2 rows, the ledger counts 3.*doctor --deep"):
        compaction.compact(pipeline, day, lambda: None)
    assert landing_files.files_covering(pipeline, [span(0, 20)], "quarantined") == paths


@pytest.mark.services
def test_nothing_is_merged_when_an_erasure_wrote_a_file_anew_meanwhile(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(pipeline, 0, 0, 20)
    commit(pipeline, 0, 0, 10, quarantined=3)
    commit(pipeline, 1, 10, 20, quarantined=3)
    first, second = landing_files.files_covering(pipeline, [span(0, 20)], "quarantined")
    merge, anew = compaction._merge, first.replace(".parquet", "-e1.parquet")

    def merge_before_the_erasure(*arguments: Any) -> compaction.RowDigest:
        digest = merge(*arguments)
        record = (TP.topic, TP.partition, 1)
        unfinished.swap_file(first, LandingFile(Fate.QUARANTINED, anew, 2, 10), [record], {record: 1})
        return digest

    monkeypatch.setattr(compaction, "_merge", merge_before_the_erasure)
    (day,) = compaction.closed_days(pipeline, datetime.now(UTC))
    with pytest.raises(AnotherWriter, match="nothing was changed"):
        compaction.compact(pipeline, day, lambda: None)
    assert landing_files.files_covering(pipeline, [span(0, 20)], "quarantined") == sorted([anew, second])
    # The merged file holds the erased record.
    assert {lake.below_lake(at) for at in scan_files("quarantine", pipeline)} == {first, second}


@pytest.mark.services
def test_no_hidden_file_stays_when_a_day_is_not_merged(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure looks for rows in visible files only."""
    register(pipeline, 0, 0, 20)
    commit(pipeline, 0, 0, 10, quarantined=3)
    commit(pipeline, 1, 10, 20, quarantined=3)
    folder = lake.uri("quarantine", pipeline)
    before = [entry.name for entry in lake.list_entries(folder)]
    (day,) = compaction.closed_days(pipeline, datetime.now(UTC))

    def lost(*_: Any) -> Any:
        raise ServiceUnreachable("the lock was lost")

    with pytest.raises(ServiceUnreachable):
        compaction.compact(pipeline, day, lost)
    assert [entry.name for entry in lake.list_entries(folder)] == before
    monkeypatch.setattr(compaction.RowDigest, "plus", lost)
    with pytest.raises(ServiceUnreachable):
        compaction.compact(pipeline, day, lambda: None)
    assert [entry.name for entry in lake.list_entries(folder)] == before


@pytest.mark.services
@pytest.mark.parametrize("damage", ["row lost", "value changed"])
def test_day_is_not_compacted_when_its_file_does_not_read_back_as_its_sources(
    pipeline: str, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    register(pipeline, 0, 0, 20)
    commit(pipeline, 0, 0, 10, quarantined=3)
    commit(pipeline, 1, 10, 20, quarantined=3)
    paths = landing_files.files_covering(pipeline, [span(0, 20)], "quarantined")
    (day,) = compaction.closed_days(pipeline, datetime.now(UTC))
    read = compaction._read

    def read_damaged(location: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        for table in read(location, columns):
            if not location.rsplit("/", 1)[-1].startswith("."):
                yield table
            elif damage == "row lost":
                yield table.slice(1)
            else:
                yield table.set_column(table.column_names.index("value"), "value", pa.array([b"y"] * table.num_rows))

    monkeypatch.setattr(compaction, "_read", read_damaged)
    with pytest.raises(TidemarkError, match="or other values; nothing was changed"):
        compaction.compact(pipeline, day, lambda: None)
    assert landing_files.files_covering(pipeline, [span(0, 20)], "quarantined") == paths
    assert {lake.below_lake(at) for at in scan_files("quarantine", pipeline)} == set(paths)
    assert compaction.leftovers(pipeline) == {}


@pytest.mark.services
def test_file_of_a_merge_that_was_killed_is_found(pipeline: str) -> None:
    register(pipeline, 0, 0, 20)
    commit(pipeline, 0, 0, 10, quarantined=3)
    commit(pipeline, 1, 10, 20, quarantined=3)
    assert compaction.leftovers(pipeline) == {}
    (day,) = compaction.closed_days(pipeline, datetime.now(UTC))
    left = f"{lake.uri('quarantine', pipeline)}/.{day.day}-{day.fate}"
    lake.write_bytes(left, b"half")
    assert compaction.leftovers(pipeline) == {left: 4}


def compact_recreated(pipeline: str, *rows: dict[str, int]) -> None:
    """Compact the files of two micro-batches, of a topic and of its successor of the same name, with rows per fate."""
    intervals = [register(pipeline, number, 0, 10) for number in range(2)]
    batches = [commit(pipeline, number, 0, 10, **each) for number, each in enumerate(rows)]
    with session() as ledger:
        for row in (
            ledger.query(MicroBatchRange).filter_by(micro_batch_id=batches[1]).one(),
            ledger.query(IntervalRange).filter_by(interval_id=intervals[1]).one(),
        ):
            row.topic_id = "newer"
    for day in compaction.closed_days(pipeline, datetime.now(UTC)):
        compaction.compact(pipeline, day, lambda: None)


@pytest.mark.services
def test_quarantined_records_stay_apart_when_a_topic_was_recreated_on_their_day(pipeline: str) -> None:
    compact_recreated(pipeline, {"quarantined": 3}, {"quarantined": 3})
    found = [file.origin(TP, 1).topic_id for file in quarantine.files(pipeline)]
    assert found == ["id", "newer"]


@pytest.mark.services
def test_empty_records_stay_apart_when_a_topic_was_recreated_on_their_day(pipeline: str) -> None:
    compact_recreated(pipeline, {"empty": 2}, {"empty": 3})
    for topic_id, offsets in (("id", [0, 1]), ("newer", [0, 1, 2])):
        paths = landing_files.files_covering(pipeline, [replace(span(0, 10), topic_id=topic_id)], Fate.EMPTY)
        assert [row["kafka_offset"] for row in rows_of(paths)] == offsets


@pytest.mark.services
def test_merged_files_are_listed_once_per_fate_when_many_days_are_due(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(pipeline, 0, 0, 30)
    for number in range(3):
        batch = commit(pipeline, number, 10 * number, 10 * number + 10, quarantined=3, empty=1)
        with session() as ledger:
            ledger.get_one(MicroBatch, batch).committed_at = DAY + timedelta(days=number)
    scan, listed = compaction.scan_files, []
    monkeypatch.setattr(compaction, "scan_files", lambda *parts: listed.append(parts) or scan(*parts))
    days = [(day.fate, day.day) for day in compaction.closed_days(pipeline, datetime.now(UTC))]
    assert len(set(days)) == 6
    assert len(listed) == len(set(listed)) == 2


@pytest.mark.services
def test_day_is_merged_before_all_later_ones_are_read(pipeline: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After missed runs of housekeeping all days are due at once."""
    monkeypatch.setattr(removal, "_AT_ONCE", 1)
    register(pipeline, 0, 0, 60)
    for number in range(6):
        batch = commit(pipeline, number, 10 * number, 10 * number + 10, quarantined=3)
        with session() as ledger:
            ledger.get_one(MicroBatch, batch).committed_at = DAY + timedelta(days=number // 2)
    read, batches = landing_files.files_of, []
    monkeypatch.setattr(landing_files, "files_of", lambda ids, fates: batches.extend(ids) or read(ids, fates))
    days = compaction.closed_days(pipeline, datetime.now(UTC))
    first = next(days)
    assert (first.day, len(first.files)) == (DAY.date(), 2)
    assert len(batches) == 3
    compaction.compact(pipeline, first, lambda: None)
    assert [(each.day, len(each.files)) for each in days] == [
        ((DAY + timedelta(days=number)).date(), 2) for number in (1, 2)
    ]


def test_large_records_are_merged_in_portions_and_row_groups_of_bounded_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_lake: Path
) -> None:
    bound, each = 1 << 20, 3_000
    monkeypatch.setattr(row_groups, "ROW_GROUP_BYTES", bound)
    for number in range(2):
        values = [b"%d " % n * 200 for n in range(each)]
        offsets = [*range(number * each, number * each + each)]
        pq.write_table(pa.table({"kafka_offset": offsets, "value": values}), tmp_path / f"{number}.parquet")
    plus, digested = compaction.RowDigest.plus, []

    def plus_noted(self: compaction.RowDigest, table: pa.Table) -> compaction.RowDigest:
        digested.append(table.nbytes)
        return plus(self, table)

    monkeypatch.setattr(compaction.RowDigest, "plus", plus_noted)
    noted = {"0.parquet": each, "1.parquet": each}
    digest = compaction._merge("p", [*noted], noted, f"{tmp_path.as_uri()}/merged")
    assert digest.rows == 2 * each
    merged = pq.ParquetFile(tmp_path / "merged")
    sizes = [merged.read_row_group(number).nbytes for number in range(merged.num_row_groups)]
    assert max(sizes) < 3 * bound
    assert max(digested) < 2 * bound
    assert merged.read()["kafka_offset"].to_pylist() == [*range(2 * each)]


def day_of(fate: Fate, *tables: pa.Table) -> tuple[compaction.Day, dict[str, int]]:
    """A day with a file for each table, written, and the numbers of their rows."""
    paths = {f"{number}.parquet": table for number, table in enumerate(tables)}
    for path, table in paths.items():
        pq.write_table(table, lake.filesystem(lake.uri(path))[1])
    files = tuple(LandingFile(fate, path, table.num_rows, 10) for path, table in paths.items())
    return compaction.Day(fate, DAY.date(), files), {path: table.num_rows for path, table in paths.items()}


@pytest.fixture
def lake_alone(own_lake: Path) -> str:
    return own_lake.as_uri()


def test_empty_records_are_merged_when_a_transform_returned_another_type_that_day(lake_alone: str) -> None:
    coordinates = {"kafka_topic": ["events"] * 2, "kafka_partition": [0] * 2, "kafka_timestamp": [DAY] * 2}
    kinds = pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32()
    day, noted = day_of(
        Fate.EMPTY,
        *(
            pa.table({**coordinates, "kafka_offset": [2 * n, 2 * n + 1], "at": pa.nulls(2, kind)})
            for n, kind in enumerate(kinds)
        ),
    )
    compaction._merged("p", day, noted, target := f"{lake_alone}/merged")
    merged = pq.ParquetFile(lake.filesystem(target)[1]).read()
    assert merged.select([*coordinates, "kafka_offset"]).to_pylist() == [
        {"kafka_topic": "events", "kafka_partition": 0, "kafka_timestamp": DAY, "kafka_offset": offset}
        for offset in range(6)
    ]
    assert "at" not in merged.column_names


def test_only_its_day_is_left_when_files_do_not_go_together(lake_alone: str) -> None:
    kinds = pa.int64(), pa.string()
    day, noted = day_of(Fate.QUARANTINED, *(pa.table({"kafka_offset": pa.nulls(1, kind)}) for kind in kinds))
    with pytest.raises(TidemarkError, match=r"files of quarantined records of 2026-11-18 cannot be merged \(.*int64"):
        compaction._merged("p", day, noted, f"{lake_alone}/merged")


def test_digest_counts_a_timestamp_when_python_cannot_hold_it() -> None:
    def digest(*moments: int) -> compaction.RowDigest:
        return compaction.RowDigest().plus(pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC"))}))

    far = 1763615107000 * 10**6
    assert digest(far, 0) == digest(0, far)
    assert digest(far, 0) != digest(far + 1000, 0)
    assert digest(far, 0) != digest(far)


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
