"""What is registered, from the metastore's and the ledger's own tables: (table, partition, location) of each."""

from __future__ import annotations

import psycopg2

Registered = set[tuple[str, str, str]]


def in_catalog(database: str, label: str = "") -> Registered:
    """What the catalog beside that ledger shows readers, of one interval's label or of all."""
    return _read(
        database.replace("/ledger", "/catalog"),
        'SELECT t."TBL_NAME", p."PART_NAME", s."LOCATION" FROM "PARTITIONS" p '
        'JOIN "TBLS" t ON t."TBL_ID" = p."TBL_ID" JOIN "SDS" s ON s."SD_ID" = p."SD_ID" WHERE p."PART_NAME" LIKE %s',
        f"%interval={label}%",
    )


def in_ledger(database: str, state: str, label: str = "") -> Registered:
    """Revisions in that state, of one interval's label or of all."""
    return _read(
        database,
        "SELECT table_name, table_partition, location FROM revisions WHERE state = %s AND table_partition LIKE %s",
        state,
        f"%interval={label}%",
    )


def _read(database: str, query: str, *values: str) -> Registered:
    with psycopg2.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(query, values)
        return {(table, part, location.replace("file:///", "file:/")) for table, part, location in cursor.fetchall()}
