"""Archive against the ledger: the comparison of an interval's rows when Kafka is not read."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame

from include import lake
from include.errors import one_line
from include.ledger.archive import landing_files
from include.ledger.archive.decoders import are_of, decoders_of, replaced_by_other_code
from include.ledger.intervals import evidence, revisions
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.streams.losses import NotArchived
from include.offsets import Fate, Fates, OffsetRange, TopicPartition
from include.reconciliation import (
    ARCHIVE_AGAINST_LEDGER,
    KAFKA_AGAINST_LEDGER,
    Difference,
    DifferenceClass,
    Reconciliation,
)
from spark_jobs.archive.files import within
from spark_jobs.reconciliation.against_kafka import ArchiveComparison
from spark_jobs.reconciliation.code_changes import left_out_by_code
from spark_jobs.reconciliation.counted import CountedRows, count_fates


def reconcile_with_ledger(
    pinned: PinnedInterval, landed_rows: DataFrame, landed: CountedRows, lost: Iterable[NotArchived] = ()
) -> ArchiveComparison:
    """Compare the archive's rows of an interval with what the ledger recorded; return the archive's fates and gaps.

    `landed` are the counts of `landed_rows`; `lost` are among the gaps, and the caller names them. Three things are
    compared: the rows of each landing file with the number noted at its commit, the fates of the micro-batches wholly
    inside the ranges, and the fates that an earlier attempt of the interval recorded. Where that one read Kafka with
    other code than landed the rows, they may differ: class `code`. So may those of the micro-batches where it did so
    after their landing was removed; records that it gave no rows are then nowhere in the archive, and count as empty.
    """
    recorded = evidence.recorded_fates(pinned)
    replaced = {each.topic_partition for each in replaced_by_other_code(pinned.pipeline, pinned.ranges)}
    held = {tp: each.fates for tp, each in landed.items()}
    left_out = _left_out(recorded, held, replaced)
    counted = {**held, **{tp: replace(held[tp], empty=held[tp].empty + n) for tp, n in left_out.items()}}
    committed = evidence.committed_fates(pinned.pipeline, pinned.ranges)
    whole = set(pinned.ranges)
    inner = counted
    if any(each.range not in whole for each in committed):
        inside = landed_rows.where(within(each.range for each in committed))
        inner = {tp: each.fates for tp, each in count_fates(inside).items()}
    gaps = {r.topic_partition: len(r) - counted.get(r.topic_partition, Fates()).records for r in pinned.ranges}
    differences = [
        *differing_files(pinned),
        *_differing_fates(recorded, counted, _class_of_earlier(pinned), replaced),
        *_differing_fates(committed, inner, DifferenceClass.UNEXPLAINED, _same_files(committed, inner, replaced)),
    ]
    by_code = [left_out_by_code(tp, records) for tp, records in left_out.items()]
    reconciliation = Reconciliation.of(differences) + Reconciliation.of(by_code, {"code": sum(left_out.values())})
    return ArchiveComparison(counted, gaps, reconciliation + _gaps(gaps, lost))


def fewer_than_counted(pinned: PinnedInterval, fates: Mapping[TopicPartition, Fates]) -> Reconciliation:
    """Compare the number of records that Kafka and the archive hold with those that the ledger counted before.

    A second reader proves that offsets hold no record, not that they never did: compaction removes records from within
    a log. Where the archive's copy is gone as well, every missing record is unexplained. Where only micro-batches were
    counted, those across the ends of the ranges are not: as many records as they hold may be missing unnoticed.
    """
    counted = [*evidence.recorded_fates(pinned), *evidence.committed_fates(pinned.pipeline, pinned.ranges)]
    gone: dict[TopicPartition, Difference] = {}
    missing: dict[TopicPartition, int] = {}
    for noted in counted:
        tp, count = noted.range.topic_partition, noted.fates.records
        held = fates.get(tp, Fates()).records
        if count - held > missing.get(tp, 0):
            missing[tp] = count - held
            text = (
                f"{noted.by} recorded {count} records, Kafka and the archive hold {held} of the interval: the "
                "others were removed from the log since, and no archived file has them; restore the files "
                "that are missing or damaged"
            )
            gone[tp] = Difference(DifferenceClass.UNEXPLAINED, KAFKA_AGAINST_LEDGER, str(noted.range), text)
    replaced = (
        {each.topic_partition for each in replaced_by_other_code(pinned.pipeline, pinned.ranges)} if gone else set()
    )
    if replaced & gone.keys() and not any(differing_files(pinned)):
        gone.update((tp, left_out_by_code(tp, missing[tp])) for tp in replaced & gone.keys())
    counts = Counter[str]()
    for tp, each in gone.items():
        counts[each.cls.value] += missing[tp]
    return Reconciliation.of(gone.values(), counts)


def _gaps(gaps: Mapping[TopicPartition, int], lost: Iterable[NotArchived]) -> Reconciliation:
    others = Counter(dict(gaps))
    for each in lost:
        others[each.range.topic_partition] -= len(each.range)
    without = [
        Difference(
            DifferenceClass.GAP,
            "offsets without a visible record",
            str(tp),
            f"{missing} offsets had no visible record when they were archived",
        )
        for tp, missing in others.items()
        if missing > 0
    ]
    more = [
        Difference(
            DifferenceClass.UNEXPLAINED,
            ARCHIVE_AGAINST_LEDGER,
            str(tp),
            f"the archive holds {-missing} records more than the range has offsets",
        )
        for tp, missing in gaps.items()
        if missing < 0
    ]
    return Reconciliation.of([*without, *more], {"gap": sum((+others).values()), "unexplained": len(more)})


def _class_of_earlier(pinned: PinnedInterval) -> DifferenceClass:
    """Return why the fates that an earlier attempt recorded may differ from those of the landed rows."""
    landed = decoders_of(pinned.pipeline, pinned.ranges)
    earlier = [*revisions.decoders_of_registered(pinned.id), revisions.decoders_of_recorded(pinned.id)]
    read_otherwise = any(each and not are_of(each, landed) for each in earlier)
    return DifferenceClass.CODE if read_otherwise else DifferenceClass.UNEXPLAINED


def _left_out(
    recorded: Sequence[evidence.Recorded], held: dict[TopicPartition, Fates], replaced: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return how many of the records that the registered build counted the archive holds nowhere."""
    counts = {}
    for each in recorded:
        tp = each.range.topic_partition
        if tp in replaced and (count := each.fates.records - held.setdefault(tp, Fates()).records) > 0:
            counts[tp] = count
    return counts


def _same_files(
    committed: Sequence[evidence.Recorded], held: Mapping[TopicPartition, Fates], replaced: Collection[TopicPartition]
) -> set[TopicPartition]:
    """Return those of the topic partitions whose quarantined and erased records are as they were committed.

    Their files stay when landing is removed, and no code takes a record out of quarantine or back from an erasure.
    """
    fates = ((each.range.topic_partition, each.fates) for each in committed)
    same = {
        tp for tp, f in fates if tp in held and f.erased == held[tp].erased and f.quarantined == held[tp].quarantined
    }
    return same.intersection(replaced)


def _differing_fates(
    recorded: Sequence[evidence.Recorded],
    counted: Mapping[TopicPartition, Fates],
    cls: DifferenceClass,
    replaced: Collection[TopicPartition],
) -> Iterator[Difference]:
    """Yield ranges whose recorded fates differ: of class `code` where other code gave records other fates since."""
    for each in recorded:
        held = counted.get(each.range.topic_partition, Fates())
        if held != each.fates:
            text = f"{each.by} recorded {_words(each.fates, each.range)}; the archive holds {_words(held, each.range)}"
            by_code = each.range.topic_partition in replaced
            yield Difference(DifferenceClass.CODE if by_code else cls, ARCHIVE_AGAINST_LEDGER, str(each.range), text)


def _words(fates: Fates, of: OffsetRange) -> str:
    return (
        f"{fates.archived} archived, {fates.empty} empty, {fates.quarantined} quarantined, "
        f"{fates.erased} erased, {len(of) - fates.records} gaps"
    )


def differing_files(pinned: PinnedInterval) -> Iterator[Difference]:
    """Yield files of landing and quarantine whose footers show another number of rows than their commits noted."""
    fates = (Fate.ARCHIVED, Fate.EMPTY, Fate.QUARANTINED)
    paths = [p for fate in fates for p in landing_files.files_covering(pinned.pipeline, pinned.ranges, fate)]
    for path, noted in evidence.noted_rows(paths):
        try:
            rows = lake.read_footer(lake.uri(path)).num_rows
        except FileNotFoundError as gone:
            if not evidence.noted_rows([path]):
                # An erasure wrote it anew since it was listed.
                raise FileNotFoundError(errno.ENOENT, "the ledger names another file", lake.uri(path)) from gone
            text = f"the file is missing, {noted} rows were landed"
        except (pa.ArrowInvalid, OSError) as error:
            text = f"the file is damaged, its footer cannot be read ({one_line(str(error))})"
        else:
            if rows == noted:
                continue
            text = f"{noted} rows were landed, it holds {rows}"
        yield Difference(DifferenceClass.UNEXPLAINED, ARCHIVE_AGAINST_LEDGER, path, text)
