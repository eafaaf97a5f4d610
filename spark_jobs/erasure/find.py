"""Finds archive rows whose subject is one of the keys, by the coordinates of their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from include.pipelines.spec import IDENTITY, Pipeline
from include.pipelines.spec.decoders import UNKNOWN_FIELDS
from spark_jobs.archive.erased import without
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import archive_schema
from spark_jobs.spark.frames import frame_of

_ID = "kafka_topic_id"
_RECORD = ["kafka_topic", _ID, "kafka_partition", "kafka_offset"]
"""Columns that identify a record in any incarnation of its topic, in the order of the ledger's `RecordKey`."""

_RECORDS = "kafka_topic STRING, kafka_topic_id STRING, kafka_partition INT, kafka_offset BIGINT"


def find_subject(spark: SparkSession, pipeline: Pipeline, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the coordinates of the records that have a row of one of the keys, and the number of these rows.

    `asked` has keys, columns (paths inside a row), landing and registered (files by incarnations of topics,
    `include/erasure/find.py`), replayed (coordinates that replays delivered, searched only in landing), and quarantined
    (further records that are erased). The answer has the records by landing and registered, rows (each counted once,
    wherever it is), and rows_of_others, other persons' rows in the same records and in the quarantined ones.
    """
    files = {name: _rows(spark, pipeline, asked[name]) for name in ("landing", "registered")}
    files["registered"] = without(files["registered"], [(*at,) for at in asked["replayed"]])
    marked = {name: _mark(rows, _values(pipeline, asked["columns"]), asked["keys"]) for name, rows in files.items()}
    kept = reduce(DataFrame.unionByName, (rows.withColumn("file", F.lit(name)) for name, rows in marked.items()))
    records = kept.where("is_asked").select("file", *_RECORD).distinct().persist()
    by_file: dict[str, list[list[Any]]] = {name: [] for name in files}
    for row in records.toLocalIterator():
        by_file[row["file"]].append([row[name] for name in _RECORD])
    quarantined = frame_of(spark, ((*each,) for each in asked["quarantined"]), _RECORDS)
    erased = records.select(*_RECORD).union(quarantined).distinct()
    rows = kept.join(F.broadcast(erased), _RECORD, "left_semi")
    each_once = rows.groupBy(_ID, *IDENTITY).agg(F.max("is_asked").alias("is_asked"))
    counted = each_once.agg(F.count_if("is_asked").alias("rows"), F.count_if(~F.col("is_asked")).alias("others"))
    (count,) = counted.collect()
    return {**by_file, "rows": count["rows"], "rows_of_others": count["others"]}


def _rows(spark: SparkSession, pipeline: Pipeline, files: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return the rows of files by incarnations. Columns: the archive table's, and `kafka_topic_id`."""
    schema = archive_schema(pipeline)
    empty = read_files(spark, [], schema).withColumn(_ID, F.lit(""))
    parts = [
        read_files(spark, each["paths"], schema, pipeline.archive.formerly).withColumn(
            _ID, _topic_id(each["topic_ids"])
        )
        for each in files
    ]
    return reduce(DataFrame.unionByName, parts, empty)


def _topic_id(topic_ids: Mapping[str, str]) -> Column:
    known = [F.when(F.col("kafka_topic") == topic, F.lit(topic_id)) for topic, topic_id in sorted(topic_ids.items())]
    return F.coalesce(*known, F.lit(""))


def _values(pipeline: Pipeline, columns: Sequence[str]) -> list[Column]:
    """Return the values of the columns as texts, also those of fields that were unknown when a row was archived."""
    values = [F.col(column).cast("STRING") for column in columns]
    if pipeline.keeps_unknown_fields:
        values += [F.get_json_object(UNKNOWN_FIELDS, f"$.{column}") for column in columns]
    return values


def _mark(rows: DataFrame, values: Sequence[Column], keys: Sequence[str]) -> DataFrame:
    """Return the identity of rows, and whether one of the values is one of the keys."""
    asked = F.broadcast(frame_of(rows.sparkSession, ((key,) for key in keys), "tidemark_asked_key STRING"))
    is_one: Column = reduce(Column.__or__, (value == F.col("tidemark_asked_key") for value in values))
    marked = rows.join(asked, is_one, "left")
    return marked.select(_ID, *IDENTITY, F.col("tidemark_asked_key").isNotNull().alias("is_asked"))
