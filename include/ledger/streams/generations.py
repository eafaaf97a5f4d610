"""Generations of a pipeline's stream: opened alone, with accepted losses, or with an adopted topic."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from include.errors import TidemarkError, UsageError
from include.ledger.archive.micro_batches import ARCHIVE, BatchCommit, has_batch_since, put_query_at
from include.ledger.archive.positions import check_topics, position_rows
from include.ledger.archive.removal import removed_in
from include.ledger.database import lock, session
from include.ledger.intervals import pins
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.models import Generation, IntervalRow, MicroBatch, Topic
from include.ledger.streams import incarnations, losses, writers
from include.ledger.streams.writers import Lease
from include.offsets import OffsetRange, TopicIdentity, TopicPartition, offsets_json, parse_offsets_json
from include.times import Interval

SPAN = 2**40
"""Versions of a generation: the first micro-batch of each of its queries has a multiple, a base the one before."""


def base_version(version: int) -> int:
    """Return the version of the base of the generation that a micro-batch with this version belongs to."""
    return (version + 1) // SPAN * SPAN - 1


@dataclass(frozen=True)
class StreamGeneration:
    """A generation of a pipeline's stream: checkpoints and speed views that belong together."""

    pipeline: str
    number: int
    fingerprints: Mapping[str, Any]
    """By query that has started: what its checkpoint depends on."""
    positions: Mapping[str, str]
    """By query that has started: where it began, as the Spark Kafka source writes offsets."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """By speed view: Kafka's id of the compacted topic that it writes, where it is noted."""

    def version(self, batch_id: int) -> int:
        """Return the version of what a micro-batch of a speed view emits: it grows over generations too.

        The base, with which a generation may begin, counts as micro-batch -1.
        """
        return self.number * SPAN + batch_id

    def began_at(self, query: str) -> dict[TopicPartition, int]:
        """Return where the query began in this generation; empty before its first start."""
        return parse_offsets_json(self.positions[query]) if query in self.positions else {}


def _of(row: Generation) -> StreamGeneration:
    return StreamGeneration(row.pipeline, row.number, dict(row.fingerprints), dict(row.positions), dict(row.topics))


def _last(ledger: Session, pipeline: str) -> Generation | None:
    wanted = select(Generation).where(Generation.pipeline == pipeline)
    return ledger.scalar(wanted.order_by(Generation.number.desc()).limit(1))


def current(pipeline: str) -> StreamGeneration | None:
    """Return the pipeline's current generation; None before its first start."""
    with session() as ledger:
        row = _last(ledger, pipeline)
        return _of(row) if row else None


def pipelines_with_streams() -> list[str]:
    """Return the pipelines of which a stream ever started, declared or not, by name."""
    with session() as ledger:
        return list(ledger.scalars(select(Generation.pipeline).distinct().order_by(Generation.pipeline)))


def current_or_first(pipeline: str, started_by: str) -> StreamGeneration:
    """Return the pipeline's current generation, which the first start creates."""
    with session() as ledger:
        _lock(ledger, pipeline)
        row = _last(ledger, pipeline)
        if row is None:
            row = Generation(pipeline=pipeline, number=0, started_by=started_by, reason="first start")
            row.fingerprints, row.positions = {}, {}
            if ledger.scalar(select(MicroBatch.id).where(MicroBatch.pipeline == pipeline).limit(1)) is not None:
                # The ledger is older than generations: its checkpoints lie elsewhere and are not continued.
                row.number, row.reason = 1, "checkpoints from before there were generations"
            ledger.add(row)
            ledger.flush()
        return _of(row)


def open_generation(lease: Lease, *, started_by: str, reason: str, beyond: int = -1, back: Iterable[str] = ()) -> int:
    """Open the pipeline's next generation in one transaction, and return its number, which is greater than `beyond`.

    `back`: topics that had left, and that it reads again. Raises AnotherWriter.
    """
    with session() as ledger:
        writers.check(ledger, lease)
        for topic in back:
            row = ledger.get_one(Topic, (lease.pipeline, topic))
            row.left_at, row.left_by, row.left_for = None, None, None
        return open_in(ledger, lease.pipeline, started_by, reason, beyond)


def open_without_topic(lease: Lease, topic: str, *, left_by: str, reason: str) -> int:
    """Note that a topic has left and open the next generation, in one transaction. Raises AnotherWriter."""
    with session() as ledger:
        writers.check(ledger, lease)
        row = ledger.get_one(Topic, (lease.pipeline, topic))
        row.left_at, row.left_by, row.left_for = func.now(), left_by, reason
        return open_in(ledger, lease.pipeline, left_by, f"without {topic}: {reason}")


def open_with_losses(
    lease: Lease,
    lost: Sequence[OffsetRange],
    ranges: Sequence[OffsetRange],
    topics: Mapping[str, TopicIdentity],
    *,
    accepted_by: str,
    reason: str,
) -> int:
    """Accept lost offsets and open the next generation in one transaction, and return its number.

    `ranges`: the offsets of each topic partition that the archive's position moves over, lost ones included; `topics`:
    their topics, some of which may never have been read. Raises AnotherWriter, TopicRecreated.
    """
    with session() as ledger:
        writers.check(ledger, lease)
        rows = losses.add_losses(ledger, lease.pipeline, lost)
        for row in rows:
            row.accepted_at, row.accepted_by, row.reason = func.now(), accepted_by, reason
        check_topics(ledger, lease.pipeline, topics)
        put_query_at(ledger, lease.token, _move(lease.pipeline, f"loss-{rows[0].id}", ranges))
        return open_in(ledger, lease.pipeline, accepted_by, f"accepted loss {rows[0].id}: {reason}")


@dataclass(frozen=True)
class Rest:
    """Archived offsets of a topic that are in no interval yet, as the interval that they are pinned as."""

    interval: Interval
    ranges: Sequence[OffsetRange]
    topic_ids: Mapping[str, str]


def open_with_topic(
    lease: Lease,
    successor: TopicIdentity,
    rest: Rest | None,
    ranges: Sequence[OffsetRange],
    *,
    adopted_by: str,
    reason: str,
) -> tuple[int, PinnedInterval | None]:
    """Adopt a topic that was created again and open the next generation, in one transaction.

    The rest of its old incarnation is pinned; the archive's positions move over `ranges`, which begin at the new
    topic's earliest offsets. Returns the generation's number and the pinned rest.
    Raises AnotherWriter, or TidemarkError when the rest does not tile with what was pinned meanwhile.
    """
    pipeline = lease.pipeline
    with session() as ledger:
        writers.check(ledger, lease)
        # Housekeeping removes landing files under the same lock, but none of a pipeline that has adopted a topic.
        pins.lock_pinning(ledger, pipeline)
        begins = {each.topic_partition: each.from_offset for each in ranges}
        _check_landing(ledger, pipeline, successor.topic, begins)
        pinned = None
        if rest is not None:
            _check_unpinned(ledger, pipeline, rest)
            pinned = pins.write(ledger, pipeline, rest.interval, rest.ranges, rest.topic_ids, pinned_by=adopted_by)
        incarnations.succeed(ledger, pipeline, successor, adopted_by, reason)
        put_query_at(ledger, lease.token, _move(pipeline, f"adopt-{successor.topic_id}", ranges))
        return open_in(ledger, pipeline, adopted_by, f"adopted {successor.topic}: {reason}"), pinned


def check_landing(pipeline: str, topic: str, begins: Mapping[TopicPartition, int]) -> None:
    """Raise UsageError when landing files of offsets were removed that the new topic, which `begins` there, has, too.

    Tables identify rows by offset alone.
    """
    with session() as ledger:
        _check_landing(ledger, pipeline, topic, begins)


def _check_landing(ledger: Session, pipeline: str, topic: str, begins: Mapping[TopicPartition, int]) -> None:
    archived = {
        TopicPartition(row.topic, row.topic_partition): row.next_offset
        for row in position_rows(ledger, pipeline, ARCHIVE)
        if row.topic == topic
    }
    # One that is no longer there may be added later, and begins at 0.
    shared = [OffsetRange(tp, at, until) for tp, until in archived.items() if (at := begins.get(tp, 0)) < until]
    if removed := removed_in(ledger, pipeline, shared):
        raise UsageError(
            f"the landing files of {removed[0]} were removed, and in the tables its rows cannot be distinguished from "
            "those that the new topic will have at the same offsets",
            remedy="give the new topic another name and declare that one",
            pipeline=pipeline,
        )


def _check_unpinned(ledger: Session, pipeline: str, rest: Rest) -> None:
    since = select(IntervalRow.id).where(
        IntervalRow.pipeline == pipeline, IntervalRow.from_time >= rest.interval.from_time
    )
    if ledger.scalar(since.limit(1)) is not None:
        raise TidemarkError(
            f"{rest.interval} was pinned meanwhile; the topic was not adopted", remedy="adopt again", pipeline=pipeline
        )


def _move(pipeline: str, query_id: str, ranges: Sequence[OffsetRange]) -> BatchCommit:
    return BatchCommit(pipeline, ARCHIVE, f"{query_id}-{pipeline}", 0, ranges)


def open_in(ledger: Session, pipeline: str, started_by: str, reason: str, beyond: int = -1) -> int:
    """Open the next generation in a transaction that has checked the lease, and return its number."""
    _lock(ledger, pipeline)
    last = _last(ledger, pipeline)
    number = max(last.number if last else 0, beyond) + 1
    row = Generation(pipeline=pipeline, number=number, started_by=started_by, reason=reason)
    row.fingerprints, row.positions = {}, {}
    ledger.add(row)
    ledger.flush()
    return row.number


def note_start(
    generation: StreamGeneration, query: str, fingerprint: Mapping[str, Any], began_at: Mapping[TopicPartition, int]
) -> None:
    """Record what a query's checkpoint depends on and where it begins, at its first start in the generation."""
    with session() as ledger:
        row = ledger.get_one(Generation, (generation.pipeline, generation.number), with_for_update=True)
        row.fingerprints = {**row.fingerprints, query: dict(fingerprint)}
        row.positions = {**row.positions, query: offsets_json(began_at)}


def first_starts(generation: StreamGeneration) -> dict[TopicPartition, int] | None:
    """Return where queries of the generation began; for other topic partitions, where the archive query first began.

    Read anew, because the queries of one start are noted one after the other. None before the pipeline's first start.
    """
    wanted = select(Generation).where(
        Generation.pipeline == generation.pipeline, Generation.number <= generation.number
    )
    with session() as ledger:
        noted = [_of(row) for row in ledger.scalars(wanted.order_by(Generation.number.desc()))]
    begun = [each.began_at(ARCHIVE) for each in noted if ARCHIVE in each.positions]
    # A base is noted before its view starts, and begins nowhere.
    begun += [at for each in noted[:1] for query in each.positions if (at := each.began_at(query))]
    return dict(ChainMap(*reversed(begun))) if begun else None


def note_facts(generation: StreamGeneration, query: str, facts: Mapping[str, Any]) -> None:
    """Note facts of what a started query's checkpoint depends on that are not noted yet, or not as they are now."""
    with session() as ledger:
        row = ledger.get_one(Generation, (generation.pipeline, generation.number), with_for_update=True)
        row.fingerprints = {**row.fingerprints, query: {**row.fingerprints[query], **facts}}


def note_topics(generation: StreamGeneration, topics: Mapping[str, str]) -> None:
    """Note by speed view Kafka's id of the compacted topic that it writes."""
    with session() as ledger:
        row = ledger.get_one(Generation, (generation.pipeline, generation.number), with_for_update=True)
        row.topics = {**row.topics, **topics}


def event_time(pipeline: str) -> str | None:
    """Return which column, or field of one, was the archive's event time when a stream started last."""
    wanted = select(Generation.event_time).where(Generation.pipeline == pipeline, Generation.event_time.is_not(None))
    with session() as ledger:
        return ledger.scalar(wanted.order_by(Generation.number.desc()).limit(1))


def note_event_time(generation: StreamGeneration, path: str) -> None:
    """Record which column, or field of one, is the archive's event time."""
    with session() as ledger:
        ledger.get_one(Generation, (generation.pipeline, generation.number), with_for_update=True).event_time = path


def has_committed(generation: StreamGeneration, view: str) -> bool:
    """Return whether a speed view's stream has committed a micro-batch in the generation (its base does not count)."""
    return has_batch_since(generation.pipeline, view, generation.version(0))


def has_written(generation: StreamGeneration, view: str) -> bool:
    """Return whether all targets of a speed view have its base, or a micro-batch, of the generation."""
    return has_batch_since(generation.pipeline, view, generation.version(-1))


def _lock(ledger: Session, pipeline: str) -> None:
    lock(ledger, f"generation:{pipeline}")
