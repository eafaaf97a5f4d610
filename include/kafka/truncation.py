"""Logs that were cut back: a replica without the last records took over, or a broker's disk was put back to a copy.

New records then take the offsets of those that are gone, under the same topic id, so that reading on from a position
would skip them.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE

from include.errors import LogTruncated, ServiceUnreachable
from include.kafka.bounds import first_messages
from include.kafka.client import Progress
from include.kafka.refusals import TIMEOUT
from include.offsets import TopicPartition
from include.settings import settings
from include.times import format_timestamp

GO_ON = "put the log back, or move the topic: include/docs/runbook.md, “A log that was cut back”"
"""What to do about a log that was truncated."""


def check_ends(pipeline: str, reached: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> None:
    """Raise LogTruncated when a topic partition ends before an offset that was reached in it."""
    cut = [tp for tp, offset in sorted(reached.items()) if tp in ends and ends[tp] < offset]
    if cut:
        raise LogTruncated(
            f"{'; '.join(f'{tp} ends at offset {ends[tp]}, it was read up to {reached[tp]} before' for tp in cut)}: "
            "the log was truncated",
            remedy=GO_ON,
            pipeline=pipeline,
        )


def check_unchanged(
    pipeline: str, noted: Mapping[TopicPartition, tuple[int, int]], now: Mapping[TopicPartition, int]
) -> None:
    """Raise LogTruncated when another record lies at an offset than did, by its timestamp in milliseconds.

    `noted`: offsets and timestamps. Topic partitions that `now` lacks hold no visible record there any more, which says
    nothing.
    """
    changed = [(tp, *noted[tp]) for tp in sorted(noted.keys() & now.keys()) if now[tp] != noted[tp][1]]
    if changed:
        named = (f"{tp} offset {offset} holds a record of {format_timestamp(now[tp])}" for tp, offset, _ in changed)
        before = ", ".join(sorted({format_timestamp(timestamp) for *_, timestamp in changed}))
        raise LogTruncated(
            f"{'; '.join(named)}; when it was pinned it was one of {before}: the log was truncated and written again",
            remedy=GO_ON,
            pipeline=pipeline,
        )


def timestamps_at(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the timestamp of the record at exactly each offset, in milliseconds; nothing where none is visible.

    Raises ServiceUnreachable.
    """
    progress = Progress()
    found = first_messages(offsets, TIMEOUT, progress) if offsets else {}
    # Where the client is past the offset without a message, no record is visible there: aborted ones give none.
    missing = {tp for tp in offsets.keys() - found.keys() if progress.next_offsets.get(tp, -1) <= offsets[tp]}
    if missing:
        first = min(missing)
        raise ServiceUnreachable(
            f"Kafka at {settings().kafka_address()}: nothing of {first} from offset {offsets[first]} within "
            f"{TIMEOUT:.0f} s",
            remedy="./tidemark status; ./tidemark up kafka",
        )
    exactly = {tp: each for tp, each in found.items() if each.error() is None and each.offset() == offsets[tp]}
    timestamps = {tp: each.timestamp() for tp, each in exactly.items()}
    return {tp: timestamp for tp, (kind, timestamp) in timestamps.items() if kind != TIMESTAMP_NOT_AVAILABLE}
