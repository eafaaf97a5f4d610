"""The Hive catalog: external tables in the database `lake`, whose partitions point at revisions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from include import lake
from include.catalog import DATABASE, as_lake_uri
from include.catalog.columns import check_columns, column_changes, columns_of_json
from include.catalog.declared import another_format
from include.catalog.renames import shown_names, stored_columns
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import KAFKA_COLUMNS, Pipeline
from include.pipelines.spec.file_formats import format_of
from spark_jobs.archive.formats import using
from spark_jobs.archive.schema import table_schema
from spark_jobs.spark.failures import translate
from spark_jobs.spark.log import log_of


class Catalog:
    """The tables of one pipeline in the catalog. Names come from declarations, never from data."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self.pipeline = pipeline
        self._follows: set[str] = set()

    def create_tables(self) -> None:
        """Create the database and the pipeline's tables that are missing."""
        pipeline = self.pipeline
        if not self._spark.catalog.databaseExists(DATABASE):
            self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {DATABASE} LOCATION '{lake.uri('tables')}'")
        archive = f"{pipeline.archive_columns}, {KAFKA_COLUMNS}"
        self._create(
            pipeline.table, archive, (*pipeline.archive.partition_columns, "interval"), pipeline.archive.description
        )
        for view in pipeline.views:
            self._create(pipeline.view_table(view), view.columns, ("interval",), view.description)

    def _create(self, table: str, columns: str, partition_by: tuple[str, ...], comment: str) -> None:
        if shown := shown_names(self.pipeline, table):
            columns = StructType(self._fields(table, shown)).toDDL()
        partitions = ", ".join(f"{name} STRING" for name in partition_by)
        files = using(self.pipeline.file_format(table))
        self._spark.sql(
            f"CREATE TABLE IF NOT EXISTS {DATABASE}.{table} ({columns}, {partitions}) {files} "
            f"PARTITIONED BY ({', '.join(partition_by)}) LOCATION '{lake.uri('tables', table)}' "
            f"COMMENT '{comment.replace(chr(39), '')}'"
        )

    def drop_table(self, table: str) -> None:
        """Remove a table from the catalog; files in its folder stay."""
        self._spark.sql(f"DROP TABLE IF EXISTS {DATABASE}.{table}")

    def follow_declaration(self, table: str) -> None:
        """Give a table its declared columns: added ones, wider types, their order. Files and partitions stay.

        Raises UsageError when files that were registered before cannot be read by the declared columns.
        """
        if table in self._follows:
            return
        listed = self._spark.catalog.listColumns(f"{DATABASE}.{table}")
        partition_by = [column.name for column in listed if column.isPartition]
        stored = columns_of_json(self._spark.table(f"{DATABASE}.{table}").schema.json(), partition_by)
        shown = shown_names(self.pipeline, table, stored)
        if lag := check_columns(self.pipeline, table, stored, shown).lag:
            names = (StructField(name, StringType()) for name in partition_by)
            schema = StructType([*self._fields(table, shown), *names])
            self._alter_schema(table, schema)
            log_of(self.pipeline.name).info("lake.%s follows its declaration: %s", table, lag)
        for name, before in shown.items():
            log_of(self.pipeline.name).info(
                "lake.%s shows %s as %s until all of its files have both: ./tidemark rename", table, name, before
            )
        self._follows.add(table)

    def _fields(self, table: str, shown: Mapping[str, str]) -> list[StructField]:
        """Return the columns of a table by the names that it shows."""
        fields = table_schema(self.pipeline, table).fields
        return [StructField(shown.get(each.name, each.name), each.dataType, True, each.metadata) for each in fields]

    def follow_renames(self) -> bool:
        """Let tables whose registered files all have a renamed column by its new name show that; return if any did."""
        pipeline, changed = self.pipeline, False
        for table in pipeline.tables:
            stored = stored_columns(table) if pipeline.formerly(table) else None
            if stored is None:
                continue
            changes = column_changes(pipeline, table, stored, shown_names(pipeline, table, stored))
            if any(each.was for each in changes.followed):
                self._follows.discard(table)
                self.follow_declaration(table)
                changed = True
        return changed

    def _alter_schema(self, table: str, schema: StructType) -> None:
        # SQL adds columns at the end only, and changes no type.
        state = self._spark._jsparkSession.sessionState()
        identifier = state.sqlParser().parseTableIdentifier(f"{DATABASE}.{table}")
        types: Any = self._spark._jvm.org.apache.spark.sql.types.DataType  # type: ignore[union-attr]
        state.catalog().alterTableSchema(identifier, types.fromJson(schema.json()))
        self._spark.catalog.refreshTable(f"{DATABASE}.{table}")

    def prepare(self, revision: BuiltRevision) -> None:
        """Let the revision's table follow its declaration, by which the revision was written.

        A table that is no longer declared stays as it is. Raises UsageError as `follow_declaration` does, and for files
        of another format than the table's.
        """
        if revision.table not in self.pipeline.tables:
            return
        for name in revision.files:
            if format_of(name) != self.pipeline.file_format(revision.table):
                raise another_format(self.pipeline, format_of(name))
        self.follow_declaration(revision.table)

    def point_at(self, revision: BuiltRevision) -> None:
        """Register the partition at the revision's location, or swap its pointer to it; raises what `prepare` raises.

        A table that is no longer declared stays as it is.
        """
        if revision.table not in self.pipeline.tables:
            log_of(self.pipeline.name).warning(
                "%s %s stays as it is: the table is no longer declared", revision.table, revision.partition
            )
            return
        self.prepare(revision)
        table, partition = f"{DATABASE}.{revision.table}", _clause(revision.partition)
        self._spark.sql(f"ALTER TABLE {table} ADD IF NOT EXISTS PARTITION ({partition}) LOCATION '{revision.location}'")
        if self.location(revision) != revision.location:
            self._spark.sql(f"ALTER TABLE {table} PARTITION ({partition}) SET LOCATION '{revision.location}'")
        self._spark.catalog.refreshTable(table)

    def drop(self, revision: BuiltRevision) -> None:
        """Remove the partition from the catalog; its files stay."""
        self.drop_partition(revision.table, revision.partition)

    def drop_partition(self, table: str, partition: str) -> None:
        """Remove a partition, whoever added it, from the catalog; its files stay. A table may be gone."""
        # The table of a view that is no longer declared may have been dropped.
        if not self._spark.catalog.tableExists(f"{DATABASE}.{table}"):
            return
        self._spark.sql(f"ALTER TABLE {DATABASE}.{table} DROP IF EXISTS PARTITION ({_clause(partition)})")

    def location(self, revision: BuiltRevision) -> str | None:
        """Return where the catalog points for the revision's partition; None when it is not registered.

        Raises AnalysisException when the catalog's database does not answer: Spark has no other class for that.
        """
        try:
            rows = self._spark.sql(
                f"DESCRIBE TABLE EXTENDED {DATABASE}.{revision.table} PARTITION ({_clause(revision.partition)})"
            ).collect()
        except AnalysisException as error:
            if translate(error) is not None:
                raise
            return None
        return as_lake_uri(next(row["data_type"] for row in rows if row["col_name"] == "Location"))


def _clause(partition: str) -> str:
    parts = (part.partition("=") for part in partition.split("/"))
    return ", ".join(f"`{name}`='{_quoted(value)}'" for name, _, value in parts)


def _quoted(value: str) -> str:
    # Tidemark's own partitions need no quoting; one that somebody else added may.
    return value.replace("\\", "\\\\").replace("'", "\\'")
