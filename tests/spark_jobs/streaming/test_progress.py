"""Spark's progress as rows: what it leaves out counts as nothing, and a ledger that is away stops nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from include.errors import ServiceUnreachable
from include.ledger.streams import progress
from include.ledger.streams.progress import QueryProgress
from spark_jobs.streaming.progress import ProgressNotes, last_progress, read_progress

TOLD: dict[str, Any] = {
    "batchId": 12,
    "timestamp": "2026-11-20T05:00:00.250Z",
    "numInputRows": 300,
    "inputRowsPerSecond": 100.5,
    "processedRowsPerSecond": 150.0,
    "durationMs": {"addBatch": 1500, "walCommit": 100, "triggerExecution": 2000},
    "eventTime": {"watermark": "2026-11-20T04:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 5, "memoryUsedBytes": 100}, {"numRowsTotal": 2, "memoryUsedBytes": 50}],
}
READ = QueryProgress(
    "archive", 12, datetime(2026, 11, 20, 5, 0, 0, 250_000, tzinfo=UTC), 300, 100.5, 150.0, 2.0,
    {"addBatch": 1.5, "walCommit": 0.1}, datetime(2026, 11, 20, 4, tzinfo=UTC), 7, 150,
)  # fmt: skip


def query_that_told(told: dict[str, Any] | None) -> Any:
    last = None if told is None else SimpleNamespace(json=lambda: json.dumps(told))
    return SimpleNamespace(_jsq=SimpleNamespace(lastProgress=lambda: last))


def test_progress_is_read_when_spark_reports_it() -> None:
    assert read_progress("archive", TOLD) == READ


@pytest.mark.parametrize("rate", [None, "NaN", "Infinity", float("nan"), float("inf")])
def test_rate_counts_as_nothing_when_spark_could_not_measure_it(rate: object) -> None:
    assert read_progress("archive", {**TOLD, "inputRowsPerSecond": rate}).input_rate == 0


def test_progress_is_read_when_spark_leaves_out_what_a_query_without_data_lacks() -> None:
    before = {"watermark": "1970-01-01T00:00:00.000Z"}
    read = read_progress("archive", {"batchId": 0, "timestamp": TOLD["timestamp"], "eventTime": before})
    assert (read.input_rows, read.seconds, read.watermark, read.state_rows) == (0, 0.0, None, 0)


def test_progress_is_noted_once_when_it_repeats_and_an_outage_costs_only_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[QueryProgress] = []
    failures: list[Exception] = [ServiceUnreachable("PostgreSQL is away")]

    def note(pipeline: str, told: list[QueryProgress]) -> None:
        if failures:
            raise failures.pop()
        noted.extend(told)

    monkeypatch.setattr(progress, "note", note)
    queries = {"archive": query_that_told(TOLD), "hourly_counts": query_that_told(None)}
    notes = ProgressNotes("nest_cameras", lambda: queries)
    for _ in range(3):
        notes._look()
    assert noted == [READ]


@pytest.mark.spark
def test_progress_of_a_real_query_is_told_also_when_it_has_ended(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lines.txt").write_text("a\nb\nc\n")
    lines = spark.readStream.text((tmp_path / "in").as_uri()).groupBy("value").count()
    writer = lines.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", (tmp_path / "checkpoint").as_uri()).start()
    assert query.awaitTermination(60)
    told = last_progress("counts", query)
    assert told is not None
    assert (told.query, told.batch_id, told.input_rows, told.state_rows) == ("counts", 0, 3, 3)
    assert told.processing_rate > 0
    assert {"addBatch", "walCommit"} <= told.parts.keys()
    assert told.seconds >= told.parts["addBatch"] > 0
