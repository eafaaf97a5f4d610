"""Offsets of an interval that were never archived: gaps with a reason, and accepted losses with a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from include.ledger.streams.losses import NotArchived
from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import Difference, DifferenceClass, Reconciliation


def with_losses(
    pinned: Sequence[OffsetRange],
    read: Sequence[OffsetRange],
    gaps: Mapping[TopicPartition, int],
    not_archived: Iterable[NotArchived],
) -> tuple[dict[TopicPartition, int], Reconciliation]:
    """Return the gaps of the pinned ranges, given those of the ranges that were read, which lack these.

    Each becomes a difference of class `gap` that says why, and who accepted a loss.
    """
    lost = list(not_archived)
    named = [Difference(DifferenceClass.GAP, each.what, str(each.range), each.evidence) for each in lost]
    left_out = {r.topic_partition: len(r) for r in pinned}
    for each in read:
        left_out[each.topic_partition] -= len(each)
    counts = {"gap": sum(len(each.range) for each in lost)}
    return {tp: missing + left_out.get(tp, 0) for tp, missing in gaps.items()}, Reconciliation.of(named, counts)
