"""Delta tables that cannot take declared columns: a TIMESTAMP_NTZ that is new, and one widened meanwhile.

spark-submit tests/support/new_delta_time.py FILE

Writes to FILE, as JSON: each refusal, what Delta says without it, and what is found after the statement that it names.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include import lake
from include.errors import UsageError
from include.iceberg.statement import INTERVAL
from include.lake.delta_log import commit_id
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Pipeline
from spark_jobs.archive.delta import (
    append_batch,
    check_table,
    ensure_table,
    latest_version,
    location,
    replace_rows,
)
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import archive_schema
from spark_jobs.publication.delta_versions import has_foreign_writes, shown_columns
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session

BEFORE = "id STRING, at TIMESTAMP"
NOW = f"{BEFORE}, place STRUCT<since: TIMESTAMP_NTZ>"

NARROW = f"{BEFORE}, small TINYINT, place STRUCT<floor: INT>"
WIDE = f"{BEFORE}, small INT, place STRUCT<floor: BIGINT>"


def pipeline_of(columns: str, name: str = "timed") -> Pipeline:
    archive = Archive(rows="rows", columns=columns, event_time="at", delta=True)
    return replace(load_pipeline("nest_cameras"), name=name, archive=archive, views=(), reports=())


def land(spark: SparkSession, pipeline: Pipeline) -> list[str]:
    """The landing file of a micro-batch with a row."""
    since, floor = F.lit("2026-11-20 05:00:00").cast("TIMESTAMP_NTZ").alias("since"), F.lit(2**40).alias("floor")
    place = F.struct(since if "since" in pipeline.archive_columns else floor)
    values = {"place": place, "id": F.lit("a"), "small": F.lit(7)}
    columns = [
        values.get(each.name, F.lit(None)).cast(each.dataType).alias(each.name) for each in archive_schema(pipeline)
    ]
    spark.range(1).coalesce(1).select(*columns).write.parquet(lake.uri(folder := f"landing/{pipeline.name}"))
    return [f"{folder}/{each.name}" for each in lake.list_files(lake.uri(folder))]


def take(spark: SparkSession, now: Pipeline, landed: list[str]) -> dict[str, str]:
    """Append rows to a table that cannot take them, do what the refusal says, and append them; what was said."""
    said = {}
    try:
        append_batch(spark, now, landed, "query", 0)
    except (AnalysisException, Py4JJavaError) as error:
        said["delta"] = str(error)
    try:
        check_table(spark, now)
    except UsageError as refused:
        said["refused"] = refused.message
        (statement,) = re.findall("sql '(.+)'", refused.remedy)
        spark.sql(statement)
    check_table(spark, now)
    append_batch(spark, now, landed, "query", 0)
    return said


def main(argv: list[str]) -> int:
    spark = build_session("new delta time")
    before, now = pipeline_of(BEFORE), pipeline_of(NOW)
    found: dict[str, object] = {}
    # There is no table yet, or it needs nothing.
    check_table(spark, now)
    ensure_table(spark, before)
    check_table(spark, before)
    made = latest_version(spark, now)
    # Nothing has added the new column yet.
    found["shown"] = shown_columns(spark, now, made)
    landed = land(spark, now)
    found.update(take(spark, now, landed))
    found["rows"] = [str(row["place"]["since"]) for row in spark.read.format("delta").load(location(now)).collect()]
    found["foreign"] = has_foreign_writes(spark, now, made, latest_version(spark, now))
    rows = read_files(spark, landed, archive_schema(now)).withColumn("interval", F.lit("a"))
    own = [replace_rows(now, f"interval = '{label}'", rows.where(F.lit(label == "a")), {}) for label in ("a", "b", "b")]
    append_batch(spark.newSession(), now, landed, "query", 1)
    own.append(replace_rows(now, "interval = 'a'", rows, {}))
    known = latest_version(spark, now)
    replace_rows(now, "interval = 'a'", rows, {INTERVAL: "a"})
    newest = latest_version(spark, now)
    found["of others"] = [has_foreign_writes(spark, now, known, newest, labels) for labels in (("a", "b"), ("b",))]
    found["commits"] = [commit_id(location(now), version) for version in (known, newest, newest + 1)]
    found["own"] = [version and version - (own[0] or 0) for version in own]
    narrow, wide = pipeline_of(NARROW, "widened"), pipeline_of(WIDE, "widened")
    ensure_table(spark, narrow)
    found["widened"] = take(spark, wide, land(spark, wide))
    table = spark.read.format("delta").load(location(wide))
    found["types"] = [table.schema[name].dataType.simpleString() for name in ("small", "place")]
    found["wide rows"] = [[row["small"], row["place"]["floor"]] for row in table.collect()]
    # Others may add columns.
    table.withColumn("heading", F.lit(1)).write.format("delta").mode("append").option("mergeSchema", "true").save(
        location(wide)
    )
    check_table(spark, wide)
    of_new = pipeline_of(NOW, "timed_from_the_beginning")
    ensure_table(spark, of_new)
    check_table(spark, of_new)
    Path(argv[0]).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
