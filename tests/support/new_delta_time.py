"""A Delta table that was made without a TIMESTAMP_NTZ, and a declaration that gains one.

spark-submit tests/support/new_delta_time.py FILE

Writes to FILE, as JSON: the refusal, what Delta says without it, and what is found after the statement that it names.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include import lake
from include.errors import UsageError
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Pipeline
from spark_jobs.archive.delta import (
    append_batch,
    check_times,
    ensure_table,
    has_foreign_writes,
    latest_version,
    location,
    replace_rows,
)
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import archive_schema
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session

BEFORE = "id STRING, at TIMESTAMP"
NOW = f"{BEFORE}, place STRUCT<since: TIMESTAMP_NTZ>"


def pipeline_of(columns: str, name: str = "timed") -> Pipeline:
    archive = Archive(rows="rows", columns=columns, event_time="at", delta=True)
    return replace(load_pipeline("nest_cameras"), name=name, archive=archive, views=(), reports=())


def land(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    """The landing file of a micro-batch with a row."""
    values = {"place": F.struct(F.lit("2026-11-20 05:00:00").cast("TIMESTAMP_NTZ").alias("since")), "id": F.lit("a")}
    columns = [
        values.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in archive_schema(pipeline)
    ]
    spark.range(1).coalesce(1).select(*columns).write.parquet(lake.uri("landing/timed"))
    return [f"landing/timed/{each.name}" for each in lake.list_files(lake.uri("landing/timed"))]


def main(argv: list[str]) -> int:
    spark = build_session("new delta time")
    before, now = pipeline_of(BEFORE), pipeline_of(NOW)
    found: dict[str, object] = {}
    # There is no table yet, or it needs nothing.
    check_times(spark, now)
    ensure_table(spark, before)
    check_times(spark, before)
    made = latest_version(spark, now)
    landed = land(spark, now)
    try:
        append_batch(spark, now, landed, "query", 0)
    except Py4JJavaError as error:
        found["delta"] = str(error.java_exception)
    try:
        check_times(spark, now)
    except UsageError as refused:
        found["refused"], remedy = refused.message, refused.remedy
        (statement,) = re.findall("sql '(.+)'", remedy)
        spark.sql(statement)
    check_times(spark, now)
    append_batch(spark, now, landed, "query", 0)
    found["rows"] = [str(row["place"]["since"]) for row in spark.read.format("delta").load(location(now)).collect()]
    found["foreign"] = has_foreign_writes(spark, now, made, latest_version(spark, now))
    rows = read_files(spark, landed, archive_schema(now)).withColumn("interval", F.lit("a"))
    own = [replace_rows(now, f"interval = '{label}'", rows.where(F.lit(label == "a")), {}) for label in ("a", "b", "b")]
    append_batch(spark.newSession(), now, landed, "query", 1)
    own.append(replace_rows(now, "interval = 'a'", rows, {}))
    found["own"] = [version and version - (own[0] or 0) for version in own]
    of_new = pipeline_of(NOW, "timed_from_the_beginning")
    ensure_table(spark, of_new)
    check_times(spark, of_new)
    Path(argv[0]).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
