"""A table that gets new columns and wider types between two intervals, and what Spark reads of it then.

spark-submit tests/support/changed_columns.py FILE

Writes to FILE, as JSON: `locations` of both revisions, `rows` of the table, the error of a narrower declaration, and
what becomes of an unused table.
All the while, Hive's client finds the configuration of a metastore that is not there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from include import lake
from include.catalog.declared import check_storage
from include.errors import UsageError
from include.ledger.lineage import BuiltRevision
from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Pipeline
from include.times import Interval
from spark_jobs.archive.schema import archive_schema
from spark_jobs.intervals.write import archive_layout, revision_name, write_revisions
from spark_jobs.publication.catalog import Catalog
from spark_jobs.publication.unregistered import make_anew
from spark_jobs.spark.entry import run_entry
from spark_jobs.spark.session import build_session

BEFORE = """id STRING, n INT, small SMALLINT, x FLOAT, price DECIMAL(5, 2), day DATE, of STRUCT<a: INT>,
    many ARRAY<INT>, at TIMESTAMP"""
NOW = """id STRING, extra STRING, n BIGINT, small INT, x DOUBLE, price DECIMAL(12, 4), day DATE,
    of STRUCT<a: BIGINT, b: STRING>, many ARRAY<BIGINT>, at TIMESTAMP"""
START = datetime(2026, 11, 20, 5, tzinfo=UTC)

VALUES = "'{id}' AS id, 7 AS n, 7 AS small, 0.5 AS x, 1.25 AS price, DATE'2026-11-20' AS day, array(7) AS many"
ROWS = {
    BEFORE: f"{VALUES.format(id='old')}, named_struct('a', 7) AS of",
    NOW: f"{VALUES.format(id='new')}, named_struct('a', 7, 'b', 'set') AS of, 'set' AS extra",
}


def pipeline_of(columns: str) -> Pipeline:
    archive = Archive(rows="rows", columns=columns, event_time="at")
    return replace(load_pipeline("nest_cameras"), name="changed", archive=archive, views=(), reports=())


def write(spark: SparkSession, columns: str, hour: int) -> BuiltRevision:
    """Write the revision of an hour, a row with all columns."""
    at = START + timedelta(hours=hour)
    kafka = f"'t' AS kafka_topic, 0 AS kafka_partition, {hour} AS kafka_offset, 0 AS kafka_element"
    moment = f"TIMESTAMP'{at.isoformat()}'"
    text = f"SELECT {ROWS[columns]}, {moment} AS at, {kafka}, {moment} AS kafka_timestamp, '2026-11-20' AS date"
    layout = archive_layout(pipeline_of(columns))
    interval = Interval(at, at + timedelta(hours=1))
    (built,) = write_revisions(spark.sql(text), layout, interval, revision_name(hour, datetime.now(UTC)))
    return built


def main(argv: list[str]) -> int:
    spark = build_session("changed columns", catalog=True)
    with site_of_another_metastore(spark, Path(argv[0]).with_name("hive-site.xml")):
        return change(spark, argv)


@contextmanager
def site_of_another_metastore(spark: SparkSession, site: Path) -> Iterator[None]:
    """Let Hive's client find another's configuration, as of HIVE_CONF_DIR; the JVM may be kept for other drivers."""
    server = "<property><name>hive.metastore.uris</name><value>thrift://127.0.0.1:9</value></property>"
    site.write_text(f"<configuration>{server}</configuration>")
    jvm: Any = spark._jvm
    jvm.org.apache.hadoop.hive.conf.HiveConf.setHiveSiteLocation(jvm.java.net.URL(site.as_uri()))
    try:
        yield
    finally:
        jvm.org.apache.hadoop.hive.conf.HiveConf.setHiveSiteLocation(None)


def change(spark: SparkSession, argv: list[str]) -> int:
    old, new = write(spark, BEFORE, 0), write(spark, NOW, 1)
    before = Catalog(spark, pipeline_of(BEFORE))
    before.create_tables()
    before.point_at(old)
    check_storage(pipeline_of(NOW))
    now = Catalog(spark, pipeline_of(NOW))
    now.create_tables()
    now.point_at(new)
    found = {
        "locations": [old.location, new.location],
        "rows": [row.asDict(recursive=True) for row in spark.table("lake.changed").orderBy("id").collect()],
        "names": spark.table("lake.changed").columns,
        "declared": [*archive_schema(pipeline_of(NOW)).names, "date", "interval"],
    }
    try:
        check_storage(pipeline_of(BEFORE))
    except UsageError as error:
        found["narrower"] = [str(error), error.exit_code]
    found["anew"] = make_unused_anew(spark)
    Path(argv[0]).write_text(json.dumps(found, default=str))
    return 0


def make_unused_anew(spark: SparkSession) -> dict[str, object]:
    """Declare other columns for a table in which nothing was registered; what is found then."""
    before, now = (replace(pipeline_of(columns), name="unused") for columns in (BEFORE, "id INT, at TIMESTAMP"))
    Catalog(spark, before).create_tables()
    build = Path(lake.uri("tables", "unused", "build").removeprefix("file://"))
    build.mkdir(parents=True)
    anew = check_storage(now)
    make_anew(Catalog(spark, now))
    return {"tables": anew, "columns": spark.table("lake.unused").columns, "stays": build.is_dir()}


if __name__ == "__main__":
    run_entry(main, sys.argv[1:])
