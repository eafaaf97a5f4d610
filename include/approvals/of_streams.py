"""Decisions about how a stream goes on: the facts of each, what a person should know, and carrying it out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from include import kafka
from include.approvals.request import Decided, Request
from include.erasure import accounts, new_generation
from include.errors import UsageError
from include.intervals.lake_of_ledger import lake_error
from include.kafka.sources import describe_source
from include.ledger.archive import micro_batches
from include.ledger.streams import generations as generation_ledger
from include.ledger.streams.writers import live_writer
from include.offsets import OffsetRange
from include.streams import generations
from include.streams.new_code import fit_now
from include.streams.start import lost_offsets, topics_back


def facts_of_loss(request: Request) -> Iterator[str]:
    """Yield the lost ranges, by incarnation of their topic."""
    yield from _told(lost_offsets(request.pipeline))


def _told(lost: Iterable[OffsetRange]) -> Iterator[str]:
    yield from (f"{each} of {each.topic_id}" for each in lost)


def known_loss(request: Request) -> Iterator[str]:
    """Yield what is lost. Raises UsageError when nothing is."""
    lost = lost_offsets(request.pipeline)
    if not lost:
        raise UsageError("nothing is lost: Kafka holds everything from the archive's position on")
    yield f"lost: {sum(map(len, lost)):,} offsets, removed from Kafka before they were archived"
    yield from (f"lost: {each}, {len(each):,} offsets" for each in lost)
    yield "then: they count as gaps for ever, and a new generation of the stream opens"
    yield from _running(request)


def accept_loss(request: Request, decided: Decided) -> Iterator[str]:
    """Do what `./tidemark accept-loss` does."""
    for each in generations.accept_loss(
        request.pipeline,
        reason=decided.reason,
        accepted_by=decided.by,
        agreed=lambda lost: decided.agreed(_told(lost)),
    ):
        yield f"{each} ({len(each)} offsets) is accepted as lost"


def facts_of_topic(request: Request) -> Iterator[str]:
    """Yield both incarnations of a recreated topic, and where the new one begins."""
    yield f"archived: {micro_batches.stored_topics(request.pipeline.name).get(request.topic)}"
    if (identity := describe_source(request.pipeline.source).get(request.topic)) is not None:
        yield f"now: {identity.topic_id}"
        # How many records wait is no fact of the decision: all of them are read.
        bounds = kafka.offset_bounds(kafka.topic_partitions_of([identity]))
        yield from (f"begins: {tp} at {low}" for tp, (low, _) in bounds.items())


def known_topic(request: Request) -> Iterator[str]:
    """Yield what begins where. Raises UsageError when the topic was not created again, or was mirrored."""
    stored = micro_batches.stored_topics(request.pipeline.name).get(request.topic, "")
    identity = describe_source(request.pipeline.source).get(request.topic)
    if identity is None or not stored or identity.topic_id == stored:
        raise UsageError(f"topic {request.topic!r} was not created again: there is nothing to adopt")
    yield f"archived: topic id {stored}; it is now {identity.topic_id}"
    bounds = kafka.offset_bounds(kafka.topic_partitions_of([identity]))
    generations.check_not_mirrored(request.pipeline, request.topic, stored, bounds)
    for tp, (low, high) in bounds.items():
        yield f"begins: {tp} at offset {low}, {high - low:,} records wait"
    yield "then: what was archived of the old one and is in no interval yet is pinned as one interval, and so is each"
    yield "gap between pinned intervals that has some of it, with what the pipeline's other topics have there"
    yield from _running(request)


def adopt(request: Request, decided: Decided) -> Iterator[str]:
    """Do what `./tidemark adopt` does."""
    adopted = generations.adopt(request.pipeline, request.topic, reason=decided.reason, adopted_by=decided.by)
    yield from (f"{name}: {value}" for name, value in adopted.items())


def facts_of_leaving(request: Request) -> Iterator[str]:
    """Yield which incarnation of a topic is left, and where."""
    leaving = generations.topic_to_leave(request.pipeline, request.topic)
    yield f"archived: {leaving.topic_id}"
    # How many records nobody has read is no fact of the decision: none of them is read.
    yield from (f"left: {tp} at {at}" for tp, at in leaving.left_at.items())


def known_leaving(request: Request) -> Iterator[str]:
    """Yield where a topic is left and what waits there. Raises UsageError when it is still read, or was never."""
    leaving = generations.topic_to_leave(request.pipeline, request.topic)
    yield f"archived: topic id {leaving.topic_id}"
    yield from (f"left: {tp} at offset {at}" for tp, at in leaving.left_at.items())
    yield f"unread: {leaving.unread:,} records wait beyond, and are not read"
    yield "then: what is archived of it and in no interval yet is in the next one, and a new generation opens"
    yield "declared again, it is read from where it was left"
    yield from _running(request)


def leave(request: Request, decided: Decided) -> Iterator[str]:
    """Do what `./tidemark unsubscribe` does."""
    left = generations.unsubscribe(request.pipeline, request.topic, reason=decided.reason, left_by=decided.by)
    yield from (f"{name}: {value}" for name, value in left.items())


def facts_of_generation(request: Request) -> Iterator[str]:
    """Yield the generation that would end, why, and what the new one reads again."""
    current = generation_ledger.current(request.pipeline.name)
    yield f"current: {current.number if current else None}"
    yield from _why_a_new_one(request)
    yield from _forgotten_erasures(request)


def known_generation(request: Request) -> Iterator[str]:
    """Yield which generation would end, and why the stream is refused. Raises UsageError when it was never started."""
    current = generation_ledger.current(request.pipeline.name)
    if current is None and lake_error(request.pipeline) is None:
        raise UsageError("its stream was never started: it begins with generation 0")
    yield f"current: generation {current.number}" if current else "current: the ledger knows no generation"
    yield from _why_a_new_one(request)
    yield from _forgotten_erasures(request)
    yield "then: new checkpoints where the archive ends; speed views are built again from the archive"
    yield from _running(request)


def begin_generation(request: Request, decided: Decided) -> Iterator[str]:
    """Do what `./tidemark new-generation` does."""
    told: list[str] = []
    number = new_generation.begin_generation(request.pipeline, reason=decided.reason, by=decided.by, tell=told.append)
    yield f"generation {number} begins when the stream is started"
    yield from told


def _forgotten_erasures(request: Request) -> Iterator[str]:
    for each in accounts.unknown(request.pipeline.name):
        yield f"{each}; {each.remedy}"


def _why_a_new_one(request: Request) -> Iterator[str]:
    """Yield why the stream would not continue; that nothing keeps it from doing so is worth knowing, too."""
    pipeline, why = request.pipeline, []
    if (error := lake_error(pipeline)) is not None:
        why.append(f"refused: {error.message}")
    if needs := fit_now(pipeline).needs:
        why.append(f"refused: {needs}")
    why += [f"back: {topic}, read from where it was left" for topic in topics_back(pipeline)]
    yield from why or ["nothing known keeps the stream from continuing"]


def _running(request: Request) -> Iterator[str]:
    if (live := live_writer(request.pipeline.name)) is not None:
        yield (
            f"first: the command {live.command} still runs ({live.holder}); until it has ended, this is refused"
            if live.command
            else f"first: a driver still runs ({live.holder}); pause and stop the stream, else this is refused"
        )
