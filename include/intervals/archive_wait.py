"""Waiting until the archive holds what an interval is to be pinned to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from include import kafka
from include.errors import ArchiveBehind
from include.ledger.archive.positions import positions
from include.offsets import TopicPartition
from include.pipelines.spec import Pipeline
from include.times import Interval
from include.waiting import wait_for


def await_archive(
    pipeline: Pipeline, interval: Interval, until: Mapping[TopicPartition, int], patience: timedelta
) -> None:
    """Wait until the archive has committed everything below the interval's end. Raises ArchiveBehind."""

    def missing() -> dict[TopicPartition, str]:
        reached = positions(pipeline.name)
        return {
            tp: f"{tp} is at {reached.get(tp, 0)} of {offset}"
            for tp, offset in sorted(until.items())
            if reached.get(tp, 0) < offset
        }

    if waited_for := wait_for(missing, lambda found: not found, seconds=patience.total_seconds()):
        behind = [*waited_for.values()]
        remedy = f"is the stream running? ./tidemark status; ./tidemark stream {pipeline.name}"
        if opened := _open_transactions({tp: until[tp] for tp in waited_for}):
            behind += opened
            remedy = f"{kafka.END_TRANSACTION}, or: {remedy}"
        raise ArchiveBehind(
            f"the archive has not reached the end of {interval}: {'; '.join(behind)}",
            remedy=remedy,
            pipeline=pipeline.name,
        )


def _open_transactions(until: Mapping[TopicPartition, int]) -> list[str]:
    """Return where an open transaction keeps readers from the offsets below `until`."""
    stable = kafka.offset_bounds(until)
    return [
        f"{tp}: a transaction is open at offset {stable[tp][1]}, nothing after it can be read"
        for tp, offset in sorted(until.items())
        if stable[tp][1] < offset
    ]
