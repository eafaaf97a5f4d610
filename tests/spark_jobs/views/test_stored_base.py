"""The base of a speed view: what a micro-batch reads of a long history, and what it adds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from include.pipelines import load_pipeline
from spark_jobs.spark.frames import frame_of
from spark_jobs.views.stored_base import StoredBase, day_of
from spark_jobs.views.values import key_json

VIEW = load_pipeline("nest_cameras").views[0]
BEGIN = datetime(2025, 1, 1, tzinfo=UTC)
DAYS = 60
HOUR = timedelta(hours=1)


def keyed(spark: Any, counts: list[tuple[str, datetime, int]]) -> Any:
    """Rows as the base and a micro-batch have them: zip code, start of the hour, count."""
    rows = frame_of(
        spark, [(z, at, at + HOUR, n) for z, at, n in counts], "z STRING, s TIMESTAMP, e TIMESTAMP, n BIGINT"
    )
    window = F.struct(F.col("s").alias("start"), F.col("e").alias("end")).alias("window")
    named = rows.select(F.col("z").alias("zip_code"), window, F.col("n").alias("count"))
    return named.select(key_json(VIEW).alias("key"), "count", day_of(VIEW))


def added(spark: Any, base: StoredBase, counts: list[tuple[str, datetime, int]]) -> dict[tuple[str, str], int]:
    """The sums by zip code and start."""
    state = keyed(spark, counts)
    days = {at.strftime("%Y-%m-%d") for _, at, _ in counts}
    key = F.from_json("key", "zip_code STRING, window STRUCT<start: STRING>")
    rows = base.added_to(state, days).select(key["zip_code"], key["window"]["start"], "count").collect()
    assert len(rows) == len({row[:2] for row in rows})
    return {(zip_code, start[:13]): count for zip_code, start, count in rows}


@pytest.fixture(scope="module")
def location(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "hourly_counts.base-1"
    history = [("94103", BEGIN + timedelta(days=day, hours=5), 100 + day) for day in range(DAYS)]
    StoredBase.write(keyed(spark, history), str(folder))
    return folder


def test_only_its_own_days_are_read_when_a_micro_batch_reads_the_base(
    spark: Any, location: Path, tmp_path: Path
) -> None:
    there = tmp_path / "base"
    shutil.copytree(location, there)
    base = StoredBase(spark, VIEW, str(there))
    assert len(base.every().inputFiles()) == DAYS
    for day in there.glob("day=*"):
        if day.name != "day=2025-01-10":
            shutil.rmtree(day)
    at = BEGIN + timedelta(days=9, hours=5)
    assert added(spark, base, [("94103", at, 1), ("10001", at, 2)]) == {
        ("94103", "2025-01-10T05"): 110,
        ("10001", "2025-01-10T05"): 2,
    }
    # After the history there is nothing to read.
    shutil.rmtree(there)
    assert added(spark, base, [("94103", BEGIN + timedelta(days=DAYS), 3)]) == {("94103", "2025-03-02T00"): 3}


def test_each_micro_batch_adds_to_its_base_when_several_have_several_days(spark: Any, location: Path) -> None:
    base = StoredBase(spark, VIEW, str(location))
    for day in (3, 4, 3):
        two = [("94103", BEGIN + timedelta(days=day + more, hours=5), 1) for more in range(2)]
        assert sorted(added(spark, base, two).values()) == [101 + day, 102 + day]


def test_keys_of_the_whole_base_are_kept_when_a_view_is_in_complete_mode(spark: Any, location: Path) -> None:
    complete = StoredBase(spark, replace(VIEW, mode="complete"), str(location))
    sums = added(spark, complete, [("94103", BEGIN + timedelta(hours=5), 1)])
    assert len(sums) == DAYS
    assert sums["94103", "2025-01-01T05"] == 101


def test_lost_or_changed_file_is_named_when_the_base_has_noted_its_files(
    spark: Any, location: Path, tmp_path: Path
) -> None:
    def damaged(name: str, change: Callable[[Path], object]) -> str:
        there = tmp_path / name
        shutil.copytree(location, there)
        [file] = there.glob("day=2025-01-10/*.parquet")
        change(file)
        return StoredBase(spark, VIEW, str(there)).damage()

    assert damaged("as written", lambda file: None) == ""
    assert damaged("file", Path.unlink).startswith("file missing: day=2025-01-10/part-")
    assert damaged("day", lambda file: shutil.rmtree(file.parent)).startswith("file missing: day=2025-01-10/part-")
    assert damaged("cut", lambda file: file.write_bytes(b"PAR1")).startswith("wrong size: day=2025-01-10/part-")
    assert damaged("more", lambda file: shutil.copy(file, file.with_name("part-copy.parquet"))) == ""
    torn = damaged("torn", lambda file: (tmp_path / "torn/_files.json").write_text(""))
    assert torn == "file missing: _files.json"
    assert StoredBase(spark, VIEW, str(tmp_path / "nowhere")).damage() == "there is no such folder"


def test_micro_batch_fails_when_a_file_of_the_base_is_lost_meanwhile(
    spark: Any, location: Path, tmp_path: Path
) -> None:
    there = tmp_path / "base"
    shutil.copytree(location, there)
    base = StoredBase(spark, VIEW, str(there))
    [file] = there.glob("day=2025-01-10/*.parquet")
    file.unlink()
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        added(spark, base, [("94103", BEGIN + timedelta(days=9, hours=5), 1)])


def test_base_counts_as_before_when_nobody_noted_its_files(spark: Any, location: Path, tmp_path: Path) -> None:
    there = tmp_path / "base"
    shutil.copytree(location, there)
    (there / "_files.json").unlink()
    base = StoredBase(spark, VIEW, str(there))
    assert base.damage() == ""
    assert base.every().count() == DAYS
    at = BEGIN + timedelta(days=9, hours=5)
    assert added(spark, base, [("94103", at, 1)]) == {("94103", "2025-01-10T05"): 110}


def test_base_counts_as_before_when_it_was_written_without_days(spark: Any, tmp_path: Path) -> None:
    at = BEGIN + timedelta(hours=5)
    keyed(spark, [("94103", at, 7)]).drop("day").write.parquet(str(tmp_path / "old"))
    base = StoredBase(spark, VIEW, str(tmp_path / "old"))
    assert added(spark, base, [("94103", at, 1)]) == {("94103", "2025-01-01T05"): 8}
    assert base.every().count() == 1


def test_nothing_is_added_when_the_history_is_empty(spark: Any, tmp_path: Path) -> None:
    StoredBase.write(keyed(spark, []), str(tmp_path / "empty"))
    base = StoredBase(spark, VIEW, str(tmp_path / "empty"))
    assert added(spark, base, [("94103", BEGIN, 1)]) == {("94103", "2025-01-01T00"): 1}
    assert base.every().count() == 0


def test_sum_is_null_only_when_base_and_state_have_none(spark: Any, tmp_path: Path) -> None:
    at, none = BEGIN + timedelta(hours=5), cast(int, None)
    StoredBase.write(keyed(spark, [("base", at, 7), ("both", at, none), ("state", at, none)]), str(tmp_path / "nulls"))
    base = StoredBase(spark, VIEW, str(tmp_path / "nulls"))
    found = added(spark, base, [("base", at, none), ("both", at, none), ("state", at, 2), ("new", at, none)])
    sums = {zip_code: count for (zip_code, _), count in found.items()}
    assert sums == {"base": 7, "both": None, "state": 2, "new": None}


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_no_digit_is_lost_when_a_measure_is_a_decimal(spark: Any, tmp_path: Path, mode: Any) -> None:
    columns = VIEW.columns.replace("count BIGINT", "count DECIMAL(38,8)")
    assert columns != VIEW.columns
    view = replace(VIEW, columns=columns, mode=mode)

    def rows(amount: str) -> Any:
        counts = keyed(spark, [("94103", BEGIN, 1)])
        return counts.withColumn("count", F.lit(amount).cast("DECIMAL(38,8)"))

    StoredBase.write(rows("1.00000045"), str(tmp_path / "decimals"))
    base = StoredBase(spark, view, str(tmp_path / "decimals"))
    [row] = base.added_to(rows("2.00000046"), {"2025-01-01"}).collect()
    assert row["count"] == Decimal("3.00000091")
