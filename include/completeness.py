"""Write until when a table is complete, as the ledger has it, to the table's properties in both catalogs.

PyIceberg is imported only for pipelines that declare an Iceberg table.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

from include.catalog import DATABASE, comparable_location, count_partitions, pointed_at
from include.catalog.properties import properties, put_properties
from include.errors import AnotherWriter
from include.ledger.completeness.properties import KEYS, UNTIL, Properties, table_properties
from include.ledger.held_locks import held_by, held_lock
from include.ledger.intervals.revisions import registered_of_interval
from include.ledger.inventory import begun_intervals, count_registered
from include.pipelines import declarations
from include.pipelines.spec import Pipeline

_PATIENCE = timedelta(minutes=10)


@contextmanager
def locked_properties(pipeline: str) -> Iterator[None]:
    """Hold the lock on the properties of the pipeline's tables while the block reads the ledger and writes them.

    Raises AnotherWriter.
    """
    with held_lock(name := f"completeness:{pipeline}", _PATIENCE) as is_alone:
        if not is_alone:
            raise AnotherWriter(
                f"another publication writes its tables' properties{held_by(name)}",
                remedy="publish again",
                pipeline=pipeline,
            )
        yield


def put_hive_properties(pipeline: Pipeline, wanted: Properties) -> list[str]:
    """Write the properties of the Hive catalog's tables; return the tables that had others.

    A table that lacks registered partitions gets none, and is logged.
    """
    lacking = _lacking(pipeline)
    for table, partitions in lacking.items():
        if wanted.get(table):
            logging.getLogger("tidemark").warning(
                "%s.%s states no time of completeness: the catalog lacks %s of its registered partitions; "
                "./tidemark doctor --repair",
                DATABASE,
                table,
                partitions,
            )
    return put_properties(_in_hive(pipeline, wanted, lacking), KEYS)


def _lacking(pipeline: Pipeline) -> dict[str, int]:
    """Return how many registered partitions are missing from tables of the Hive catalog: it was put back, or is new.

    Partitions are counted, not compared: a table has very many. Those of intervals that are being registered are left
    out, as the catalog changes before the ledger. Where nobody goes on with a begun registration they are compared, for
    some may be missing, and others there which are not registered.
    """
    publishing, left = begun_intervals(pipeline.name)
    begun = [*publishing, *left]
    registered = count_registered(pipeline.tables, pipeline.name, without=[each.id for each in begun])
    shown = count_partitions(pipeline.tables, without=[each.interval.label for each in begun])
    missing = {table: registered.get(table, 0) - count for table, count in shown.items()}
    found = pointed_at(pipeline.tables) if left else set()
    for each in (revision for interval in left for revision in registered_of_interval(interval.id)):
        if each.table in missing and comparable_location(each.location) not in found:
            missing[each.table] = max(0, missing[each.table]) + 1
    return {table: count for table, count in missing.items() if count > 0}


def _in_hive(pipeline: Pipeline, wanted: Properties, lacking: Collection[str]) -> Properties:
    """Return the properties that tables may state: none for those that lack partitions.

    Nor for those of removed views, whose rows reruns take out.
    """
    removed = wanted.keys() - {*pipeline.tables}
    if removed:
        removed -= {table for each in declarations().loaded for table in each.tables}
    stated = {table: {} if table in lacking else wanted.get(table, {}) for table in pipeline.tables}
    return stated | {table: {} for table in sorted(removed)}


def follow_ledger(pipeline: Pipeline) -> list[str]:
    """Write what the ledger has to the tables of both catalogs; return the changes, one line each."""
    with locked_properties(pipeline.name):
        wanted = table_properties(pipeline.name)
        changed = put_hive_properties(pipeline, wanted)
        if pipeline.iceberg_tables:
            from include.iceberg import tables

            changed += [f"Iceberg's {table}" for table in tables.put_properties(pipeline, wanted)]
    return [f"{DATABASE}.{each} has the ledger's time of completeness again" for each in changed]


def differences(pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield each table whose properties differ from the ledger, with the difference."""
    wanted = table_properties(pipeline.name)
    in_hive = _in_hive(pipeline, wanted, _lacking(pipeline))
    found: list[tuple[str, Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]]] = [
        ("the catalog", {table: (each, in_hive[table]) for table, each in properties([*in_hive], KEYS).items()})
    ]
    if pipeline.iceberg_tables:
        from include.iceberg import tables

        found.append(("Iceberg's catalog", tables.properties(pipeline, wanted)))
    for where, of_tables in found:
        for table, (actual, expected) in of_tables.items():
            if actual != expected:
                a, b = (each.get(UNTIL, "no time") for each in (actual, expected))
                what = f"is complete until {a}, but until {b} in the ledger"
                if table not in pipeline.tables:
                    what = f"is complete until {a}, but no pipeline declares it"
                elif not expected and wanted.get(table):
                    what = f"is complete until {a}, but lacks registered rows"
                elif a == b:
                    what = f"has other times of topic partitions than the ledger, complete until {a}"
                yield table, f"{DATABASE}.{table} in {where} {what}"
