"""Repair what ledger, catalog and files disagree about; the ledger is right.

Unknown files are moved aside, never deleted; the catalog is changed by one Spark application
(`spark_jobs/repair_catalog.py`). What only a new build can repair is left to the interval that its remedy names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import get_args

from include import lake
from include.catalog.changes import CatalogChange, CatalogRepair, change_catalog
from include.catalog.declared import check_storage
from include.completeness import follow_ledger
from include.doctor.disagreement import Disagreement
from include.errors import AnotherWriter, TidemarkError, UsageError
from include.housekeeping.in_flight import InFlight
from include.housekeeping.run import holding_files, put_back
from include.lake.revision_files import damage_of
from include.ledger import quarantine
from include.ledger.archive import holdings, landing_files, removal
from include.ledger.connection import check_version
from include.ledger.streams.incarnations import closed
from include.offsets import Fate, OffsetRange
from include.pipelines import load_pipeline
from include.serving import follow
from include.streams.generations import no_stream

LOST_AND_FOUND = "lost+found"
"""Folder of the lake for unknown files."""

_IN_CATALOG: tuple[CatalogRepair, ...] = get_args(CatalogRepair)

_OF_PROPERTIES = ("commit to Iceberg", "tell completeness")
"""Repairs after which the tables' properties of completeness may have to be written again."""

Progress = Callable[[str], None]


def plan(disagreements: Sequence[Disagreement]) -> list[str]:
    """Return what `repair` will do, a line each."""
    return [f"{each.repair}: {each.what}" for each in disagreements if each.repair]


def repair(disagreements: Sequence[Disagreement], progress: Progress) -> None:
    """Repair what can be repaired.

    Raises UsageError when newer code has migrated the ledger, TidemarkError when the catalog could not be changed; once
    all else is repaired, UsageError for what was refused of a pipeline.
    """
    check_version()
    refused: list[UsageError] = []
    aside = lake.uri(LOST_AND_FOUND, datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"))
    for each in disagreements:
        if each.repair == "move aside":
            _move_aside(each.location, aside, progress)
    for pipeline in sorted({each.pipeline for each in disagreements}):
        of_pipeline = [each for each in disagreements if each.pipeline == pipeline]
        unknown = [each.location for each in of_pipeline if each.repair == "move landing aside"]
        if unknown:
            move_landing_aside(pipeline, unknown, aside, progress)
        if any(each.repair == "put back" for each in of_pipeline):
            put_back(pipeline, progress)
        lost = {each.micro_batch for each in of_pipeline if each.repair == "read from revisions"}
        if lost:
            _read_from_revisions(pipeline, lost, progress)
        if any(each.repair == "commit to Iceberg" for each in of_pipeline):
            with _going_on(pipeline, refused, progress):
                _restore_open_tables(pipeline, progress)
    in_catalog = {each.pipeline for each in disagreements if each.repair in _IN_CATALOG}
    left = _refused_by_their_tables(in_catalog, refused, progress)
    changes = [
        CatalogChange(each.pipeline, each.table, each.partition, each.repair)
        for each in disagreements
        if each.repair in _IN_CATALOG and each.pipeline not in left
    ]
    if changes and (code := change_catalog(changes, "repair catalog")):
        error = TidemarkError(f"repairing the catalog ended with exit code {code}", remedy="read the lines above")
        error.exit_code = code
        raise error
    # Last: a table that was created again has no such properties yet.
    changed = {each.pipeline for each in disagreements if each.repair in (*_IN_CATALOG, *_OF_PROPERTIES)}
    # A table that lacks registered partitions states no time.
    for pipeline in sorted(changed - left):
        with _going_on(pipeline, refused, progress):
            for line in follow_ledger(load_pipeline(pipeline)):
                progress(f"{pipeline}: {line}")
    for pipeline in sorted({each.pipeline for each in disagreements if each.repair == "serve what is registered"}):
        for line in follow.follow_ledger(load_pipeline(pipeline), counted=True):
            progress(f"{pipeline}: {line}")
    if refused:
        raise refused[0]


@contextmanager
def _going_on(pipeline: str, refused: list[UsageError], progress: Progress) -> Iterator[None]:
    """Tell what is refused of a pipeline, and note it: the others are repaired nevertheless."""
    try:
        yield
    except UsageError as error:
        progress(f"{pipeline}: left: {error.message}")
        refused.append(error)


def _refused_by_their_tables(pipelines: Collection[str], refused: list[UsageError], progress: Progress) -> set[str]:
    """Return the pipelines whose tables do not fit their declaration: the catalog cannot be changed for them."""
    fit = set()
    for pipeline in sorted(pipelines):
        with _going_on(pipeline, refused, progress):
            check_storage(load_pipeline(pipeline))
            fit.add(pipeline)
    return {*pipelines} - fit


def _move_aside(location: str, aside: str, progress: Progress) -> None:
    if not lake.is_in_lake(location):
        progress(f"left: {location} lies outside of the lake {lake.root()}")
    elif lake.exists(location):
        target = f"{aside}/{lake.below_lake(location)}"
        lake.move(location, target)
        progress(f"moved to {target}")


def move_landing_aside(pipeline: str, locations: Sequence[str], aside: str, progress: Progress) -> None:
    """Move landing and quarantine files aside that no commit names, while nobody can commit them.

    Meanwhile no housekeeping and no replay runs, and no driver gets the pipeline's lease. While a driver holds the
    lease, only folders move that others have left, by the fencing tokens in their names. The ledger is asked again:
    what was committed since the examination stays.
    """
    with ExitStack() as held:
        try:
            checks = [held.enter_context(holding_files(pipeline))]
            checks.append(held.enter_context(quarantine.deciding(pipeline, timedelta(0))))
        except AnotherWriter as error:
            progress(f"{pipeline}: landing files are left: {error.message}")
            return
        live = None
        try:
            held.enter_context(no_stream(pipeline, "doctor --repair"))
        except AnotherWriter as error:
            progress(f"{pipeline}: what the live driver may be writing is left: {error.message}")
            live = InFlight.of(pipeline)
        for location in locations:
            for check in checks:
                check()
            if not (_is_committed(pipeline, location) or (live and live.driver_may_write(location))):
                _move_aside(location, aside, progress)


def _is_committed(pipeline: str, location: str) -> bool:
    """Return whether the ledger now knows a file, or one of a folder's files."""
    files = (
        [f"{location}/{file.name}" for file in lake.list_files(location)] if lake.is_folder(location) else [location]
    )
    return bool(landing_files.files_at(pipeline, [lake.below_lake(file) for file in files]))


def _read_from_revisions(pipeline: str, lost: set[int], progress: Progress) -> None:
    """Let the rows of lost landing files be read from the registered revisions, if these are undamaged."""
    if closed(pipeline):
        progress(f"{pipeline}: landing files are left: one of its topics was deleted and created again")
        return
    table = load_pipeline(pipeline).table
    portions = removal.settled_batches(pipeline, datetime.now(UTC), (Fate.ARCHIVED,))
    for batch, parts in ((batch, portion[batch]) for portion in portions for batch in sorted(lost & portion.keys())):
        ranges: list[OffsetRange] = [each for each in parts if len(each)]
        damages = [
            damage_of(holding.revisions, records=holding.archived)
            for holding in holdings.holdings(pipeline, table, ranges)
        ]
        if any(damages):
            progress(f"{pipeline}: micro-batch {batch} is left: {next(filter(None, damages))}")
            continue
        if removal.mark_removed(pipeline, [batch]):
            progress(f"{pipeline}: the rows of micro-batch {batch} are read from the registered revisions now")
        else:
            progress(f"{pipeline}: micro-batch {batch} is left: other code than landed it has read what is registered")


def _restore_open_tables(pipeline: str, progress: Progress) -> None:
    from include.iceberg.examine import restore

    for line in restore(load_pipeline(pipeline)):
        progress(f"{pipeline}: {line}")
