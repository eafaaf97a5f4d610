"""Properties of the Hive catalog's tables, read and written in the metastore's tables, without Spark.

Starting Spark, or asking a running session to alter a table, costs far more than the row that it changes in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager

import psycopg2
from psycopg2.errors import UndefinedTable
from psycopg2.extensions import cursor

from include.catalog import DATABASE
from include.ledger.connection import does_not_answer, driver_options
from include.settings import settings

_TOLD = """
    SELECT t."TBL_NAME", p."PARAM_KEY", p."PARAM_VALUE"
    FROM "DBS" d
    JOIN "TBLS" t ON t."DB_ID" = d."DB_ID"
    LEFT JOIN "TABLE_PARAMS" p ON p."TBL_ID" = t."TBL_ID" AND p."PARAM_KEY" = ANY(%s)
    WHERE d."NAME" = %s AND t."TBL_NAME" = ANY(%s)
"""

_TABLE = """(
    SELECT t."TBL_ID" FROM "DBS" d JOIN "TBLS" t ON t."DB_ID" = d."DB_ID" WHERE d."NAME" = %s AND t."TBL_NAME" = %s
)"""

_SET = f"""
    INSERT INTO "TABLE_PARAMS" ("TBL_ID", "PARAM_KEY", "PARAM_VALUE") VALUES ({_TABLE}, %s, %s)
    ON CONFLICT ("TBL_ID", "PARAM_KEY") DO UPDATE SET "PARAM_VALUE" = excluded."PARAM_VALUE"
"""

_REMOVE = f'DELETE FROM "TABLE_PARAMS" WHERE "TBL_ID" = {_TABLE} AND "PARAM_KEY" = %s'


def properties(tables: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return those properties of each table that is in the catalog. Raises ServiceUnreachable."""
    with _asking() as catalog:
        return _properties(catalog, tables, keys)


def put_properties(wanted: Mapping[str, Mapping[str, str]], keys: Sequence[str]) -> list[str]:
    """Give tables these properties, and no others of the keys; return the tables that had others.

    A table that is not in the catalog is left out. Raises ServiceUnreachable.
    """
    with _asking() as catalog:
        told = _properties(catalog, list(wanted), keys)
        changed = [table for table in told if told[table] != dict(wanted[table])]
        for table in changed:
            for key in keys:
                value = wanted[table].get(key)
                if value is not None:
                    catalog.execute(_SET, [DATABASE, table, key, value])
                else:
                    catalog.execute(_REMOVE, [DATABASE, table, key])
    return changed


def _properties(catalog: cursor, tables: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str]]:
    catalog.execute(_TOLD, [list(keys), DATABASE, list(tables)])
    told: dict[str, dict[str, str]] = {}
    for table, key, value in catalog.fetchall():
        of_table = told.setdefault(table, {})
        if key is not None:
            of_table[key] = value
    return told


@contextmanager
def _asking() -> Iterator[cursor]:
    """Query the metastore's database in one transaction."""
    try:
        with (
            closing(psycopg2.connect(settings().database_uri("catalog"), **driver_options())) as connection,
            connection,
            connection.cursor() as asked,
        ):
            yield asked
    except (psycopg2.OperationalError, psycopg2.InterfaceError, UndefinedTable) as error:
        raise does_not_answer(error) from error
