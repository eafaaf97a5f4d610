"""Decoder versions of committed micro-batches: which code decoded which offsets.

Where landing files were removed, the archive's rows are those that the interval's registered build read, which may have
been of other code than the micro-batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import CTE, ColumnElement, func, literal_column, select, true
from sqlalchemy.orm import Session

from include.ledger.archive.holdings import registered_around
from include.ledger.archive.positions import ARCHIVE, of_query, overlap_each_other, overlapping
from include.ledger.archive.removal import removed_in
from include.ledger.database import session
from include.ledger.intervals.revisions import UNKNOWN, decoders_in
from include.ledger.models import IntervalRange, MicroBatch, MicroBatchRange
from include.offsets import OffsetRange, intersection, merged, without


def _has_records() -> ColumnElement[bool]:
    """Return the condition that a range was not of gaps alone.

    Nothing decodes those: an accepted loss, for instance, is a micro-batch of no code.
    """
    return MicroBatchRange.gaps < MicroBatchRange.until_offset - MicroBatchRange.from_offset


def ranges_in(each: OffsetRange) -> CTE:
    """Return the ranges of micro-batches that overlap the range: micro_batch_id, from_offset, until_offset.

    Those of gaps alone are left out.

    Materialized, so that PostgreSQL reads them first. Few batches were decoded by other code; left to itself,
    PostgreSQL looks for those first and reads all batches for it.
    """
    return (
        select(MicroBatchRange.micro_batch_id, MicroBatchRange.from_offset, MicroBatchRange.until_offset)
        .where(
            overlapping(each),
            _has_records(),
        )
        .cte("ranges")
        .prefix_with("MATERIALIZED")
    )


def decoded_otherwise(pipeline: str, ranges: Iterable[OffsetRange], version: str) -> list[OffsetRange]:
    """Return the parts of the ranges whose archived rows other code than this version's decoded, merged.

    A micro-batch without a version was committed before versions were noted: by other code. Where rows of a registered
    build took the place of removed landing, both have to be this version's.
    """
    ranges, parts = list(ranges), []
    with session() as ledger:
        for each in ranges:
            if not len(each):
                continue
            inside = ranges_in(each)
            rows = ledger.execute(
                select(inside.c.from_offset, inside.c.until_offset)
                .join(MicroBatch, MicroBatch.id == inside.c.micro_batch_id)
                .where(of_query(pipeline, ARCHIVE), MicroBatch.decoder_version.is_distinct_from(version))
                .order_by(inside.c.from_offset)
            )
            for low, high in rows:
                begin, end = max(low, each.from_offset), min(high, each.until_offset)
                parts.append(OffsetRange(each.topic_partition, begin, end))
        parts += [each.range for each in replaced_in(ledger, pipeline, ranges) if not each.is_of(version)]
    return merged(parts)


@dataclass(frozen=True)
class Replaced:
    """Offsets whose removed landing a registered build of other code replaced."""

    range: OffsetRange
    builds: Sequence[frozenset[str]]
    """As `decoders_of_content` returns them."""

    def is_of(self, version: str) -> bool:
        """Return whether code of this version gave the rows that took its place."""
        return {version} in self.builds


def replaced_by_other_code(pipeline: str, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts of the ranges whose archived rows were landed by other code than they have now, merged.

    Their landing was removed, and the interval was run again since, with other code. A record that only one of the two
    gave rows has its fate twice in the archive, or nowhere.
    """
    with session() as ledger:
        return merged(each.range for each in replaced_in(ledger, pipeline, ranges))


def replaced_in(ledger: Session, pipeline: str, ranges: Iterable[OffsetRange]) -> list[Replaced]:
    """Return the parts of `replaced_by_other_code`, each with its builds, within the caller's transaction."""
    parts: dict[int, list[OffsetRange]] = defaultdict(list)
    for removed in removed_in(ledger, pipeline, ranges):
        for row, held in registered_around(ledger, pipeline, removed):
            part = intersection(held, removed)
            parts[row.interval_id] += [part] if part else []
    builds = {interval: each for interval, each in decoders_in(ledger, parts).items() if each}
    landed = _landed_in(ledger, pipeline, builds)
    found: list[Replaced] = []
    for interval, theirs in builds.items():
        if any(are_of(version, landed[interval]) for version in theirs):
            continue
        for part in parts[interval]:
            others = merged(each for version, each in _versions_in(ledger, pipeline, part) if {version} not in theirs)
            found += [Replaced(each, theirs) for each in others]
    return found


def _landed_in(ledger: Session, pipeline: str, intervals: Iterable[int]) -> dict[int, set[str]]:
    """Return, by interval, the versions of the code that landed its pinned ranges; in one statement."""
    versions: dict[int, set[str]] = {each: set() for each in intervals}
    # Each range looks for its micro-batches by itself, for the same reason as in `ranges_in`.
    overlapping = select(MicroBatchRange.micro_batch_id).where(
        overlap_each_other(MicroBatchRange, IntervalRange),
        MicroBatchRange.topic_id == IntervalRange.topic_id,
        _has_records(),
    )
    inside = overlapping.correlate(IntervalRange).offset(literal_column("0")).lateral("ranges")
    wanted = (
        select(IntervalRange.interval_id, MicroBatch.decoder_version)
        .select_from(IntervalRange)
        .join(inside, true())
        .join(MicroBatch, MicroBatch.id == inside.c.micro_batch_id)
        .where(IntervalRange.interval_id.in_(versions), of_query(pipeline, ARCHIVE))
        .distinct()
    )
    for interval, version in ledger.execute(wanted).tuples() if versions else ():
        versions[interval].add(version or UNKNOWN)
    return versions


def _landed_by(ledger: Session, pipeline: str, ranges: Iterable[OffsetRange]) -> set[str]:
    versions: set[str] = set()
    for inside in (ranges_in(each) for each in ranges if len(each)):
        rows = ledger.scalars(
            select(MicroBatch.decoder_version)
            .join(inside, MicroBatch.id == inside.c.micro_batch_id)
            .where(of_query(pipeline, ARCHIVE))
            .distinct()
        )
        versions.update(version or UNKNOWN for version in rows)
    return versions


def _versions_in(ledger: Session, pipeline: str, each: OffsetRange) -> list[tuple[str, OffsetRange]]:
    """Return the parts of a range by the micro-batches that landed them, each with the version of their code."""
    inside = ranges_in(each)
    rows = ledger.execute(
        select(MicroBatch.decoder_version, inside.c.from_offset, inside.c.until_offset)
        .join(inside, MicroBatch.id == inside.c.micro_batch_id)
        .where(of_query(pipeline, ARCHIVE))
    )
    parts = ((v, intersection(each, OffsetRange(each.topic_partition, low, high))) for v, low, high in rows)
    return [(version or UNKNOWN, part) for version, part in parts if part]


def are_of(recorded: Iterable[str], landed: Iterable[str]) -> bool:
    """Return whether the versions that a build recorded are those that landed its rows.

    Builds from the archive have also recorded `unknown` for offsets that nothing decoded.
    """
    return set(recorded) in (set(landed), {*landed, UNKNOWN})


def counted_otherwise(query_id: str, version: str) -> bool:
    """Return whether a speed view's query has committed a micro-batch that other code than this version's counted."""
    # An index leads to the least and the greatest: if these two are this version, so is all between them.
    noted = select(func.min(MicroBatch.decoder_version), func.max(MicroBatch.decoder_version))
    with session() as ledger:
        versions = ledger.execute(noted.where(MicroBatch.query_id == query_id)).one()
        return any(each not in (None, version) for each in versions)


def decoders_of(pipeline: str, ranges: Iterable[OffsetRange]) -> list[str]:
    """Return the versions of the code that decoded the archived rows of the ranges; `unknown` where none was noted."""
    versions: set[str] = set()
    ranges = list(ranges)
    with session() as ledger:
        replaced = replaced_in(ledger, pipeline, ranges)
        versions.update(version for each in replaced for version in each.builds[-1])
        for each in ranges:
            held = (replace(part.range, topic_id=each.topic_id) for part in replaced)
            versions |= _landed_by(ledger, pipeline, without([each], held))
    return sorted(versions)
