"""Which record timestamps may end an interval: not one far ahead of its neighbours or of its own commit.

The rule and its reasons: `include/decisions/010-a-single-timestamp-ends-no-interval.md`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from include.offsets import TopicPartition

NEIGHBOURS = 32
"""How many of the following records a timestamp is judged by."""

TOLERANCE = timedelta(hours=1)
"""How far a timestamp may lie ahead. By default, brokers accept timestamps this far ahead of their own clock."""

_ALLOWANCE = int(TOLERANCE.total_seconds() * 1000)
"""How far a producer's clock may be ahead of ours, ms."""

_MONTH = int(timedelta(days=30).total_seconds() * 1000)
"""How far the first records of a log may lie apart, ms, to confirm the first of them."""

_SHARE = 4
"""One in this many neighbours suffices: a topic that is refilled with old records still has its boundaries."""

_EARLIEST = int(datetime(1971, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""Smaller values are not timestamps: -1, 0, and seconds instead of milliseconds."""


@dataclass(frozen=True, order=True)
class RecordTime:
    """A record's offset and its timestamp, ms since 1970."""

    offset: int
    milliseconds: int


@dataclass(frozen=True)
class TimestampRule:
    """How a search judges timestamps."""

    now: int
    """The ledger's clock when the search began, ms since 1970: `committed_at` is by that clock, too."""
    committed_at: Callable[[TopicPartition, int], int | None]
    """When the archive committed an offset, ms since 1970; None when it has not yet."""
    tolerance: int = _ALLOWANCE
    """How far a timestamp may lie ahead of its neighbours, ms."""

    def is_odd(self, topic_partition: TopicPartition, record: RecordTime, following: Sequence[RecordTime]) -> bool:
        """Return whether the record's timestamp is too far ahead to end an interval.

        It is when it lies more than an hour after the record's commit (not committed yet: after now), or when fewer
        than a quarter of the records that follow reach it, less the tolerance.
        """
        if not self._is_time(record):
            return True
        reaching = [r.milliseconds >= record.milliseconds - self.tolerance for r in following if self._is_time(r)]
        if sum(reaching) * _SHARE < len(reaching):
            return True
        committed_at = self.committed_at(topic_partition, record.offset)
        return committed_at is not None and record.milliseconds > committed_at + _ALLOWANCE

    def has_reached(self, moment: int, window: Sequence[RecordTime]) -> bool:
        """Return whether records of the window could follow one that ends an interval at `moment`."""
        times = [r.milliseconds >= moment - self.tolerance for r in window if self._is_time(r)]
        return bool(times) and sum(times) * _SHARE >= len(times)

    def beginning(self, window: Sequence[RecordTime]) -> int | None:
        """Return the earliest timestamp of a log's first records that others confirm, ms; None without any."""
        times = sorted(r.milliseconds for r in window if self._is_time(r))
        for earliest in times:
            near = sum(each <= earliest + _MONTH for each in times)
            if near * _SHARE >= len(times):
                return earliest
        return None

    def _is_time(self, record: RecordTime) -> bool:
        return _EARLIEST <= record.milliseconds <= self.now + _ALLOWANCE


@dataclass(frozen=True)
class Boundary:
    """Where an interval ends in a topic partition."""

    offset: int
    odd_count: int = 0
    """Records with odd timestamps that were passed over to find it."""
    first_odd: RecordTime | None = None


def find_boundary(
    topic_partition: TopicPartition, records: Iterable[RecordTime], moment: int, until: int, rule: TimestampRule
) -> Boundary:
    """Return the first record at or after `moment` (ms) that may end an interval; `until` when none does below it."""
    odd_count, first_odd = 0, None
    for record, following in _with_following(records):
        if record.offset >= until:
            break
        if record.milliseconds < moment:
            continue
        if not rule.is_odd(topic_partition, record, following):
            return Boundary(record.offset, odd_count, first_odd)
        odd_count, first_odd = odd_count + 1, first_odd or record
    return Boundary(until, odd_count, first_odd)


def _with_following(records: Iterable[RecordTime]) -> Iterator[tuple[RecordTime, Sequence[RecordTime]]]:
    """Yield each record with up to NEIGHBOURS records that follow it."""
    following: deque[RecordTime] = deque()
    for record in records:
        following.append(record)
        if len(following) > NEIGHBOURS:
            yield following.popleft(), following
    while following:
        yield following.popleft(), following
