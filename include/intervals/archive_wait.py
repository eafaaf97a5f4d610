"""Whether the archive is in the lake at hand, and waiting until it holds what an interval is to be pinned to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from tenacity import RetryError, retry, retry_if_result, stop_after_delay, wait_fixed

from include import kafka, lake
from include.errors import ArchiveBehind, ServiceUnreachable
from include.ledger.archive.micro_batches import ARCHIVE, last_batch
from include.ledger.archive.positions import positions
from include.ledger.streams.generations import opened_at
from include.offsets import TopicPartition
from include.pipelines.spec import Pipeline
from include.times import Interval

_WRITTEN = ("checkpoints", "landing", "quarantine", "received")
"""Folders of the lake, in one of which a stream that has committed has left something."""


def lake_error(pipeline: Pipeline) -> ServiceUnreachable | None:
    """Return an error when the stream's current generation has committed, but left nothing in this lake.

    It is another lake then, or a disk that is not mounted, and what is written now would lie apart from the rest.
    """
    opened, batch = opened_at(pipeline.name), last_batch(pipeline.name, ARCHIVE)
    if opened is None or batch is None or batch.committed_at <= opened:
        return None
    if any(lake.exists(lake.uri(folder, pipeline.name)) for folder in _WRITTEN):
        return None
    return ServiceUnreachable(
        f"the lake {lake.root()} holds nothing of {pipeline.name}, whose stream has written to a lake",
        remedy="mount its disk, or set TIDEMARK_LAKE to the lake in which the stream wrote; only if all of it is "
        f'gone for good: ./tidemark new-generation {pipeline.name} --reason "…"',
        pipeline=pipeline.name,
    )


def check_lake(pipeline: Pipeline) -> None:
    """Raise `lake_error`, if there is one."""
    if error := lake_error(pipeline):
        raise error


def await_archive(
    pipeline: Pipeline, interval: Interval, until: Mapping[TopicPartition, int], patience: timedelta
) -> None:
    """Wait until the archive has committed everything below the interval's end. Raises ArchiveBehind."""

    def missing() -> list[str]:
        reached = positions(pipeline.name)
        return [
            f"{tp} is at {reached.get(tp, 0)} of {offset}"
            for tp, offset in sorted(until.items())
            if reached.get(tp, 0) < offset
        ]

    waiting = retry(
        retry=retry_if_result(bool),
        stop=stop_after_delay(patience.total_seconds()),
        wait=wait_fixed(1),
    )(missing)
    try:
        waiting()
    except RetryError as error:
        behind = error.last_attempt.result()
        remedy = f"is the stream running? ./tidemark status; ./tidemark stream {pipeline.name}"
        if opened := _open_transactions(until):
            behind += opened
            remedy = f"end the producer's transaction (kafka-transactions.sh find-hanging, abort), or: {remedy}"
        raise ArchiveBehind(
            f"the archive has not reached the end of {interval}: {'; '.join(behind)}",
            remedy=remedy,
            pipeline=pipeline.name,
        ) from None


def _open_transactions(until: Mapping[TopicPartition, int]) -> list[str]:
    """Return where an open transaction keeps readers from the offsets below `until`."""
    stable = kafka.offset_bounds(until)
    return [
        f"{tp}: a transaction is open at offset {stable[tp][1]}, nothing after it can be read"
        for tp, offset in sorted(until.items())
        if stable[tp][1] < offset
    ]
