"""What the Hive catalog says, read from the metastore's own tables in PostgreSQL: no Spark, nothing written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from sqlalchemy import TextClause, create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from include.errors import ServiceUnreachable
from include.settings import settings

DATABASE = "lake"

_PARTITIONS = text(
    """
    SELECT t."TBL_NAME", p."PART_NAME", s."LOCATION"
    FROM "DBS" d
    JOIN "TBLS" t ON t."DB_ID" = d."DB_ID"
    JOIN "PARTITIONS" p ON p."TBL_ID" = t."TBL_ID"
    LEFT JOIN "SDS" s ON s."SD_ID" = p."SD_ID"
    WHERE d."NAME" = :database AND t."TBL_NAME" = ANY(:tables)
    ORDER BY 1, 2
    """
)


_STORAGE = text(
    """
    SELECT p."PARAM_KEY", p."PARAM_VALUE"
    FROM "DBS" d
    JOIN "TBLS" t ON t."DB_ID" = d."DB_ID"
    JOIN "TABLE_PARAMS" p ON p."TBL_ID" = t."TBL_ID"
    WHERE d."NAME" = :database AND t."TBL_NAME" = :table AND p."PARAM_KEY" LIKE 'spark.sql.sources.%'
    """
)


@dataclass(frozen=True)
class Storage:
    """How the catalog says that a table's files are to be read."""

    file_format: str
    columns: str
    """Spark's JSON of the columns, partition columns last."""


@dataclass(frozen=True)
class CatalogPartition:
    """A table partition as the catalog has it."""

    table: str
    partition: str
    location: str


def partitions(tables: Sequence[str]) -> dict[tuple[str, str], CatalogPartition]:
    """The catalog's partitions of the tables, by table and partition. Raises ServiceUnreachable."""
    rows = _read(_PARTITIONS, {"database": DATABASE, "tables": list(tables)})
    listed = [CatalogPartition(table, _unescaped(name), normalised(location or "")) for table, name, location in rows]
    return {(each.table, each.partition): each for each in listed}


def storage(table: str) -> Storage | None:
    """How the catalog has a table stored; None when it has no such table. Raises ServiceUnreachable."""
    rows = _read(_STORAGE, {"database": DATABASE, "table": table})
    properties = {key.removeprefix("spark.sql.sources."): value for key, value in rows}
    if "provider" not in properties:
        return None
    # Spark cuts what is longer than a field of the metastore.
    parts = [properties[f"schema.part.{n}"] for n in range(int(properties.get("schema.numParts", 0)))]
    return Storage(properties["provider"].lower(), "".join(parts) or properties.get("schema", ""))


def _read(query: TextClause, values: Mapping[str, object]) -> Sequence[Any]:
    url = settings().database("catalog")
    engine = create_engine(url, connect_args={"connect_timeout": 10})
    try:
        with engine.connect().execution_options(postgresql_readonly=True) as connection:
            return connection.execute(query, dict(values)).all()
    except (OperationalError, ProgrammingError) as error:
        reason = str(error.orig).strip().splitlines()[0]
        raise ServiceUnreachable(
            f"the catalog in PostgreSQL at {url.host}:{url.port}: {reason}", remedy="./tidemark up postgres"
        ) from None
    finally:
        engine.dispose()


def _unescaped(name: str) -> str:
    """Hive writes characters that are special in paths as %XX."""
    return "/".join(unquote(part) for part in name.split("/"))


def normalised(location: str) -> str:
    """Hadoop writes `file:/x`, the lake `file:///x`."""
    return (
        location.replace("file:/", "file:///", 1)
        if location.startswith("file:/") and "://" not in location
        else location
    )


def place(location: str) -> str:
    """A location for comparing: one writer escapes special characters in it, another does not."""
    return unquote(normalised(location))
