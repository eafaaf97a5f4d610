"""How a stream goes on when it must not simply continue: a new generation, a loss, an adopted topic, one that left.

Each holds the pipeline's lease, so that no stream runs meanwhile, and commits one transaction of the ledger
(`include/ledger/streams/generations.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from include import kafka
from include.catalog.declared import check_storage_early
from include.errors import TopicRecreated, UsageError
from include.intervals.boundaries import check_sources
from include.intervals.lake_of_ledger import check_checkpoints, check_lake
from include.intervals.rest import pin_gaps, rest_of
from include.kafka.sources import describe_source, source_topic_partitions
from include.kafka.truncation import timestamps_at
from include.lake.checkpoints import generation_folders
from include.ledger.archive import micro_batches
from include.ledger.archive.positions import topics_that_left
from include.ledger.connection import check_version
from include.ledger.intervals import pinned as pinned_ledger
from include.ledger.streams import generations, writers
from include.ledger.streams.writers import Lease
from include.offsets import OffsetRange, TopicIdentity, TopicPartition
from include.pipelines.spec import Pipeline
from include.streams.event_time import check_event_time
from include.streams.start import lost_offsets, positions_to_hold, removed_unread, topics_back
from include.streams.written_topics import check_not_taken_over
from include.times import format_timestamp


@contextmanager
def no_stream(pipeline: str, command: str) -> Iterator[Lease]:
    """Hold the pipeline's lease during the block, as this command.

    Raises AnotherWriter at once when a live driver or another command holds it, UsageError when newer code has migrated
    the ledger.
    """
    check_version()
    if (writer := writers.live_writer(pipeline)) is not None:
        raise writer.in_the_way(pipeline)
    lease = writers.acquire(pipeline, command)
    try:
        yield lease
    finally:
        writers.release(lease)


def check_own(pipeline: Pipeline) -> None:
    """Raise the errors of `check_lake` and `check_not_taken_over`: once a generation is open, neither is raised."""
    check_lake(pipeline)
    check_not_taken_over(pipeline)


def _check_reason(reason: str) -> str:
    if not reason.strip():
        raise UsageError("a reason is needed, it is kept for ever", remedy='--reason "…"')
    return " ".join(reason.split())


def new_generation(pipeline: Pipeline, *, reason: str, started_by: str) -> int:
    """Open the next generation and return its number: its stream begins with new checkpoints where the archive ends.

    Its number is greater than that of any checkpoint in the lake, also when the ledger has lost some generations.
    Topics that had left and are declared again are read from where they were left. Raises AnotherWriter while a stream
    runs, UsageError for another event time, for declared columns that registered files cannot follow, and for a table
    of another pipeline's; while a topic is among those that left, ServiceUnreachable.
    """
    reason = _check_reason(reason)
    check_event_time(pipeline)
    check_storage_early(pipeline)
    with no_stream(pipeline.name, "new-generation") as lease:
        # What became of other topics is told at the start: `adopt` and `unsubscribe` may need this one first.
        back = topics_back(pipeline)
        beyond = max(generation_folders(pipeline.name), default=-1)
        return generations.open_generation(lease, started_by=started_by, reason=reason, beyond=beyond, back=back)


Agreed = Callable[[Sequence[OffsetRange]], None]


def accept_loss(
    pipeline: Pipeline, *, reason: str, accepted_by: str, agreed: Agreed = lambda _: None
) -> list[OffsetRange]:
    """Go on without the offsets that Kafka removed before they were archived, and return them.

    They are noted for ever, the archive's position moves over them, and a new generation opens.
    Raises UsageError when nothing is lost, what `agreed` raises when it is given the lost offsets, the errors of
    `check_own`, TopicRecreated, AnotherWriter.
    """
    reason = _check_reason(reason)
    check_own(pipeline)
    with no_stream(pipeline.name, "accept-loss") as lease:
        if not (lost := accept_losses(pipeline, lease, reason=reason, accepted_by=accepted_by, agreed=agreed)):
            raise UsageError(
                "nothing is lost: Kafka holds everything from the archive's position on", pipeline=pipeline.name
            )
        return lost


def accept_losses(
    pipeline: Pipeline, lease: Lease, *, reason: str, accepted_by: str, agreed: Agreed = lambda _: None
) -> list[OffsetRange]:
    """Accept losses as the holder of the pipeline's lease; change nothing when nothing is lost.

    Raises what `agreed` raises when it is given the lost offsets, the errors of `check_own`, TopicRecreated.
    """
    check_own(pipeline)
    lost = {each.topic_partition: each for each in lost_offsets(pipeline)}
    if lost:
        agreed([*lost.values()])
        identities = check_sources(pipeline)
        positions = positions_to_hold(pipeline, source_topic_partitions(pipeline.source, identities))
        ranges = [lost.get(tp, OffsetRange(tp, at, at, identities[tp.topic].topic_id)) for tp, at in positions.items()]
        topics = {tp.topic: identities[tp.topic] for tp in positions}
        stored, left = micro_batches.stored_topics(pipeline.name), topics_that_left(pipeline.name)
        ended = micro_batches.positions(pipeline.name).items()
        ranges += [OffsetRange(tp, at, at, stored[tp.topic]) for tp, at in ended if tp.topic in left - topics.keys()]
        generations.open_with_losses(lease, [*lost.values()], ranges, topics, accepted_by=accepted_by, reason=reason)
    return [*lost.values()]


def pass_over_removed(
    pipeline: Pipeline, lease: Lease, *, reason: str, started_by: str
) -> dict[str, list[OffsetRange]]:
    """Open the next generation where Kafka removed what only speed views, or flags, had not read; return it by query.

    All of it is archived, and in the bases that the generation's views begin with; flags pass over it.
    Raises the errors of `check_own` and `check_checkpoints`, TopicRecreated, AnotherWriter.
    """
    check_own(pipeline)
    generation = generations.current(pipeline.name)
    removed = removed_unread(pipeline, generation)
    if removed and generation:
        # To an older copy of the ledger, views are behind that are not.
        check_checkpoints(generation, removed)
        generations.open_generation(lease, started_by=started_by, reason=reason)
    return removed


def adopt(pipeline: Pipeline, topic: str, *, reason: str, adopted_by: str, read_again: bool = False) -> dict[str, Any]:
    """Go on with a topic that was deleted and created again; return what was closed and what begins.

    Archived offsets of the old incarnation that belong to no interval yet are pinned: those after the last pinned
    interval as one, and each gap before it that has some as one. The positions restart at the new topic's earliest
    offsets, and a new generation opens.
    Raises UsageError when there is nothing to adopt and, without `read_again`, what `check_not_mirrored` raises; the
    errors of `check_own`, TopicRecreated while the topic does not exist, AnotherWriter.
    """
    reason = _check_reason(reason)
    check_own(pipeline)
    stored = micro_batches.stored_topics(pipeline.name)
    if topic not in stored or not pipeline.source.reads(topic):
        raise UsageError(
            f"{topic!r} is not a topic that was read before",
            remedy=f"one of: {', '.join(sorted(stored)) or 'none yet'}",
            pipeline=pipeline.name,
        )
    with no_stream(pipeline.name, "adopt") as lease:
        identities = describe_source(pipeline.source)
        successor = _successor(pipeline, topic, identities.get(topic), stored[topic])
        bounds = kafka.offset_bounds(source_topic_partitions(pipeline.source, {topic: successor}))
        begins = {tp: low for tp, (low, _) in bounds.items()}
        if not read_again:
            check_not_mirrored(pipeline, topic, stored[topic], bounds)
        generations.check_landing(pipeline.name, topic, begins)
        others = {tp: at for tp, at in micro_batches.positions(pipeline.name).items() if tp.topic != topic}
        ranges = [OffsetRange(tp, at, at, stored[tp.topic]) for tp, at in others.items()]
        ranges += [OffsetRange(tp, low, low, successor.topic_id) for tp, low in begins.items()]
        gaps = pin_gaps(pipeline, topic, pinned_by=adopted_by)
        rest = rest_of(pipeline, topic)
        number, pinned = generations.open_with_topic(
            lease, successor, rest, ranges, adopted_by=adopted_by, reason=reason
        )
    return {
        "topic": topic,
        "closed_topic_id": stored[topic],
        "topic_id": successor.topic_id,
        "begins": {str(tp): low for tp, low in begins.items()},
        "pinned": str(pinned.interval) if pinned else None,
        "gaps": [str(each) for each in gaps],
        "generation": number,
    }


def check_not_mirrored(
    pipeline: Pipeline, topic: str, stored_id: str, bounds: Mapping[TopicPartition, tuple[int, int]]
) -> None:
    """Raise UsageError when a new topic holds records of the one that was archived, by offset and timestamp.

    `bounds`: earliest and end offsets of the new one. Looked at are the records before the last pinned ends: a topic
    that was mirrored to another cluster at its offsets has them, and all that was archived would be archived again.
    """
    ends = pinned_ledger.noted_ends(pipeline.name, topic, stored_id)
    noted = {tp: end for tp, end in ends.items() if tp in bounds and bounds[tp][0] <= end[0] < bounds[tp][1]}
    now = timestamps_at({tp: offset for tp, (offset, _) in noted.items()})
    same = [tp for tp in sorted(now) if now[tp] == noted[tp][1]]
    if not same:
        return
    archived = {tp: at for tp, at in sorted(micro_batches.positions(pipeline.name).items()) if tp.topic == topic}
    raise UsageError(
        f"the new topic {topic} has records that were archived of the former one: {same[0]} offset "
        f"{noted[same[0]][0]} holds one of {format_timestamp(now[same[0]])}, as it did",
        remedy=f"delete them up to what is archived ({', '.join(f'{tp} up to {at}' for tp, at in archived.items())}): "
        "include/docs/runbook.md, “A topic that moved to another cluster”; only if they shall be archived again: "
        f'./tidemark adopt {pipeline.name} {topic} --read-again --reason "…"',
        pipeline=pipeline.name,
    )


@dataclass(frozen=True)
class LeavingTopic:
    """A topic that the source does not name any more, and where the archive has left it."""

    topic_id: str
    left_at: Mapping[TopicPartition, int]
    unread: int
    """Offsets that wait beyond."""


def topic_to_leave(pipeline: Pipeline, topic: str) -> LeavingTopic:
    """Return where a topic is left that the source does not name any more.

    Raises UsageError for a topic that was never read, has left before, or that the source still reads.
    """
    read = micro_batches.stored_topics(pipeline.name)
    left = topics_that_left(pipeline.name)
    if topic not in read or topic in left:
        raise UsageError(
            f"{topic!r} is not a topic that is read",
            remedy=f"one of: {', '.join(sorted(read.keys() - left)) or 'none yet'}",
            pipeline=pipeline.name,
        )
    if topic in pipeline.source.named or topic in describe_source(pipeline.source):
        raise UsageError(
            f"the source still reads {topic!r}", remedy="take it out of the declaration first", pipeline=pipeline.name
        )
    positions = {tp: at for tp, at in sorted(micro_batches.positions(pipeline.name).items()) if tp.topic == topic}
    existing = kafka.describe_topics([topic]).get(topic)
    is_same = existing is not None and existing.topic_id == read[topic]
    ends = {tp: end for tp, (_, end) in kafka.offset_bounds(positions).items()} if is_same else {}
    return LeavingTopic(read[topic], positions, sum(max(0, end - positions[tp]) for tp, end in ends.items()))


def unsubscribe(pipeline: Pipeline, topic: str, *, reason: str, left_by: str) -> dict[str, Any]:
    """Stop reading a topic that the source does not name any more, and return where it was left and what waits there.

    The next interval gets what is archived of it and in no interval yet. A new generation opens. If the topic is
    declared again, `new_generation` goes on where it was left.
    Raises like `topic_to_leave`; the errors of `check_own`, AnotherWriter, ServiceUnreachable.
    """
    reason = _check_reason(reason)
    check_own(pipeline)
    topic_to_leave(pipeline, topic)
    with no_stream(pipeline.name, "unsubscribe") as lease:
        # A driver that was running until now may have read more of it.
        leaving = topic_to_leave(pipeline, topic)
        number = generations.open_without_topic(lease, topic, left_by=left_by, reason=reason)
    return {
        "topic": topic,
        "topic_id": leaving.topic_id,
        "left_at": {str(tp): at for tp, at in leaving.left_at.items()},
        "unread": leaving.unread,
        "generation": number,
    }


def _successor(pipeline: Pipeline, topic: str, identity: TopicIdentity | None, stored_id: str) -> TopicIdentity:
    if identity is None:
        raise TopicRecreated(
            f"topic {topic} (id {stored_id}) no longer exists",
            remedy="restore it, or create it again and adopt it then; if it will not come back: "
            f'./tidemark unsubscribe {pipeline.name} {topic} --reason "…"',
            pipeline=pipeline.name,
        )
    if identity.topic_id == stored_id:
        raise UsageError(
            f"topic {topic} is the one that was read before (id {stored_id}): nothing to adopt", pipeline=pipeline.name
        )
    return identity
