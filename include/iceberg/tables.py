"""The Iceberg tables of a pipeline, as publication, doctor and housekeeping use them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from include.catalog import DATABASE
from include.catalog.renames import shown_columns
from include.crash_points import crash_point
from include.errors import MetadataGone, OtherScale, TidemarkError, UsageError
from include.iceberg.catalog import find, opened, writing
from include.iceberg.commit import commit_interval, ensure_table
from include.iceberg.field_ids import numbers_of
from include.iceberg.schema import check_declaration, follow_declaration
from include.iceberg.statement import completeness_of, may_state, put_completeness, statement_of
from include.ledger import proofs
from include.ledger.columns.unregistered import had_files
from include.ledger.completeness.properties import Properties
from include.ledger.held_locks import Check
from include.ledger.intervals import attempts, builds, revisions
from include.ledger.intervals.findings import IcebergSnapshot
from include.ledger.intervals.revisions import Changes
from include.ledger.lineage import BuiltRevision
from include.pipelines.spec import Pipeline


def prepare(pipeline: Pipeline) -> None:
    """Create the tables that are missing, before anything is registered; anew those that were made for other columns.

    The latter only where nothing was ever registered or committed. Raises ServiceUnreachable when the catalog does not
    answer, UsageError for a table of the name that is not the pipeline's, and for one that cannot follow its
    declaration.
    """
    with writing(pipeline.name), opened() as catalog:
        for table in pipeline.iceberg_tables:
            stored, columns = ensure_table(catalog, pipeline, table), shown_columns(pipeline, table)
            try:
                check_declaration(stored, pipeline.name, columns, numbers_of(pipeline, table))
            except UsageError:
                if stored.metadata.snapshots or had_files(table):
                    raise
                # Its metadata stays; the files of builds are not its own yet.
                catalog.drop_table((DATABASE, table))
                ensure_table(catalog, pipeline, table)


def follow_columns(pipeline: Pipeline) -> None:
    """Give the tables their columns by the names that they show now. Raises as `prepare`."""
    with writing(pipeline.name), opened() as catalog:
        for table in pipeline.iceberg_tables:
            stored, columns = ensure_table(catalog, pipeline, table), shown_columns(pipeline, table)
            follow_declaration(stored, pipeline.name, columns, numbers_of(pipeline, table))


def put_build(
    pipeline: Pipeline,
    interval_id: int,
    build: int,
    changes: Changes,
    told: Properties | None = None,
    check: Check = lambda: None,
) -> list[IcebergSnapshot]:
    """Commit the revisions that its interval has after a build's registration, a snapshot per table; repeatable.

    The same commits set the tables' properties of completeness, if `told` is given, as in a registration: a table that
    cannot have the interval's files is then left as it is. `check` raises when the caller is no longer alone with the
    interval: it is asked before each commit, and after the last. Raises OtherScale where `told` is not given.
    """
    put: list[IcebergSnapshot] = []
    with writing(pipeline.name), opened() as catalog:
        if builds.is_published(build):
            # Whoever finished the registration may have registered a later build since: the ledger tells.
            build, changes = proofs.build_to_prove(interval_id) or build, Changes()
        after = _after(revisions.registered_of_interval(interval_id), changes)
        statement = statement_of(attempts.of_build(build))
        for table in pipeline.iceberg_tables:
            of_table = [each for each in after if each.table == table]
            said = told.get(table, {}) if told is not None else None
            try:
                put.append(commit_interval(catalog, pipeline, table, statement, of_table, said, check))
            except OtherScale as error:
                if told is None:
                    raise
                # Its registration has to end: whoever publishes next would have to finish it first, for ever.
                what = f"{DATABASE}.{table} lacks interval {statement.label}: {error.message}; {error.remedy}"
                logging.getLogger("tidemark").warning("left: %s", what)
            crash_point("iceberg_committed")
        # A tag and properties are set whatever the table's head is.
        check()
    return put


def put_registered(pipeline: Pipeline, interval_id: int, check: Check = lambda: None) -> list[IcebergSnapshot]:
    """Make the tables follow the registered revisions of an interval, with `check` as in `put_build`."""
    build = proofs.build_to_prove(interval_id)
    return put_build(pipeline, interval_id, build, Changes(), check=check) if build is not None else []


def properties(pipeline: Pipeline, told: Properties) -> dict[str, tuple[dict[str, str], Mapping[str, str]]]:
    """Return the existing tables' properties of completeness, each with those of `told` that it may state."""
    with opened() as catalog:
        stored = {table: find(catalog, pipeline, table) for table in pipeline.iceberg_tables}
    return {
        table: (completeness_of(each), may_state(each, pipeline.name, told.get(table, {})))
        for table, each in stored.items()
        if each is not None
    }


def put_properties(pipeline: Pipeline, told: Properties) -> list[str]:
    """Set the existing tables' properties of completeness; return the tables that had others.

    One that lacks registered rows gets none. Raises MetadataGone, and UsageError for another's table, once all other
    tables are set.
    """
    changed: list[str] = []
    refused: list[TidemarkError] = []
    with writing(pipeline.name), opened() as catalog:
        for table in pipeline.iceberg_tables:
            try:
                stored = find(catalog, pipeline, table)
            except (MetadataGone, UsageError) as error:
                refused.append(error)
                continue
            if stored is None:
                continue
            said = may_state(stored, pipeline.name, told.get(table, {}))
            if completeness_of(stored) != said:
                with stored.transaction() as transaction:
                    put_completeness(transaction, said)
                changed.append(table)
    if refused:
        raise refused[0]
    return changed


def _after(registered: Sequence[BuiltRevision], changes: Changes) -> list[BuiltRevision]:
    """Return the revisions registered once the changes are made, whichever of them were made before."""
    after = {(each.table, each.partition): each for each in registered}
    for each in changes.drops:
        after.pop((each.table, each.partition), None)
    for each in changes.points:
        after[each.table, each.partition] = each
    return [after[key] for key in sorted(after)]
