"""Archive against the ledger: what an interval's rows are held against when Kafka is not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from include.ledger.archive import micro_batches
from include.ledger.archive.micro_batches import Fates
from pyspark.sql import DataFrame

from include import lake
from include.ledger.intervals import evidence
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import Difference, Reconciliation
from spark_jobs.archive.files import within
from spark_jobs.decoding.records import ARCHIVED, EMPTY, QUARANTINED
from spark_jobs.reconciliation.against_kafka import Gaps, count_fates

_AGAINST_LEDGER = "archive against the ledger"


def reconcile_with_ledger(
    pinned: PinnedInterval, landed_rows: DataFrame, found: Reconciliation
) -> tuple[dict[TopicPartition, Fates], Gaps]:
    """Compare the archive's rows of an interval with what the ledger recorded; fates and gaps as they lie there.

    Compared are the rows of each landing file with those noted at its commit, the fates of the
    micro-batches wholly inside the ranges, and those that an earlier attempt of the interval recorded.
    """
    _compare_files(pinned, found)
    counted = {tp: each.fates for tp, each in count_fates(landed_rows).items()}
    recorded = evidence.recorded_fates(pinned)
    committed = evidence.committed_fates(pinned.pipeline, pinned.ranges)
    whole = set(pinned.ranges)
    inner = counted
    if any(each.range not in whole for each in committed):
        inside = landed_rows.where(within(each.range for each in committed))
        inner = {tp: each.fates for tp, each in count_fates(inside).items()}
    _compare_fates(recorded, counted, found)
    _compare_fates(committed, inner, found)
    gaps = {r.topic_partition: len(r) - counted.get(r.topic_partition, Fates()).records for r in pinned.ranges}
    for tp, missing in gaps.items():
        if missing > 0:
            text = f"{missing} offsets had no visible record when they were archived; the ledger recorded them"
            found.add(Difference("gap", "offsets without a visible record", str(tp), text))
    return counted, gaps


def _compare_fates(
    recorded: Sequence[evidence.Recorded], counted: Mapping[TopicPartition, Fates], found: Reconciliation
) -> None:
    for each in recorded:
        lies = counted.get(each.range.topic_partition, Fates())
        if lies != each.fates:
            text = f"{each.by} recorded {_words(each.fates, each.range)}; the archive holds {_words(lies, each.range)}"
            found.add(Difference("unexplained", _AGAINST_LEDGER, str(each.range), text))


def _words(fates: Fates, of: OffsetRange) -> str:
    return (
        f"{fates.archived} archived, {fates.empty} empty, {fates.quarantined} quarantined, "
        f"{len(of) - fates.records} gaps"
    )


def _compare_files(pinned: PinnedInterval, found: Reconciliation) -> None:
    """Rows of each landing file, from its footer, against the rows noted at its commit."""
    outcomes = (ARCHIVED, EMPTY, QUARANTINED)
    paths = [p for o in outcomes for p in micro_batches.files_covering(pinned.pipeline, pinned.ranges, o)]
    for path, noted in evidence.noted_rows(paths):
        try:
            rows = lake.footer(lake.uri(path)).num_rows
        except FileNotFoundError:
            found.add(
                Difference("unexplained", _AGAINST_LEDGER, path, f"the file is missing, {noted} rows were landed")
            )
            continue
        except (pa.ArrowInvalid, OSError) as error:
            text = f"the file is damaged, its footer cannot be read ({str(error).splitlines()[0]})"
            found.add(Difference("unexplained", _AGAINST_LEDGER, path, text))
            continue
        if rows != noted:
            found.add(Difference("unexplained", _AGAINST_LEDGER, path, f"{noted} rows were landed, it holds {rows}"))
