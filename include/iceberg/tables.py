"""The Iceberg tables of a pipeline, as publication, doctor and housekeeping use them."""

from __future__ import annotations

from collections.abc import Sequence

from include.catalog.columns import declared_columns
from include.crash_points import crash_point
from include.iceberg.catalog import opened, writing
from include.iceberg.commit import commit_interval, ensure_table
from include.iceberg.schema import check_declaration
from include.iceberg.statement import statement_of
from include.ledger import proofs
from include.ledger.intervals import attempts, revisions
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import IcebergSnapshot
from include.ledger.intervals.revisions import BuiltRevision
from include.pipelines.spec import Pipeline


def prepare(pipeline: Pipeline) -> None:
    """Create the tables that are missing, before anything is registered.

    Raises ServiceUnreachable when the catalog does not answer, UsageError for a table of the name that is not the
    pipeline's, and for one that cannot follow its declaration.
    """
    with writing(pipeline.name), opened() as catalog:
        for table in pipeline.iceberg_tables:
            check_declaration(ensure_table(catalog, pipeline, table), pipeline.name, declared_columns(pipeline, table))


def put_build(pipeline: Pipeline, interval_id: int, build: int, changes: Changes) -> list[IcebergSnapshot]:
    """Commit what registering a build leaves of its interval, a snapshot per table; doing it twice is once."""
    after = _after(revisions.registered_of_interval(interval_id), changes)
    statement = statement_of(attempts.of_build(build))
    put: list[IcebergSnapshot] = []
    with writing(pipeline.name), opened() as catalog:
        for table in pipeline.iceberg_tables:
            of_table = [each for each in after if each.table == table]
            put.append(commit_interval(catalog, pipeline, table, statement, of_table))
            crash_point("iceberg_committed")
    return put


def put_registered(pipeline: Pipeline, interval_id: int) -> list[IcebergSnapshot]:
    """Let the tables follow what the ledger has registered of an interval; nothing is done where they do."""
    build = proofs.build_to_prove(interval_id)
    return put_build(pipeline, interval_id, build, Changes()) if build is not None else []


def _after(registered: Sequence[BuiltRevision], changes: Changes) -> list[BuiltRevision]:
    """Return what is registered once the changes are made, whichever of them were made before."""
    after = {(each.table, each.partition): each for each in registered}
    for each in changes.drops:
        after.pop((each.table, each.partition), None)
    for each in changes.points:
        after[each.table, each.partition] = each
    return [after[key] for key in sorted(after)]
