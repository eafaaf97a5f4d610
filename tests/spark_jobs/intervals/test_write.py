"""The table partitions of an interval's rows, and what is noted of their files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Json, Pipeline
from include.settings import settings
from include.times import Interval

pytestmark = pytest.mark.spark

START = datetime(2026, 11, 20, 23, tzinfo=UTC)
LATER = START + timedelta(hours=2)


@pytest.fixture
def lake_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A lake without services."""
    monkeypatch.setenv("TIDEMARK_LAKE", tmp_path.as_uri())
    settings.cache_clear()
    yield
    settings.cache_clear()


def pipeline_of(kind: str) -> Pipeline:
    columns = f"bell_id STRING, at {kind}"
    archive = Archive(rows="rings", columns=columns, event_time="at")
    decoder = Json(schema=columns)
    return replace(load_pipeline("isp_hits"), decoder=decoder, archive=archive, views=(), reports=(), outputs=())


@pytest.mark.parametrize(
    ("kind", "event_time", "partition", "noted"),
    [
        ("TIMESTAMP", None, "date=2026-11-21", None),
        ("TIMESTAMP", "2026-11-19 01:00:00", "date=2026-11-19", "2026-11-19T01:00:00.000000Z"),
        ("TIMESTAMP_NTZ", "2026-11-19 01:00:00", "date=2026-11-19", "2026-11-19T01:00:00.000000Z"),
        ("DATE", "2026-11-19", "date=2026-11-19", "2026-11-19T00:00:00.000000Z"),
        ("STRING", "2026-11-19T01:00:00Z", "date=2026-11-19", "2026-11-19T01:00:00.000000Z"),
        ("STRING", "soon", "date=2026-11-21", None),
    ],
)
def test_row_lies_in_the_partition_of_its_record_s_date_when_it_has_no_event_time(
    spark: Any, lake_here: None, kind: str, event_time: str | None, partition: str, noted: str | None
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.archive.schema import archive_schema, with_partition_columns
    from spark_jobs.intervals.write import archive_layout, write_counted

    pipeline = pipeline_of(kind)
    kinds = {
        each.name: "STRING" if each.name == "at" else each.dataType.simpleString() for each in archive_schema(pipeline)
    }
    values = {"bell_id": "b", "at": event_time, "kafka_topic": "bells", "kafka_partition": 0, "kafka_offset": 7,
              "kafka_timestamp": LATER, "kafka_element": 0}  # fmt: skip
    text = spark.createDataFrame([tuple(values[name] for name in kinds)], ", ".join(map(" ".join, kinds.items())))
    rows = text.withColumn("at", F.col("at").cast(kind)).withColumn("event_time", F.col("at"))
    interval = Interval(START, START + timedelta(hours=1))
    written = write_counted(with_partition_columns(pipeline, rows), archive_layout(pipeline), interval, "r1-1")
    (built,) = written.revisions
    assert (built.partition, built.rows) == (f"{partition}/interval=2026-11-20T23", 1)
    ((_, described),) = built.files.items()
    assert described.get("event_time") == (noted and [noted, noted])
