"""The table partitions of an interval's rows, and what is noted of their files."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from include.errors import TidemarkError
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Json, Pipeline
from include.times import Interval

pytestmark = pytest.mark.spark

START = datetime(2026, 11, 20, 23, tzinfo=UTC)
LATER = START + timedelta(hours=2)


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
    spark: Any, own_lake: Path, kind: str, event_time: str | None, partition: str, noted: str | None
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


@pytest.mark.parametrize("counts", [[1, 2, 3], []])
def test_view_is_not_delivered_when_its_rows_do_not_come_back_from_the_files(
    spark: Any, own_lake: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> None:
    from pyspark.sql import functions as F

    from spark_jobs.intervals import write
    from spark_jobs.spark.frames import frame_of

    pipeline = load_pipeline("nest_cameras")
    layout = write.view_layout(pipeline, pipeline.views[0])
    at = (START, START + timedelta(hours=1))
    keyed = frame_of(
        spark, [(f"9410{n}", *at, n) for n in counts], "zip_code STRING, s TIMESTAMP, e TIMESTAMP, count BIGINT"
    )
    window = F.struct(F.col("s").alias("start"), F.col("e").alias("end")).alias("window")
    view = keyed.select("zip_code", window, "count").persist()
    interval = Interval(START, START + timedelta(hours=1))
    kept = [each.rows for each in write.write_revisions(view, layout, interval, "r1-1")]
    assert kept == ([3] if counts else [])

    read_format = write.read_format

    def altered(*arguments: Any) -> Any:
        return read_format(*arguments).withColumn("count", F.col("count") + 1)

    monkeypatch.setattr(write, "read_format", altered)
    if counts:
        with pytest.raises(TidemarkError, match="3 rows were written as parquet, 3 come back") as failed:
            write.write_revisions(view, layout, interval, "r1-2")
        assert "in the columns count" in failed.value.message


def test_files_are_told_apart_when_columns_have_the_names_that_spark_and_gelf_give_to_theirs(
    spark: Any, own_lake: Path
) -> None:
    from spark_jobs.archive.schema import archive_schema, with_partition_columns
    from spark_jobs.intervals.write import archive_layout, write_counted
    from spark_jobs.spark.frames import frame_of

    columns = "at TIMESTAMP, _file STRING, _metadata STRUCT<file_name: STRING>"
    archive = Archive(rows="rings", columns=columns, event_time="at")
    pipeline = replace(pipeline_of("TIMESTAMP"), decoder=Json(schema=columns), archive=archive)
    values = [(at, f"{n}.py", (f"{n}.txt",), "bells", 0, n, at, 0) for n, at in enumerate((START, LATER))]
    rows = frame_of(spark, values, archive_schema(pipeline).toDDL()).selectExpr("*", "at AS event_time")
    interval = Interval(START, START + timedelta(hours=1))
    written = write_counted(with_partition_columns(pipeline, rows), archive_layout(pipeline), interval, "r1-1")
    assert [(built.partition.split("/")[0], built.rows) for built in written.revisions] == [
        ("date=2026-11-20", 1),
        ("date=2026-11-21", 1),
    ]
    assert {name.endswith(".parquet") for built in written.revisions for name in built.files} == {True}
