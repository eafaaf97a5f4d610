"""Whether lake and ledger belong together: what each of them has of a pipeline, the other must know.

To the ledger, a disk that is not mounted or another bucket is a lake that has lost everything. To the lake, a ledger
that was made anew or restored from an old copy is one by which nearly all files may go. Whatever writes, moves or
removes files asks here first.
"""

from __future__ import annotations

from include import lake
from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.lake.checkpoints import checkpoint_id, checkpoint_of, generation_folders, newest_commit
from include.ledger.archive.micro_batches import ARCHIVE, last_batch, last_batch_id
from include.ledger.lineage import registered_outside
from include.ledger.streams import generations
from include.pipelines.spec import Pipeline
from include.settings import settings

_WRITTEN = ("checkpoints", "landing", "quarantine", "received")
"""Folders of the lake, in one of which a stream that has committed has left something."""


def check_lake(pipeline: Pipeline) -> None:
    """Raise UsageError when this is another ledger than the lake's, ServiceUnreachable when it is another lake."""
    if error := lake_error(pipeline):
        raise error


def lake_error(pipeline: Pipeline) -> TidemarkError | None:
    """Return the error that `check_lake` raises; None when lake and ledger belong together."""
    return _other_ledger(pipeline) or _other_lake(pipeline)


def _other_ledger(pipeline: Pipeline) -> UsageError | None:
    """The ledger notes a generation before its checkpoints, and a micro-batch before Spark notes it as committed."""
    newest = max(generation_folders(pipeline.name), default=-1)
    current = generations.current(pipeline.name)
    if newest > (current.number if current else -1):
        of_ledger = f"has only generation {current.number}" if current else "has none"
        return _of_other_ledger(pipeline, f"generation {newest} of the stream", of_ledger)
    if current is None:
        return None
    checkpoint = checkpoint_of(pipeline.name, current.number, ARCHIVE)
    if (query_id := checkpoint_id(checkpoint)) is None:
        return None
    # The lake is read first: a driver that commits meanwhile is ahead in the ledger.
    committed = newest_commit(checkpoint)
    if committed > (last := last_batch_id(query_id)):
        of_ledger = f"has only micro-batch {last}" if last >= 0 else "has none"
        return _of_other_ledger(pipeline, f"micro-batch {committed} of generation {current.number}", of_ledger)
    return None


def _of_other_ledger(pipeline: Pipeline, of_lake: str, of_ledger: str) -> UsageError:
    return UsageError(
        f"the lake {lake.root()} has {of_lake}, the ledger at {settings().database_host()} {of_ledger}: it is "
        "another one, or an older copy of its own",
        remedy="set TIDEMARK_DATABASE_URL to this lake's ledger, or restore its last copy; only if that is gone for "
        "good: copy tables/ of the lake elsewhere, for housekeeping removes what no ledger knows; then "
        f'./tidemark new-generation {pipeline.name} --reason "…" reads again what Kafka still has',
        pipeline=pipeline.name,
    )


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
        f'is gone for good: ./tidemark new-generation {pipeline.name} --reason "…"',
        pipeline=pipeline.name,
    )
