"""The archive as a Delta table: streams append rows, and intervals replace them with the rows that they registered.

Columns: the archive table's, and the partition column `interval`: null in rows that a stream appended, in validated
rows the interval that delivered them.

An append carries its query's id and the micro-batch's number as Delta's transaction id, so that the replay of a
micro-batch that was committed to Delta, but not to the ledger, changes nothing. Any number of writers may append.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from include import lake
from include.catalog.columns import changes, columns_of_json, declared_columns
from include.errors import TidemarkError, UsageError
from include.lake import object_store
from include.lake.delta_log import OWN, check_disk
from include.ledger.intervals.locks import replacing_rows
from include.offsets import Coordinates, OffsetRange
from include.pipelines.spec import Pipeline
from include.pipelines.spec.file_formats import times_without_zone
from spark_jobs.archive.files import read_files
from spark_jobs.archive.schema import archive_schema
from spark_jobs.spark.frames import empty_frame, frame_of

_NTZ = "timestampNtz"
"""Delta's feature of tables with columns of the type TIMESTAMP_NTZ."""

_WIDENING = "delta.enableTypeWidening"
"""Delta's property of tables whose columns get wider types when rows with such are written."""

_FOLLOWED = {("tinyint", "smallint"), ("tinyint", "int"), ("smallint", "int")}
"""Wider types that the columns of any table get: Parquet has them all as the same."""

_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
"""Errors of a commit that lost to a concurrent one; in Python none is a subclass of another."""

_LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
"""Where Delta notes the version of a session's last commit, to whichever table."""


_WHOLE_FILES = {
    "spark.databricks.delta.commitInfo.userMetadata": OWN,
    # A deletion vector would only mark a row as deleted, and leave it in its file.
    "spark.databricks.delta.merge.deletionVectors.persistent": "false",
}

_retry_on_conflict = retry(
    # Another commit came first and conflicted with this one; tried again on top of it, this one does not conflict.
    retry=retry_if_exception_type(_CONFLICTS),
    stop=stop_after_attempt(10),
    wait=wait_random(max=1),
    reraise=True,
)


def location(pipeline: Pipeline) -> str:
    """Return the URI of the pipeline's Delta table."""
    return lake.uri("delta", pipeline.name)


def check_store(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise UsageError when the lake's store or disk lets two drivers commit the same version."""
    if object_store.is_bucket_uri(lake.root()):
        _check_bucket(spark, pipeline)
    else:
        check_disk(pipeline.name)


def _check_bucket(spark: SparkSession, pipeline: Pipeline) -> None:
    jvm: Any = spark
    log_store = jvm._jvm.tidemark.ConditionalLogStore(jvm._jsc.hadoopConfiguration())
    if not log_store.isExclusive(lake.uri("delta")):
        raise UsageError(
            f"the store of {lake.root()} does not know conditional puts (If-None-Match), or overwrites an object "
            "despite one, so two drivers could commit the same version of its Delta table, and rows would be lost",
            remedy="use a store with conditional puts, or declare the archive with iceberg=True, not delta=True",
            pipeline=pipeline.name,
        )


def check_table(spark: SparkSession, pipeline: Pipeline) -> None:
    """Raise UsageError when the table exists and cannot take the declared columns."""
    table = location(pipeline)
    if not DeltaTable.isDeltaTable(spark, table):
        return
    known = DeltaTable.forPath(spark, table)
    _check_times(pipeline, known)
    _check_types(pipeline, known)


def _check_times(pipeline: Pipeline, known: DeltaTable) -> None:
    """Raise UsageError when a column is declared as TIMESTAMP_NTZ, and the table was made without one.

    Delta adds the feature that such columns need to new tables only, and older readers cannot read a table with it.
    """
    if not (paths := times_without_zone(pipeline.archive_columns)):
        return
    table = location(pipeline)
    (detail,) = known.detail().select("tableFeatures").collect()
    if _NTZ not in detail["tableFeatures"]:
        statement = f'ALTER TABLE delta.`{table}` SET TBLPROPERTIES (delta.feature.{_NTZ} = "supported")'
        raise UsageError(
            f"the Delta table {table} cannot take the column {paths[0]}: without Delta's feature {_NTZ} it has no "
            "TIMESTAMP_NTZ",
            remedy=f"declare it as TIMESTAMP, or, if all readers of the table know the feature: "
            f"./tidemark sql '{statement}'",
            pipeline=pipeline.name,
        )


def _check_types(pipeline: Pipeline, known: DeltaTable) -> None:
    """Raise UsageError when the table has a column by another type, which it does not widen.

    It kept the type while it was not declared, when the archive's table may widen its columns.
    """
    compared = changes(columns_of_json(known.toDF().schema.json(), ()), declared_columns(pipeline, pipeline.table))
    # Others may have added columns, and its partition columns are its own.
    names = set(archive_schema(pipeline).fieldNames())
    changed = [
        each
        for each in (*compared.followed, *compared.refused)
        if each.before and each.now and each.column.partition(".")[0] in names
        if (each.before, each.now) not in _FOLLOWED
    ]
    if not changed:
        return
    (detail,) = known.detail().select("properties").collect()
    if detail["properties"].get(_WIDENING) != "true":
        table = location(pipeline)
        statement = f'ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({_WIDENING} = "true")'
        raise UsageError(
            f"the Delta table {table} has other types, which it kept while it was not declared: {changed[0].column} "
            f"{changed[0].before}, declared is {changed[0].now}",
            remedy="take the change back, or declare the archive without delta, or, if all readers of the table know "
            f"Delta's feature typeWidening: ./tidemark sql '{statement}'",
            pipeline=pipeline.name,
        )


def append_batch(spark: SparkSession, pipeline: Pipeline, landed: Sequence[str], query_id: str, batch_id: int) -> None:
    """Append the landed files of a micro-batch once; repeating it with the same query and number does nothing.

    The first append creates the table; new columns of the archive are added to it.
    """
    if landed:
        rows = read_files(spark, landed, archive_schema(pipeline))
        _write(pipeline, _unvalidated(rows), "append", txnAppId=query_id, txnVersion=str(batch_id))


def ensure_table(spark: SparkSession, pipeline: Pipeline) -> None:
    """Create the table if it does not exist."""
    if not DeltaTable.isDeltaTable(spark, location(pipeline)):
        _write(pipeline, _unvalidated(empty_frame(spark, archive_schema(pipeline))), "append")


def replace_rows(pipeline: Pipeline, condition: str, rows: DataFrame, properties: Mapping[str, str]) -> int | None:
    """Replace all rows that meet the condition with `rows`, which meet it too, in one commit with these properties.

    Return the version of that commit; others may have committed newer ones since. None when there were neither old rows
    nor new ones: Delta then commits nothing. Once it lost to an append, streams wait with theirs.
    Raises LockLost, and TidemarkError when others keep appending.
    """
    session = rows.sparkSession
    session.conf.unset(_LAST_COMMIT)
    metadata = json.dumps(properties, separators=(",", ":"), sort_keys=True)
    options = {"replaceWhere": condition, "userMetadata": metadata if properties else OWN}
    try:
        _write_once(pipeline, rows, "overwrite", **options)
    except _CONFLICTS:
        with replacing_rows(pipeline.name):
            try:
                _write(pipeline, rows, "overwrite", **options)
            except _CONFLICTS as error:
                raise others_keep_writing(pipeline) from error
    version = session.conf.get(_LAST_COMMIT, None)
    return int(version) if version is not None else None


def within_sql(ranges: Iterable[OffsetRange]) -> str:
    """Return the condition of rows whose coordinates lie in the ranges. Kafka allows no quote in a topic's name."""
    parts = [
        f"(kafka_topic = '{r.topic_partition.topic}' AND kafka_partition = {r.topic_partition.partition} "
        f"AND kafka_offset >= {r.from_offset} AND kafka_offset < {r.until_offset})"
        for r in ranges
        if len(r)
    ]
    return " OR ".join(parts) or "false"


def others_keep_writing(pipeline: Pipeline) -> TidemarkError:
    """Return the error of a publication that lost each time to writers that are not the pipeline's stream."""
    return TidemarkError(
        f"somebody else keeps changing {location(pipeline)}: its view stays as it was",
        remedy="stop the other writer, then run the interval again",
        pipeline=pipeline.name,
    )


@_retry_on_conflict
def delete_records(
    spark: SparkSession,
    pipeline: Pipeline,
    erased: Collection[Coordinates],
    twins: Mapping[Coordinates, Sequence[str]],
) -> None:
    """Delete the rows of records in one commit, then rewrite files in which other engines only marked rows as deleted.

    `twins`: by coordinates, the intervals whose rows there belong to another incarnation of the topic and stay.
    """
    coordinates = ("kafka_topic", "kafka_partition", "kafka_offset")
    columns = "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, twins ARRAY<STRING>"
    rows = frame_of(spark, [(*at, list(twins.get(at, ()))) for at in sorted(erased)], columns)
    is_at = " AND ".join(f"kept.{name} = erased.{name}" for name in coordinates)
    is_erased = f"{is_at} AND (kept.interval IS NULL OR NOT array_contains(erased.twins, kept.interval))"
    table = DeltaTable.forPath(spark, location(pipeline))
    for name, value in _WHOLE_FILES.items():
        spark.conf.set(name, value)
    table.alias("kept").merge(F.broadcast(rows).alias("erased"), is_erased).whenMatchedDelete().execute()
    spark.sql(f"REORG TABLE delta.`{location(pipeline)}` APPLY (PURGE)")


def write_checkpoint(spark: SparkSession, pipeline: Pipeline) -> int:
    """Write a checkpoint of the newest version, and return the version's number."""
    gateway: Any = spark
    log = gateway._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(gateway._jsparkSession, location(pipeline))
    log.checkpoint()
    return int(log.unsafeVolatileSnapshot().version())


def delete_older_files(spark: SparkSession, pipeline: Pipeline) -> None:
    """Delete all files that are not part of the newest version, whatever their age; nothing may write meanwhile."""
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"VACUUM delta.`{location(pipeline)}` RETAIN 0 HOURS")


def _unvalidated(rows: DataFrame) -> DataFrame:
    return rows.withColumn("interval", F.lit(None).cast("STRING"))


def _write_once(pipeline: Pipeline, rows: DataFrame, mode: str, **options: str) -> None:
    writer = rows.write.format("delta").mode(mode).partitionBy("interval")
    writer.options(mergeSchema="true", **{"userMetadata": OWN, **options}).save(location(pipeline))


_write = _retry_on_conflict(_write_once)


def latest_version(spark: SparkSession, pipeline: Pipeline) -> int:
    """Return the number of the table's newest version."""
    return int(DeltaTable.forPath(spark, location(pipeline)).history(1).collect()[0]["version"])


def table_id(spark: SparkSession, pipeline: Pipeline) -> str:
    """Return Delta's id of the table; a table that was deleted and created again has a new one."""
    return str(DeltaTable.forPath(spark, location(pipeline)).detail().collect()[0]["id"])
