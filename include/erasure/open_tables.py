"""Open tables of a pipeline, which keep their history: those that it declares, and those that it once declared."""

from __future__ import annotations

from collections.abc import Sequence

from include import lake
from include.erasure.names import NONE, Names
from include.ledger.erasures.former import tables_ever
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import Pipeline


def forget(pipeline: Pipeline, retired: Sequence[BuiltRevision], names: Names = NONE) -> int:
    """Remove the files of revisions from the history of the pipeline's Iceberg tables; return how many snapshots went.

    What snapshots state of partitions with erased names is removed too. Tables that the pipeline once declared are
    included. Raises what prevents it.
    """
    if not _were_any(pipeline):
        return 0
    from include.iceberg.erased_files import forget_files

    return forget_files(pipeline, retired, names)


def files_of_others(pipeline: Pipeline) -> int:
    """Return how many files in the tables' folders were written by others, and may hold rows."""
    if not _were_any(pipeline):
        return 0
    from include.iceberg.erased_files import files_of_others

    return sum(1 for _ in files_of_others(pipeline))


def delta_table_exists(pipeline: Pipeline) -> bool:
    """Return whether the archive is also a Delta table, or was one."""
    return lake.exists(f"{lake.uri('delta', pipeline.name)}/_delta_log")


def _were_any(pipeline: Pipeline) -> bool:
    tables = {*pipeline.tables, *tables_ever(pipeline.name)}
    return any(lake.exists(lake.uri("iceberg", table)) for table in tables)
