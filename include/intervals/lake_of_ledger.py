"""Whether lake and ledger belong together: what each of them has of a pipeline, the other must know.

To the ledger, a disk that is not mounted or another bucket is a lake that has lost everything. To the lake, a ledger
that was made anew or restored from an old copy is one by which nearly all files may go. Whatever writes, moves or
removes files asks here first.
"""

from __future__ import annotations

from include import lake
from include.errors import ServiceUnreachable, TidemarkError, UsageError
from include.lake.scan import newest_commit, scan_generations
from include.ledger.archive.micro_batches import ARCHIVE, last_batch
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
    newest = max(scan_generations(pipeline.name), default=-1)
    current = generations.current(pipeline.name)
    known = current.number if current else -1
    if newest > known:
        of_lake = f"generation {newest} of the stream"
        of_ledger = f"has only generation {known}" if current else "has none"
        return _of_other_ledger(pipeline, of_lake, of_ledger)
    committed = newest_commit(pipeline.name, known, ARCHIVE)
    last = _last_batch(pipeline)
    if committed > last:
        of_ledger = f"has only micro-batch {last}" if last >= 0 else "has none"
        return _of_other_ledger(pipeline, f"micro-batch {committed} of generation {known}", of_ledger)
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


def _last_batch(pipeline: Pipeline) -> int:
    """Return the archive's last micro-batch of the current generation; -1 before its first."""
    opened, batch = generations.opened_at(pipeline.name), last_batch(pipeline.name, ARCHIVE)
    # What was noted when the generation was opened is none of its stream's.
    return batch.batch_id if opened and batch and batch.committed_at > opened else -1


def _other_lake(pipeline: Pipeline) -> ServiceUnreachable | None:
    """A stream that has committed in its current generation has left something in its lake."""
    if _last_batch(pipeline) < 0 or any(lake.exists(lake.uri(folder, pipeline.name)) for folder in _WRITTEN):
        return None
    elsewhere = registered_outside(lake.root())
    where = f" (registered rows lie at {elsewhere[0]})" if elsewhere else ""
    return ServiceUnreachable(
        f"the lake {lake.root()} holds nothing of {pipeline.name}, whose stream has written to a lake",
        remedy=f"mount its disk, or set TIDEMARK_LAKE to the lake in which the stream wrote{where}; only if all of it "
        f'is gone for good: ./tidemark new-generation {pipeline.name} --reason "…"',
        pipeline=pipeline.name,
    )
