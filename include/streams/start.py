"""The start of a stream: checks of topics, retention and generation, and where each query begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from include import kafka, lake
from include.catalog.declared import check_storage_early
from include.errors import OffsetsLost, UsageError
from include.intervals.boundaries import check_sources
from include.intervals.lake_of_ledger import check_checkpoints, check_lake
from include.intervals.references import keep_references
from include.kafka.sources import describe_source, first_offsets, source_topic_partitions
from include.kafka.truncation import check_ends
from include.lake.checkpoints import generation_folders
from include.ledger.archive import micro_batches
from include.ledger.archive.committed import committed_offsets
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.archive.positions import topics_that_left
from include.ledger.streams import flags as flag_ledger
from include.ledger.streams import generations, lines, losses
from include.ledger.streams.flags import FLAGS
from include.ledger.streams.generations import StreamGeneration
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline
from include.pipelines.spec.references import check_references
from include.processes import user_at_host
from include.serving.live_rows import check_own_live_tables, check_written_live_tables
from include.streams import fingerprint
from include.streams.checkpoints import checkpoint_uri, facts_of_begun, has_started
from include.streams.event_time import check_event_time
from include.streams.watched_things import check_watched_things
from include.streams.written_topics import (
    check_compacted_topics,
    check_only_ledger,
    check_own_topics,
    create_written_topics,
    note_compacted_topics,
)


def topics_back(pipeline: Pipeline) -> list[str]:
    """Return the topics that had left the pipeline and that its source reads again.

    Without one that was created again: it is adopted.
    """
    if not (left := topics_that_left(pipeline.name)):
        return []
    stored = micro_batches.stored_topics(pipeline.name)
    existing = describe_source(pipeline.source).values()
    return sorted(each.topic for each in existing if each.topic in left and each.topic_id == stored[each.topic])


def archive_positions(
    pipeline: Pipeline, topic_partitions: Iterable[TopicPartition], query: str = ARCHIVE
) -> dict[TopicPartition, int]:
    """Return the next offset of a query for each topic partition whose topic it has read.

    A topic partition that the ledger does not know was added since: it begins at 0.
    """
    known = micro_batches.positions(pipeline.name, query)
    topics = {tp.topic for tp in known}
    return {tp: known.get(tp, 0) for tp in topic_partitions if tp.topic in topics}


def positions_to_hold(
    pipeline: Pipeline, topic_partitions: Iterable[TopicPartition], query: str = ARCHIVE
) -> dict[TopicPartition, int]:
    """Return `archive_positions`, and 0 for those of topics that have joined a query since it started.

    The checkpoint does not know such a topic, so Spark reads it from 0, and fails when its beginning was removed.
    """
    wanted = list(topic_partitions)
    positions = archive_positions(pipeline, wanted, query)
    generation = generations.current(pipeline.name)
    if generation is None or not (began := generation.began_at(query)):
        return positions
    known = {tp.topic for tp in (*positions, *began)}
    return {**positions, **{tp: 0 for tp in wanted if tp.topic not in known}}


def lost_offsets(pipeline: Pipeline, query: str = ARCHIVE) -> list[OffsetRange]:
    """Return the offsets that Kafka removed before the query committed them, per topic partition."""
    identities = check_sources(pipeline)
    positions = positions_to_hold(pipeline, source_topic_partitions(pipeline.source, identities), query)
    bounds = kafka.offset_bounds(positions)
    return [
        OffsetRange(tp, at, bounds[tp][0], identities[tp.topic].topic_id)
        for tp, at in sorted(positions.items())
        if bounds[tp][0] > at
    ]


def check_retention(pipeline: Pipeline, generation: StreamGeneration | None) -> None:
    """Raise OffsetsLost with the exact loss, and record it in the ledger, when Kafka removed offsets too early.

    Raises LogTruncated when a topic partition ends before an offset that a query has read.
    """
    check_log(pipeline)
    if lost := lost_offsets(pipeline):
        losses.note_losses(pipeline.name, lost)
        raise kafka.unread_error(pipeline.name, lost)
    if removed := removed_unread(pipeline, generation):
        query, lost = next(iter(removed.items()))
        raise OffsetsLost(
            f"{removed_before(query, lost)} read it; all of it is archived",
            remedy=f"{'pass over it' if query == FLAGS else 'build the view from the archive'}: "
            f'./tidemark new-generation {pipeline.name} --reason "…"',
            pipeline=pipeline.name,
        )


def check_log(pipeline: Pipeline) -> None:
    """Raise LogTruncated when a topic partition ends before an offset that a query or an output has reached.

    Raises TopicRecreated, ServiceUnreachable.
    """
    reached: dict[TopicPartition, int] = {}
    for positions in committed_offsets(pipeline.name).values():
        for tp, offset in positions.items():
            reached[tp] = max(offset, reached.get(tp, 0))
    topic_partitions = set(source_topic_partitions(pipeline.source, check_sources(pipeline))) & reached.keys()
    ends = {tp: end for tp, (_, end) in kafka.offset_bounds(topic_partitions, "read_uncommitted").items()}
    check_ends(pipeline.name, reached, ends)


def removed_unread(pipeline: Pipeline, generation: StreamGeneration | None) -> dict[str, list[OffsetRange]]:
    """Return what Kafka removed before a speed view, or the flags, read it, by query that has started."""
    beside = (*(view.name for view in pipeline.views), *((FLAGS,) if pipeline.flags else ()))
    started = [query for query in beside if generation is not None and has_started(generation, query)]
    return {query: lost for query in started if (lost := lost_offsets(pipeline, query))}


def removed_before(query: str, lost: Iterable[OffsetRange]) -> str:
    """Return in words what was removed, and before which of `removed_unread`'s queries."""
    reader = "the flags' query" if query == FLAGS else f"the speed view {query}"
    return f"{'; '.join(f'{each} ({len(each)} offsets)' for each in lost)} was removed before {reader}"


@dataclass(frozen=True)
class StreamStart:
    """The generation that a stream continues or begins."""

    generation: StreamGeneration
    fingerprints: Mapping[str, fingerprint.Facts]

    def check_checkpoint(self, view: str) -> None:
        """Raise UsageError when a speed view's checkpoint is gone: its state cannot be rebuilt from offsets."""
        generation = self.generation
        if not has_started(generation, view) and generations.has_committed(generation, view):
            location = checkpoint_uri(generation, view)
            raise UsageError(
                f"the checkpoint {location} is gone, and with it the state of the speed view {view}",
                remedy=f'build the view from the archive: ./tidemark new-generation {generation.pipeline} --reason "…"',
                pipeline=generation.pipeline,
            )

    def note(self, pipeline: Pipeline, query: str) -> dict[TopicPartition, int]:
        """Return where a query without a checkpoint begins, and record it with its fingerprint.

        Empty when a checkpoint is continued.
        """
        if has_started(self.generation, query):
            return {}
        offsets = self._offsets_of(pipeline, query)
        if query == FLAGS:
            offsets = self._flags_begin(pipeline, offsets)
        generations.note_start(self.generation, query, self.fingerprints[query], offsets)
        return offsets

    def note_base(self, view: str) -> None:
        """Record the fingerprint that a speed view's base is made with; where its query begins is noted later."""
        generations.note_start(self.generation, view, self.fingerprints[view], {})

    def _flags_begin(self, pipeline: Pipeline, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return where flags begin without a checkpoint: at their position, as far as Kafka still has it.

        In a topic without flags so far they begin where the archive is: nobody waits for flags of old records. A start
        that failed before the checkpoint was made has noted this, and the next one begins there.
        """
        noted = self.generation.began_at(FLAGS)
        # Not `positions`: after a topic was created again, that of flags is still one of the former topic.
        committed = committed_offsets(pipeline.name).get(FLAGS, {}) if noted else {}
        known = {
            topic: bool(noted) or flag_ledger.has_read(pipeline.name, identity.topic_id)
            for topic, identity in describe_source(pipeline.source).items()
        }
        archived = archive_positions(pipeline, offsets)
        wanted = {tp: at if known[tp.topic] else archived.get(tp, at) for tp, at in offsets.items()}
        read = {tp.topic for tp in noted}
        wanted |= {tp: max(noted.get(tp, 0), committed.get(tp, 0)) for tp in wanted if tp.topic in read}
        return {tp: max(wanted[tp], low) for tp, (low, _) in kafka.offset_bounds(wanted).items()}

    def _offsets_of(self, pipeline: Pipeline, query: str) -> dict[TopicPartition, int]:
        """Return where a query without a checkpoint begins: where the ledger says, else at the declared start.

        The declared start is of the moment in which the pipeline is first started. All queries begin there, also those
        that start later, after a crash, or in another generation before anything was read. Of a pattern's topics, it is
        the start of those that existed then: later ones are read from their own, whether a stream ran or not. After the
        ledger was lost, nobody knows where the archive began: nothing begins at the end then.
        """
        topic_partitions = source_topic_partitions(pipeline.source, describe_source(pipeline.source))
        positions = archive_positions(pipeline, topic_partitions, query)
        rest = [tp for tp in topic_partitions if tp not in positions]
        bounds = kafka.offset_bounds(rest)
        noted = generations.first_starts(self.generation)
        is_first = noted is None and not micro_batches.positions(pipeline.name)
        noted = noted or {}
        read = {tp.topic for tp in noted}
        joined = {
            tp: low for tp, (low, _) in bounds.items() if tp.topic in read or (pipeline.source.pattern and not is_first)
        }
        # A topic that ends before is another one, created again before anything was read.
        begun = {tp: max(low, noted[tp]) for tp, (low, end) in bounds.items() if noted.get(tp, end + 1) <= end}
        # The archive query is noted before its checkpoint is made: an older one is of another ledger.
        is_lost = is_first and any(
            number < self.generation.number and lake.list_entries(f"{folder}/{ARCHIVE}", recursive=False)
            for number, folder in generation_folders(pipeline.name).items()
        )
        unknown = {tp: span for tp, span in bounds.items() if tp not in joined}
        declared = first_offsets(pipeline.source, unknown, is_lost=is_lost)
        return {**declared, **joined, **begun, **positions}


def _check_own_name(pipeline: Pipeline) -> None:
    """Raise UsageError when another pipeline was read from lines by this one's name: landing files are of lines."""
    if read := lines.declared_under(pipeline.name):
        raise UsageError(
            f"{read} was read from lines under the name {pipeline.name}: landing, quarantine and checkpoints of that "
            "name hold its lines",
            remedy="declare this pipeline by another name",
            pipeline=pipeline.name,
        )


def begin(pipeline: Pipeline) -> StreamStart:
    """Check everything that must hold before a query starts, and return the generation to run.

    Raises TopicRecreated, LogTruncated, OffsetsLost, UsageError (query, checkpoint, ledger or columns do not fit),
    ServiceUnreachable.
    """
    check_lake(pipeline)
    check_event_time(pipeline)
    check_storage_early(pipeline)
    check_references(pipeline.references, pipeline.name)
    check_watched_things(pipeline)
    keep_references(pipeline)
    stored = micro_batches.stored_topics(pipeline.name)
    if not stored:
        _check_own_name(pipeline)
    for topic in set(pipeline.source.subscribe) - stored.keys():
        kafka.create_topic(topic, pipeline.source.topic_partitions)
    check_sources(pipeline)
    if back := topics_back(pipeline):
        raise UsageError(
            f"{', '.join(back)} left the pipeline and is declared again; the checkpoints do not know where it was left",
            remedy=f'go on there: ./tidemark new-generation {pipeline.name} --reason "…"',
            pipeline=pipeline.name,
        )
    check_only_ledger(pipeline, source_topic_partitions(pipeline.source, describe_source(pipeline.source)))
    check_own_topics(pipeline)
    check_compacted_topics(pipeline)
    check_own_live_tables(pipeline)
    create_written_topics(pipeline)
    generation = generations.current_or_first(pipeline.name, user_at_host())
    check_checkpoints(generation, (ARCHIVE, *(view.name for view in pipeline.views), FLAGS))
    fingerprints = fingerprint.fingerprints_of(pipeline)
    begun = facts_of_begun(generation)
    for query, facts in fingerprints.items():
        if query in begun:
            fingerprint.check(pipeline.name, query, begun[query], facts)
    check_written_live_tables(pipeline, generation)
    start = StreamStart(generation, fingerprints)
    for view in pipeline.views:
        start.check_checkpoint(view.name)
    check_retention(pipeline, generation)
    note_unnoted(generation, fingerprints)
    generations.note_event_time(generation, pipeline.archive.event_time)
    return replace(start, generation=note_compacted_topics(pipeline, generation))


def note_unnoted(generation: StreamGeneration, fingerprints: Mapping[str, fingerprint.Facts]) -> None:
    """Record facts of started queries that the code of their first start did not know, or that may change."""
    for query, facts in fingerprints.items():
        if query in generation.fingerprints and (missing := fingerprint.unnoted(generation.fingerprints[query], facts)):
            generations.note_facts(generation, query, missing)
