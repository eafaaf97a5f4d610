"""Accepted losses in an interval: gaps with a person and a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from include.ledger.streams.losses import AcceptedLoss
from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import Difference, DifferenceClass, Reconciliation


def with_losses(
    pinned: Sequence[OffsetRange],
    read: Sequence[OffsetRange],
    gaps: Mapping[TopicPartition, int],
    accepted: Iterable[AcceptedLoss],
) -> tuple[dict[TopicPartition, int], Reconciliation]:
    """Return the gaps of the pinned ranges, given those of the ranges that were read, which lack the losses.

    Each accepted loss becomes a difference of class `gap` that says who accepted it and why.
    """
    lost = list(accepted)
    named = [
        Difference(DifferenceClass.GAP, "offsets lost before they were archived", str(loss.range), loss.evidence)
        for loss in lost
    ]
    left_out = {r.topic_partition: len(r) for r in pinned}
    for each in read:
        left_out[each.topic_partition] -= len(each)
    counts = {"gap": sum(len(loss.range) for loss in lost)}
    return {tp: missing + left_out.get(tp, 0) for tp, missing in gaps.items()}, Reconciliation.of(named, counts)
