"""Iceberg's side of a registration: part of its recorded intent, after the catalog's and before its end.

PyIceberg is imported where a pipeline declares such a table, and nowhere else.
"""

from __future__ import annotations

from include.ledger.completeness.properties import Properties
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


def put_in_iceberg(pipeline: Pipeline, registration: Registration, told: Properties) -> None:
    """Commit what a registration leaves of its interval, a snapshot per table; doing it twice is once.

    By the same commits the tables tell of their completeness.
    """
    if pipeline.iceberg_tables:
        from include.iceberg import tables

        put = tables.put_build(pipeline, registration.pinned.id, registration.build, registration.changes, told)
        attempts.note_iceberg(registration.build, put)


def follow_in_iceberg(pipeline: Pipeline, pinned: PinnedInterval) -> None:
    """Let the tables follow the ledger, where somebody has changed them since."""
    if pipeline.iceberg_tables:
        from include.iceberg import tables

        tables.put_registered(pipeline, pinned.id)
