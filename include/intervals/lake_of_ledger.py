"""Whether lake and ledger belong together: what each of them has of a pipeline, the other must know.

To the ledger, a disk that is not mounted or another bucket is a lake that has lost everything. To the lake, a ledger
that was made anew or restored from an old copy is one by which nearly all files may go. Whatever writes, moves or
removes files asks here first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from include import lake
from include.errors import CheckpointDamaged, ServiceUnreachable, TidemarkError, UsageError
from include.lake.checkpoints import (
    check_logs,
    checkpoint_id,
    checkpoint_of,
    generation_folders,
    newest_commit,
    newest_plan,
)
from include.ledger.archive.micro_batches import ARCHIVE, last_batch, last_batch_id, positions
from include.ledger.connection import check_version
from include.ledger.inventory import revisions_outside
from include.ledger.lineage import registered_outside
from include.ledger.streams import generations
from include.ledger.streams.flags import FLAGS
from include.ledger.streams.generations import StreamGeneration
from include.pipelines.spec import Pipeline
from include.settings import settings

OF_OTHER_LEDGER = (
    "it has micro-batches that this ledger does not know, so files that it does not know stay; take from landing/ and "
    "tables/ what is needed, remove this folder, then ./tidemark housekeeping deletes them"
)
"""Of a generation's checkpoints: why what looks like a leftover is kept, and until when."""

UNREADABLE = (
    "its checkpoint is damaged, so whether this ledger knows its micro-batches cannot be told, and files that it does "
    "not know stay; take from landing/ and tables/ what is needed, remove this folder, then ./tidemark housekeeping "
    "deletes them"
)
"""The same of checkpoints that cannot be read."""

TO_ITS_LAKE = (
    "set TIDEMARK_LAKE to the lake in which they were built, in the same spelling; a lake that was moved for good must "
    "also be reached at its old place, or their intervals be run again, which registers them in TIDEMARK_LAKE"
)
"""What to do about revisions that the ledger knows outside of the lake."""

_WRITTEN = ("checkpoints", "landing", "quarantine", "received")
"""Folders of the lake, in one of which a stream that has committed has left something."""


def check_lake(pipeline: Pipeline) -> None:
    """Raise UsageError when this is another ledger than the lake's, ServiceUnreachable when it is another lake.

    Raises UsageError, too, when newer code has migrated the ledger.
    """
    check_version()
    if error := lake_error(pipeline):
        raise error


def check_may_delete(pipeline: Pipeline, others: Collection[str] = ()) -> None:
    """Raise the error of `check_lake`, UsageError while unknown files may be another ledger's or a revision's.

    `others`: tables besides the declared ones in which files are deleted.
    """
    check_lake(pipeline)
    _check_no_other_ledger(pipeline)
    _check_no_revision_elsewhere(pipeline, others)


def lake_error(pipeline: Pipeline) -> TidemarkError | None:
    """Return the error that `check_lake` raises; None when lake and ledger belong together."""
    return _other_ledger(pipeline) or _other_lake(pipeline)


def _other_ledger(pipeline: Pipeline) -> UsageError | None:
    """The ledger notes a generation before its checkpoints, and a micro-batch before Spark notes it as committed."""
    folders = generation_folders(pipeline.name)
    newest = max(folders, default=-1)
    current = generations.current(pipeline.name)
    if newest > (current.number if current else -1):
        of_ledger = f"has only generation {current.number}" if current else "has none"
        return _of_other_ledger(pipeline, f"generation {newest} of the stream", of_ledger)
    if current is None:
        return None
    checkpoint = checkpoint_of(pipeline.name, current.number, ARCHIVE)
    try:
        query_id = checkpoint_id(checkpoint)
    except CheckpointDamaged as error:
        return error
    if query_id is None:
        return None if current.number in folders else _older_generations(current, newest)
    # The lake is read first: a driver that commits meanwhile is ahead in the ledger.
    committed = newest_commit(checkpoint)
    if committed > (last := last_batch_id(query_id)):
        of_ledger = f"has only micro-batch {last}" if last >= 0 else "has none"
        return _of_other_ledger(pipeline, f"micro-batch {committed} of generation {current.number}", of_ledger)
    return older_checkpoint(current, ARCHIVE, last)


def older_checkpoint(current: StreamGeneration, query: str, committed: int) -> UsageError | None:
    """Return the error of a checkpoint that lacks a micro-batch which the ledger has of its query, else None.

    Spark would plan other offsets under the number of a committed micro-batch, and pass over them. The ledger is to be
    read first: Spark plans each micro-batch in the checkpoint before the ledger gets it.
    """
    checkpoint = checkpoint_of(current.pipeline, current.number, query)
    if committed <= (planned := newest_plan(checkpoint)):
        return None
    of_lake = f"ends at micro-batch {planned}" if planned >= 0 else "has none"
    what = f"micro-batch {committed} of {query} in generation {current.number}, its checkpoint {checkpoint} {of_lake}"
    return _of_older_lake(current, what)


def _older_generations(current: StreamGeneration, newest: int) -> UsageError | None:
    """Return the error of a lake that has generations before one in which the archive has committed, and not that one.

    A lake without any is of a stream that has not begun, or has lost its checkpoints.
    """
    began = current.began_at(ARCHIVE)
    if newest < 0 or all(at <= began.get(tp, at) for tp, at in positions(current.pipeline).items()):
        return None
    what = f"micro-batches of generation {current.number}, the lake {lake.root()} ends at generation {newest}"
    error = _of_older_lake(current, what)
    return UsageError(
        f"{error.message}, or somebody removed this generation's checkpoints",
        remedy=f"where only the checkpoints are gone: {_read_on(current)}; else {error.remedy}",
        pipeline=current.pipeline,
    )


def _of_older_lake(current: StreamGeneration, what: str) -> UsageError:
    return UsageError(
        f"the ledger at {settings().database_host()} has {what}: the lake is an older copy than the ledger",
        remedy="set TIDEMARK_LAKE to this ledger's lake, or restore its last copy; only if that is gone for good: "
        f"{_read_on(current)}, and files that the copy lacks: include/docs/runbook.md, “Files that are gone for good”",
        pipeline=current.pipeline,
    )


def _read_on(current: StreamGeneration) -> str:
    return f'./tidemark new-generation {current.pipeline} --reason "…" reads on where the ledger ends'


def check_checkpoints(current: StreamGeneration, queries: Iterable[str]) -> None:
    """Raise UsageError when the checkpoint of a query is older than the ledger, CheckpointDamaged where one is."""
    for query in queries:
        checkpoint = checkpoint_of(current.pipeline, current.number, query)
        if (query_id := checkpoint_id(checkpoint)) is None:
            continue
        check_logs(checkpoint)
        # Speed views are committed under numbers that grow over generations, the others under Spark's.
        first = 0 if query in (ARCHIVE, FLAGS) else current.version(0)
        if error := older_checkpoint(current, query, last_batch_id(query_id) - first):
            raise error


def _of_other_ledger(pipeline: Pipeline, of_lake: str, of_ledger: str) -> UsageError:
    return UsageError(
        f"the lake {lake.root()} has {of_lake}, the ledger at {settings().database_host()} {of_ledger}: it is "
        "another one, or an older copy of its own",
        remedy="set TIDEMARK_DATABASE_URL to this lake's ledger, or restore its last copy; only if that is gone for "
        f'good: ./tidemark new-generation {pipeline.name} --reason "…" reads again what Kafka still has, and what '
        "this ledger does not know stays in the lake",
        pipeline=pipeline.name,
    )


def _check_no_other_ledger(pipeline: Pipeline) -> None:
    """Raise UsageError while the lake keeps files that another ledger knew, in which anything may be."""
    for each, why in kept_checkpoints(pipeline).items():
        what = "cannot be read, so it may have" if why == UNREADABLE else "has"
        raise UsageError(
            f"{lake.below_lake(each)} {what} micro-batches that this ledger does not know: their files may hold the "
            "key, and nothing was changed",
            remedy=f"take from landing/ and tables/ what is needed and remove {each}, then the command again: it "
            "deletes them",
            pipeline=pipeline.name,
        )


def kept_checkpoints(pipeline: Pipeline) -> dict[str, str]:
    """Return the URIs of generations whose checkpoint has micro-batches that the ledger lacks, and why each stays.

    Another ledger knew more of this lake than this one does, perhaps the only copy of records that Kafka has lost. A
    checkpoint that cannot be read may be such a one.
    """
    folders = sorted(generation_folders(pipeline.name).items())
    found = {folder: _why_kept(checkpoint_of(pipeline.name, number, ARCHIVE)) for number, folder in folders}
    return {folder: why for folder, why in found.items() if why}


def why_unknown_stay(pipeline: Pipeline) -> str:
    """Return why files that the ledger does not know stay, and until when, in words; empty when they may go."""
    return "; ".join(f"{lake.below_lake(each)}: {why}" for each, why in kept_checkpoints(pipeline).items())


def revisions_elsewhere(pipeline: Pipeline, others: Collection[str] = ()) -> str:
    """Return which revisions the ledger knows outside of the lake, in words; empty when there are none.

    `others`: tables besides the declared ones.

    The ledger names a revision by its whole location. In a lake that was moved, restored or is reached by another
    spelling, such as a link, the same directory has a location that no row names, and looks like a leftover.
    """
    outside = revisions_outside([*pipeline.tables, *others], lake.root())
    if not outside:
        return ""
    return f"the ledger knows {len(outside)} revisions outside of the lake {lake.root()}, such as {outside[0]}"


def _check_no_revision_elsewhere(pipeline: Pipeline, others: Collection[str]) -> None:
    """Raise UsageError while the ledger knows revisions outside of the lake: unknown ones may be their files."""
    if elsewhere := revisions_elsewhere(pipeline, others):
        raise UsageError(f"{elsewhere}, and nothing was changed", remedy=TO_ITS_LAKE, pipeline=pipeline.name)


def _why_kept(checkpoint: str) -> str:
    try:
        query_id = checkpoint_id(checkpoint)
    except CheckpointDamaged:
        return UNREADABLE
    is_ahead = query_id is not None and newest_commit(checkpoint) > last_batch_id(query_id)
    return OF_OTHER_LEDGER if is_ahead else ""


def _other_lake(pipeline: Pipeline) -> ServiceUnreachable | None:
    """A stream that has committed, and has started in its current generation, has left something in its lake."""
    current = generations.current(pipeline.name)
    if current is None or not current.positions or last_batch(pipeline.name, ARCHIVE) is None:
        return None
    if any(lake.exists(lake.uri(folder, pipeline.name)) for folder in _WRITTEN):
        return None
    elsewhere = registered_outside(lake.root())
    where = f" (registered rows lie at {elsewhere[0]})" if elsewhere else ""
    return ServiceUnreachable(
        f"the lake {lake.root()} holds nothing of {pipeline.name}, whose stream has written to a lake",
        remedy=f"mount its disk, or set TIDEMARK_LAKE to the lake in which the stream wrote{where}; only if all of it "
        "is gone for good: include/docs/runbook.md, “Files that are gone for good”",
        pipeline=pipeline.name,
    )
