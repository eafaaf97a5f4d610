"""Archive against the ledger: the comparison of an interval's rows when Kafka is not read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from include import lake
from include.errors import one_line
from include.ledger.archive import landing_files
from include.ledger.archive.decoders import decoders_of
from include.ledger.intervals import evidence, revisions
from include.ledger.intervals.pins import PinnedInterval
from include.offsets import Fate, Fates, OffsetRange, TopicPartition
from include.reconciliation import ARCHIVE_AGAINST_LEDGER, Difference, DifferenceClass, Reconciliation
from spark_jobs.archive.files import within
from spark_jobs.reconciliation.against_kafka import ArchiveComparison
from spark_jobs.reconciliation.counted import CountedRows, count_fates


def reconcile_with_ledger(pinned: PinnedInterval, landed_rows: DataFrame, landed: CountedRows) -> ArchiveComparison:
    """Compare the archive's rows of an interval with what the ledger recorded; return the archive's fates and gaps.

    `landed` are the counts of `landed_rows`. Three things are compared: the rows of each landing file with the number
    noted at its commit, the fates of the micro-batches wholly inside the ranges, and the fates that an earlier attempt
    of the interval recorded. Where that one read Kafka with other code than landed the rows, they may differ: class
    `code`.
    """
    counted = {tp: each.fates for tp, each in landed.items()}
    committed = evidence.committed_fates(pinned.pipeline, pinned.ranges)
    whole = set(pinned.ranges)
    inner = counted
    if any(each.range not in whole for each in committed):
        inside = landed_rows.where(within(each.range for each in committed))
        inner = {tp: each.fates for tp, each in count_fates(inside).items()}
    gaps = {r.topic_partition: len(r) - counted.get(r.topic_partition, Fates()).records for r in pinned.ranges}
    differences = [
        *_differing_files(pinned),
        *_differing_fates(evidence.recorded_fates(pinned), counted, _class_of_earlier(pinned)),
        *_differing_fates(committed, inner, DifferenceClass.UNEXPLAINED),
        *_gaps(gaps),
    ]
    return ArchiveComparison(counted, gaps, Reconciliation.of(differences))


def _gaps(gaps: Mapping[TopicPartition, int]) -> Iterator[Difference]:
    for tp, missing in gaps.items():
        if missing > 0:
            text = f"{missing} offsets had no visible record when they were archived; the ledger recorded them"
            yield Difference(DifferenceClass.GAP, "offsets without a visible record", str(tp), text)


def _class_of_earlier(pinned: PinnedInterval) -> DifferenceClass:
    """Return why the fates that an earlier attempt recorded may differ from those of the landed rows."""
    landed = decoders_of(pinned.pipeline, pinned.ranges)
    earlier = [*revisions.decoders_of_registered(pinned.id), revisions.decoders_of_recorded(pinned.id)]
    read_otherwise = any(each and each != landed for each in earlier)
    return DifferenceClass.CODE if read_otherwise else DifferenceClass.UNEXPLAINED


def _differing_fates(
    recorded: Sequence[evidence.Recorded], counted: Mapping[TopicPartition, Fates], cls: DifferenceClass
) -> Iterator[Difference]:
    for each in recorded:
        held = counted.get(each.range.topic_partition, Fates())
        if held != each.fates:
            text = f"{each.by} recorded {_words(each.fates, each.range)}; the archive holds {_words(held, each.range)}"
            yield Difference(cls, ARCHIVE_AGAINST_LEDGER, str(each.range), text)


def _words(fates: Fates, of: OffsetRange) -> str:
    return (
        f"{fates.archived} archived, {fates.empty} empty, {fates.quarantined} quarantined, "
        f"{fates.erased} erased, {len(of) - fates.records} gaps"
    )


def _differing_files(pinned: PinnedInterval) -> Iterator[Difference]:
    """Yield landing files whose footers show another number of rows than was noted at their commits."""
    fates = (Fate.ARCHIVED, Fate.EMPTY, Fate.QUARANTINED)
    paths = [p for fate in fates for p in landing_files.files_covering(pinned.pipeline, pinned.ranges, fate)]
    for path, noted in evidence.noted_rows(paths):
        try:
            rows = lake.read_footer(lake.uri(path)).num_rows
        except FileNotFoundError:
            text = f"the file is missing, {noted} rows were landed"
        except (pa.ArrowInvalid, OSError) as error:
            text = f"the file is damaged, its footer cannot be read ({one_line(str(error))})"
        else:
            if rows == noted:
                continue
            text = f"{noted} rows were landed, it holds {rows}"
        yield Difference(DifferenceClass.UNEXPLAINED, ARCHIVE_AGAINST_LEDGER, path, text)
