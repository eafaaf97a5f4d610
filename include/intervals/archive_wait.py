"""Whether the archive holds what an interval is pinned to, and waiting until it does."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from include import kafka
from include.errors import ArchiveBehind, UsageError
from include.ledger.archive.archived_offsets import before_archive
from include.ledger.archive.positions import positions
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import TopicPartition
from include.pipelines.spec import Pipeline
from include.times import Interval, format_time
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


def check_begun(pipeline: Pipeline, known: PinnedInterval) -> None:
    """Raise UsageError when a pinned interval has offsets from before the archive's beginning."""
    if before := before_archive(pipeline.name, known.ranges):
        begin, end = (format_time(each) for each in (known.interval.from_time, known.interval.to_time))
        raise UsageError(
            f"{known.interval} has {', '.join(map(str, before))} from before the archive's beginning, which no "
            "micro-batch has read",
            remedy=f"take them out of it: ./tidemark interval {pipeline.name} --from {begin} --to {end} --repin",
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
