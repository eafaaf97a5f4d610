"""Limits by which flags are raised: the learned versions, and from which offsets on each was in force.

Flags themselves are in their topic only. From what is recorded here follows which flags must be there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import ColumnElement, false, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from include.ledger.archive.committed import FLAGS as FLAGS
from include.ledger.database import session
from include.ledger.intervals.revisions import as_built
from include.ledger.intervals.states import RevisionState
from include.ledger.lineage import BuiltRevision
from include.ledger.models import FlagRun, FlagRunStart, IntervalRow, LimitsVersion, Revision
from include.ledger.streams import writers
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Limit

_KEY = (Revision.table_name, Revision.table_partition, Revision.id)


class RevisionKey(NamedTuple):
    """What identifies a revision, whose files never change."""

    table: str
    partition: str
    revision: str


@dataclass(frozen=True)
class InForce:
    """Limits in force over a range: what is flagged there follows from them."""

    range: OffsetRange
    version: int
    rules_version: str
    """The code that raised the flags."""
    since: datetime
    """When the query began that used them."""
    flags_topic_id: str | None
    """Kafka's id of the topic that it wrote flags to; None when that was not noted."""


def registered_within(pipeline: str, tables: Sequence[str], over: timedelta) -> list[BuiltRevision]:
    """Return the tables' registered revisions of intervals that end within `over` before the last one's end."""
    with session() as ledger:
        wanted = select(Revision).where(*_registered_last(ledger, pipeline, tables, over))
        return [as_built(revision) for revision in ledger.scalars(wanted.order_by(*_KEY))]


def registered_keys(pipeline: str, tables: Sequence[str], over: timedelta) -> list[RevisionKey]:
    """Return the keys of what `registered_within` would return: its rows, with all names of files, are much longer."""
    with session() as ledger:
        wanted = select(*_KEY).where(*_registered_last(ledger, pipeline, tables, over))
        return [RevisionKey(*row) for row in ledger.execute(wanted.order_by(*_KEY)).tuples()]


def _registered_last(
    ledger: Session, pipeline: str, tables: Sequence[str], over: timedelta
) -> tuple[ColumnElement[bool], ...]:
    """Return the conditions on the tables' last revisions. Earlier intervals are not read, however many there are."""
    of_tables = (Revision.table_name.in_(tables), Revision.state == RevisionState.REGISTERED)
    own, begin, end = IntervalRow.pipeline == pipeline, IntervalRow.from_time, IntervalRow.to_time
    delivered = select(Revision.id).where(*of_tables, Revision.interval_id == IntervalRow.id)
    last = ledger.scalar(select(end).where(own, delivered.exists()).order_by(begin.desc()).limit(1))
    if last is None:
        return (false(),)
    # Intervals do not overlap: of those that begin before the time in question, only the last can end in it.
    first = ledger.scalar(select(func.max(begin)).where(own, begin <= last - over))
    ended = select(IntervalRow.id).where(own, begin >= (first or last - over), end > last - over)
    return (*of_tables, Revision.interval_id.in_(ended))


def note_limits(lease: writers.Lease, learned_from: Iterable[BuiltRevision], limits: Sequence[Limit]) -> int:
    """Return the version of these limits: the last one if they are equal, else a new one."""
    with session() as ledger:
        writers.check(ledger, lease)
        version, last = last_limits(lease.pipeline)
        if version and last == list(limits):
            return version
        sources = [{"table": r.table, "partition": r.partition, "revision": r.revision} for r in learned_from]
        row = LimitsVersion(pipeline=lease.pipeline, learned_from=sources, limits=[list(limit) for limit in limits])
        ledger.add(row)
        ledger.flush()
        return row.id


def last_limits(pipeline: str) -> tuple[int, list[Limit]]:
    """Return the pipeline's last version of limits; before the first, version 0 without any."""
    with session() as ledger:
        wanted = select(LimitsVersion).where(LimitsVersion.pipeline == pipeline)
        last = ledger.scalar(wanted.order_by(LimitsVersion.id.desc()).limit(1))
        return (last.id, [Limit(*each) for each in last.limits]) if last else (0, [])


def limits_of(pipeline: str, versions: Iterable[int]) -> dict[int, list[Limit]]:
    """Return the limits of those of the versions that the pipeline knows."""
    with session() as ledger:
        rows = ledger.scalars(
            select(LimitsVersion).where(LimitsVersion.pipeline == pipeline, LimitsVersion.id.in_(set(versions)))
        )
        return {row.id: [Limit(*each) for each in row.limits] for row in rows}


def erased_rules(pipeline: str) -> dict[int, list[str]]:
    """Return the rules that lost limits by erasures, by version: their flags need not follow from what is left."""
    with session() as ledger:
        wanted = select(LimitsVersion.id, LimitsVersion.erased_rules).where(
            LimitsVersion.pipeline == pipeline, func.jsonb_array_length(LimitsVersion.erased_rules) > 0
        )
        return {version: list(rules) for version, rules in ledger.execute(wanted)}


def note_run(
    lease: writers.Lease,
    version: int | None,
    rules_version: str,
    starts: Mapping[TopicPartition, int],
    ids: Mapping[str, str],
    flags_topic_id: str | None = None,
) -> int:
    """Record that a query with these limits is about to begin at `starts`, and return its number.

    `ids`: topic ids by topic; `flags_topic_id`: the one of the topic that it writes to.

    Without a version, nobody raises flags from there on: the records are gone from Kafka. In topic partitions that the
    last query did not begin in, it may have raised flags that it did not commit: it counts as begun there, too.
    """
    with session() as ledger:
        writers.check(ledger, lease)
        last = _last_run(ledger, lease.pipeline)
        row = FlagRun(
            pipeline=lease.pipeline,
            limits_version=version,
            token=lease.token,
            rules_version=rules_version,
            flags_topic_id=flags_topic_id,
        )
        ledger.add(row)
        ledger.flush()
        for tp, offset in starts.items():
            # Of two that begin at one offset the later is in force.
            for run in filter(None, (row.id, last if version is not None else 0)):
                _add_start(ledger, run, ids[tp.topic], tp.partition, offset)
        return row.id


def last_run(pipeline: str) -> int:
    """Return the number of the last query with limits; 0 before the first."""
    with session() as ledger:
        return _last_run(ledger, pipeline)


def _last_run(ledger: Session, pipeline: str) -> int:
    wanted = select(FlagRun.id).where(FlagRun.pipeline == pipeline, FlagRun.limits_version.is_not(None))
    return ledger.scalar(wanted.order_by(FlagRun.id.desc()).limit(1)) or 0


def note_added(run: int, topic_id: str, topic_partition: int) -> None:
    """Record that a run reads a topic partition, unless it is known to, from its beginning: it was added since."""
    with session() as ledger:
        _add_start(ledger, run, topic_id, topic_partition, 0)


def _add_start(ledger: Session, run: int, topic_id: str, topic_partition: int, offset: int) -> None:
    """Record where a run begins in a topic partition, unless that is known."""
    values = {"flag_run_id": run, "topic_id": topic_id, "topic_partition": topic_partition, "from_offset": offset}
    ledger.execute(insert(FlagRunStart).values(**values).on_conflict_do_nothing())


def in_force(pipeline: str, ranges: Iterable[OffsetRange]) -> list[InForce]:
    """Return the limits in force over the parts of the ranges, in order; offsets before any run are omitted.

    Among runs that begin at the same offset the last one counts. Ranges carry their topic's id.
    """
    parts: list[InForce] = []
    with session() as ledger:
        for each in ranges:
            begins = (
                FlagRun.pipeline == pipeline,
                FlagRunStart.topic_id == each.topic_id,
                FlagRunStart.topic_partition == each.topic_partition.partition,
            )
            of_partition = select(FlagRunStart, FlagRun).join(FlagRun, FlagRun.id == FlagRunStart.flag_run_id)
            before = (
                select(FlagRunStart.from_offset)
                .join(FlagRun, FlagRun.id == FlagRunStart.flag_run_id)
                .where(*begins, FlagRunStart.from_offset <= each.from_offset)
                .order_by(FlagRunStart.from_offset.desc())
                .limit(1)
            )
            first = ledger.scalar(before)
            rows = ledger.execute(
                of_partition.where(
                    *begins,
                    FlagRunStart.from_offset >= (each.from_offset if first is None else first),
                    FlagRunStart.from_offset < each.until_offset,
                ).order_by(FlagRunStart.from_offset, FlagRun.id)
            ).all()
            last_of = {start.from_offset: run for start, run in rows}
            offsets = [*last_of, each.until_offset]
            for (offset, run), until in zip(last_of.items(), offsets[1:], strict=True):
                part = OffsetRange(each.topic_partition, max(offset, each.from_offset), until, each.topic_id)
                if len(part) and run.limits_version is not None:
                    parts.append(
                        InForce(part, run.limits_version, run.rules_version, run.started_at, run.flags_topic_id)
                    )
    return parts


def other_code_began(pipeline: str, force: InForce, rules_version: str) -> int | None:
    """Return where the last query of other code began in the topic partition, before the one in force; None without.

    It may have raised flags far beyond what it committed.
    """
    wanted = (
        select(FlagRunStart.from_offset)
        .join(FlagRun, FlagRun.id == FlagRunStart.flag_run_id)
        .where(
            FlagRun.pipeline == pipeline,
            FlagRun.limits_version.is_not(None),
            FlagRun.rules_version != rules_version,
            FlagRun.started_at < force.since,
            FlagRunStart.topic_id == force.range.topic_id,
            FlagRunStart.topic_partition == force.range.topic_partition.partition,
        )
    )
    with session() as ledger:
        return ledger.scalar(wanted.order_by(FlagRun.id.desc()).limit(1))


def has_read(pipeline: str, topic_id: str) -> bool:
    """Return whether a query for flags ever began to read this topic."""
    with session() as ledger:
        wanted = select(FlagRun.id).join(FlagRunStart, FlagRunStart.flag_run_id == FlagRun.id)
        wanted = wanted.where(FlagRun.pipeline == pipeline, FlagRunStart.topic_id == topic_id)
        return ledger.scalar(wanted.limit(1)) is not None


def first_starts(
    pipeline: str, versions: Iterable[int], topic_ids: Mapping[str, str]
) -> dict[int, dict[TopicPartition, int]]:
    """Return, by version, where a query with these limits first began in each topic partition: it flags none before."""
    topics = {topic_id: topic for topic, topic_id in topic_ids.items()}
    starts: dict[int, dict[TopicPartition, int]] = {version: {} for version in versions}
    with session() as ledger:
        rows = ledger.execute(
            select(
                FlagRun.limits_version,
                FlagRunStart.topic_id,
                FlagRunStart.topic_partition,
                func.min(FlagRunStart.from_offset),
            )
            .join(FlagRun, FlagRun.id == FlagRunStart.flag_run_id)
            .where(
                FlagRun.pipeline == pipeline,
                FlagRun.limits_version.in_(starts),
                FlagRunStart.topic_id.in_(topics),
            )
            .group_by(FlagRun.limits_version, FlagRunStart.topic_id, FlagRunStart.topic_partition)
        )
        for version, topic_id, partition, offset in rows:
            assert version is not None
            starts[version][TopicPartition(topics[topic_id], partition)] = offset
    return starts
