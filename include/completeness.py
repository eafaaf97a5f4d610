"""Tell in both catalogs, as properties of the tables, until when these are complete by the ledger.

PyIceberg is imported where a pipeline declares such a table, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from include.catalog import DATABASE
from include.catalog.properties import properties, put_properties
from include.errors import AnotherWriter
from include.ledger.completeness.properties import KEYS, UNTIL, Properties, table_properties
from include.ledger.held_locks import held_lock
from include.pipelines.spec import Pipeline

_PATIENCE = timedelta(minutes=10)


@contextmanager
def telling(pipeline: str) -> Iterator[None]:
    """Let nobody else tell of the pipeline's tables between what the block reads and what it tells.

    Raises AnotherWriter.
    """
    with held_lock(f"completeness:{pipeline}", _PATIENCE) as is_alone:
        if not is_alone:
            raise AnotherWriter("another publication tells of its tables", remedy="publish again", pipeline=pipeline)
        yield


def tell_hive(pipeline: Pipeline, told: Properties) -> list[str]:
    """Let the Hive catalog's tables tell this; return those that told otherwise."""
    return put_properties({table: told.get(table, {}) for table in pipeline.tables}, KEYS)


def follow_ledger(pipeline: Pipeline) -> list[str]:
    """Let the tables of both catalogs tell what the ledger has; return what was changed, a line each."""
    with telling(pipeline.name):
        told = table_properties(pipeline.name)
        changed = tell_hive(pipeline, told)
        if pipeline.iceberg_tables:
            from include.iceberg import tables

            changed += [f"Iceberg's {table}" for table in tables.put_properties(pipeline, told)]
    return [f"{DATABASE}.{each} tells until when it is complete" for each in changed]


def differences(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield each table that does not tell what the ledger has, with what it tells."""
    wanted = table_properties(pipeline.name)
    sides = [("the catalog", properties(pipeline.tables, KEYS))]
    if pipeline.iceberg_tables:
        from include.iceberg import tables

        sides.append(("Iceberg's catalog", tables.properties(pipeline)))
    for where, told in sides:
        for table, said in told.items():
            expected = wanted.get(table, {})
            if said != expected:
                a, b = (each.get(UNTIL, "no time") for each in (said, expected))
                what = f"is complete until {a}, by the ledger it is until {b}"
                if a == b:
                    what = f"names other times of topic partitions than the ledger, complete until {a}"
                yield table, f"{DATABASE}.{table} in {where} {what}"
