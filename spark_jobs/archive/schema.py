"""The columns of the pipeline's tables."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.pipelines.spec import KAFKA_COLUMNS, Pipeline
from spark_jobs.decoding.records import date_of
from spark_jobs.spark.schemas import struct_of


def archive_schema(pipeline: Pipeline) -> StructType:
    """Return the archive table's columns without its partition columns."""
    return struct_of(f"{pipeline.archive_columns}, {KAFKA_COLUMNS}")


def table_schema(pipeline: Pipeline, table: str) -> StructType:
    """Return the columns of one of the pipeline's tables without its partition columns."""
    columns = (view.columns for view in pipeline.views if pipeline.view_table(view) == table)
    return archive_schema(pipeline) if table == pipeline.table else struct_of(next(columns))


def with_partition_columns(pipeline: Pipeline, rows: DataFrame) -> DataFrame:
    """Return archive rows with `event_time` and the table's partition columns except the constant `interval`.

    A row lies in the partition of the date by which it was landed.
    """
    columns = {name: F.col(source).cast("string") for name, source in pipeline.archive.partition_by.items()}
    return rows.withColumns({"date": date_of(F.col("event_time")).cast("string"), **columns})
