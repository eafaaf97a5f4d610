"""Iceberg's part of a registration: it follows the Hive catalog's, before the registration's intent is finished.

PyIceberg is imported only where a pipeline declares such a table.
"""

from __future__ import annotations

from include.ledger.completeness.properties import Properties
from include.ledger.held_locks import Check
from include.ledger.intervals import attempts
from include.ledger.intervals.builds import Registration
from include.ledger.intervals.pins import PinnedInterval
from include.pipelines.spec import Pipeline


def prepare_iceberg(pipeline: Pipeline) -> None:
    """Create the pipeline's Iceberg tables that are missing, before anything is registered.

    Raises ServiceUnreachable when the catalog does not answer, UsageError for a table of another and for one that
    cannot follow its declaration.
    """
    if pipeline.iceberg_tables:
        from include.iceberg import tables

        tables.prepare(pipeline)


def put_in_iceberg(pipeline: Pipeline, registration: Registration, properties: Properties, check: Check) -> None:
    """Commit the interval's revisions after a registration, a snapshot per table; repeating it changes nothing.

    The same commits set the properties that state the tables' completeness. Raises what `check` raises before each of
    them, and after the last.
    """
    if pipeline.iceberg_tables:
        from include.iceberg import tables

        of = registration
        put = tables.put_build(pipeline, of.pinned.id, of.build, of.changes, properties, check)
        attempts.note_iceberg(registration.build, put)


def follow_columns_in_iceberg(pipeline: Pipeline) -> None:
    """Let the tables show their columns as the catalog does."""
    if pipeline.iceberg_tables:
        from include.iceberg import tables

        tables.follow_columns(pipeline)


def follow_in_iceberg(pipeline: Pipeline, pinned: PinnedInterval, check: Check) -> None:
    """Make the tables follow the ledger again where somebody has changed them. Raises as `put_in_iceberg`."""
    if pipeline.iceberg_tables:
        from include.iceberg import tables

        tables.put_registered(pipeline, pinned.id, check)
