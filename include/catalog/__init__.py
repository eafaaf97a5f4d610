"""Read the Hive catalog from the metastore's tables in PostgreSQL, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import psycopg2

from include.errors import ServiceUnreachable, one_line
from include.ledger.connection import driver_options, remedy_of
from include.settings import settings

DATABASE = "lake"

_PARTITIONS = """
    SELECT t."TBL_NAME", p."PART_NAME", s."LOCATION"
    FROM "DBS" d
    JOIN "TBLS" t ON t."DB_ID" = d."DB_ID"
    JOIN "PARTITIONS" p ON p."TBL_ID" = t."TBL_ID"
    LEFT JOIN "SDS" s ON s."SD_ID" = p."SD_ID"
    WHERE d."NAME" = %(database)s AND t."TBL_NAME" = ANY(%(tables)s)
    ORDER BY 1, 2
"""

_COUNTED = """
    SELECT t."TBL_NAME", count(p."PART_ID")
    FROM "DBS" d
    JOIN "TBLS" t ON t."DB_ID" = d."DB_ID"
    LEFT JOIN "PARTITIONS" p
        ON p."TBL_ID" = t."TBL_ID" AND split_part(p."PART_NAME", 'interval=', 2) <> ALL(%(without)s)
    WHERE d."NAME" = %(database)s AND t."TBL_NAME" = ANY(%(tables)s)
    GROUP BY 1
"""

_STORAGE = """
    SELECT p."PARAM_KEY", p."PARAM_VALUE"
    FROM "DBS" d
    JOIN "TBLS" t ON t."DB_ID" = d."DB_ID"
    JOIN "TABLE_PARAMS" p ON p."TBL_ID" = t."TBL_ID"
    WHERE d."NAME" = %(database)s AND t."TBL_NAME" = %(table)s AND p."PARAM_KEY" LIKE 'spark.sql.sources.%%'
"""


@dataclass(frozen=True)
class Storage:
    """File format and columns with which readers of the catalog read a table's files."""

    file_format: str
    columns: str
    """Spark's JSON schema of the columns, partition columns last."""
    partition_columns: tuple[str, ...]


@dataclass(frozen=True)
class CatalogPartition:
    """A table partition in the catalog."""

    table: str
    partition: str
    location: str


def partitions(tables: Sequence[str]) -> dict[tuple[str, str], CatalogPartition]:
    """Return the tables' partitions by (table, partition). Raise ServiceUnreachable."""
    rows = _read(_PARTITIONS, {"database": DATABASE, "tables": list(tables)})
    listed = [CatalogPartition(table, _unescaped(name), as_lake_uri(location or "")) for table, name, location in rows]
    return {(each.table, each.partition): each for each in listed}


def count_partitions(tables: Sequence[str], *, without: Sequence[str]) -> dict[str, int]:
    """Return how many partitions each table of the catalog has, but for those of intervals with these labels.

    Raise ServiceUnreachable.
    """
    return dict(_read(_COUNTED, {"database": DATABASE, "tables": list(tables), "without": list(without)}))


def pointed_at(tables: Sequence[str]) -> set[str]:
    """Return the locations of the tables' partitions, comparable. Raise ServiceUnreachable."""
    return {comparable_location(each.location) for each in partitions(tables).values()}


def storage(table: str) -> Storage | None:
    """Return a table's file format and columns; None when there is no such table. Raise ServiceUnreachable."""
    rows = _read(_STORAGE, {"database": DATABASE, "table": table})
    properties = {key.removeprefix("spark.sql.sources."): value for key, value in rows}
    if "provider" not in properties:
        return None
    # Spark splits a schema that is longer than a field of the metastore.
    parts = [properties[f"schema.part.{n}"] for n in range(int(properties.get("schema.numParts", 0)))]
    names = (properties[f"schema.partCol.{n}"] for n in range(int(properties.get("schema.numPartCols", 0))))
    return Storage(properties["provider"].lower(), "".join(parts) or properties.get("schema", ""), tuple(names))


def _read(query: str, values: Mapping[str, object]) -> Sequence[Any]:
    try:
        with closing(psycopg2.connect(settings().database_uri("catalog"), **driver_options())) as connection:
            connection.set_session(readonly=True)
            with connection.cursor() as asked:
                asked.execute(query, values)
                return asked.fetchall()
    except (psycopg2.OperationalError, psycopg2.ProgrammingError) as error:
        reason = one_line(str(error))
        raise ServiceUnreachable(
            f"the catalog in PostgreSQL at {settings().database_host()}: {reason}", remedy=remedy_of(reason)
        ) from None


def _unescaped(name: str) -> str:
    """Return a partition path with Hive's %XX escapes decoded."""
    return "/".join(unquote(part) for part in name.split("/"))


def as_lake_uri(location: str) -> str:
    """Return a location in the lake's form: Hadoop writes `file:/x`, the lake `file:///x`."""
    return (
        location.replace("file:/", "file:///", 1)
        if location.startswith("file:/") and "://" not in location
        else location
    )


def comparable_location(location: str) -> str:
    """Return a location in one form for comparison: some writers escape special characters, others do not."""
    return unquote(as_lake_uri(location))
