"""Decisions that only a person may take: the facts before one is taken, and carrying it out if these still hold.

Each writes what its command writes (`./tidemark accept-loss`, `adopt`, `interval --repin`, `quarantine discard`,
`doctor --repair`), with the name of who decided.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from include import kafka, quarantine
from include.doctor import repair
from include.doctor.compare import disagreements_of, identity
from include.errors import UsageError, one_line
from include.intervals.boundaries import asked_interval
from include.intervals.pinning import pin_interval
from include.intervals.telling.plan import plan_interval
from include.kafka.sources import describe_source
from include.ledger.archive import micro_batches
from include.ledger.intervals import locks, pins, revisions
from include.ledger.intervals.states import Source
from include.ledger.streams.writers import live_writer
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.quarantine import Selection
from include.streams import generations
from include.streams.start import lost_offsets
from include.times import Interval, parse_time

MOST = 40
"""How many lines of facts are shown."""


class Choice(StrEnum):
    """What can be decided."""

    ACCEPT_LOSS = "accept loss"
    ADOPT = "adopt topic"
    REPIN = "pin again"
    DISCARD = "discard from quarantine"
    REPAIR = "repair the catalog"


@dataclass(frozen=True)
class Request:
    """A decision that is asked for, with what it is about."""

    choice: Choice
    pipeline: Pipeline
    topic: str = ""
    selection: Selection = field(default_factory=Selection)
    interval: Interval | None = None

    @classmethod
    def of_form(cls, form: Mapping[str, Any]) -> Request:
        """Return the request of a filled form. Raises UsageError when something that the choice needs is missing."""
        choice, pipeline = Choice(form["decision"]), load_pipeline(str(form["pipeline"]))
        topic = str(form.get("topic") or "")
        selection, interval = Selection(), None
        if choice is Choice.ADOPT and not topic:
            raise UsageError("the topic is missing", remedy="name the topic that was created again")
        if choice is Choice.DISCARD:
            chosen = (form.get("topic_partition"), form.get("offset"), form.get("reason_code") or None)
            selection = Selection.of(pipeline, topic or None, *chosen)
            if selection.everything:
                raise UsageError("no record is named", remedy="give a reason code, or topic partition and offset")
        if choice is Choice.REPIN:
            if not (form.get("from") and form.get("to")):
                raise UsageError("the interval is missing", remedy="give its start and end")
            interval = asked_interval(pipeline, parse_time(str(form["from"])), parse_time(str(form["to"])))
        return cls(choice, pipeline, topic, selection, interval)


def what_is_known(request: Request) -> list[str]:
    """Return what a person should know before deciding, a line each: the exact loss, or the plan. Nothing is changed.

    Raises UsageError when there is nothing to decide.
    """
    lines = [f"{request.choice} of {request.pipeline.name}", *_KNOWN[request.choice](request)]
    left_out = len(lines) - MOST
    shown = [one_line(line) for line in lines[:MOST]]
    return [*shown, f"… {left_out} more lines"] if left_out > 0 else shown


def digest_of_facts(request: Request) -> str:
    """Return a hash of all that a decision is about: lost ranges, incarnations, pins, records, or the plan.

    Nothing is changed. Raises UsageError for a record that is not in quarantine, and what reading Kafka raises.
    """
    return hashlib.sha256("\n".join(sorted(_FACTS[request.choice](request))).encode()).hexdigest()


def carry_out(request: Request, *, digest: str, reason: str, by: str) -> list[str]:
    """Do what was decided and return what was done, a line each.

    `digest`: that of the facts that the person was shown. Raises UsageError when the facts differ now, and what the
    command raises.
    """
    if not reason.strip():
        raise UsageError("a reason is needed, it is kept for ever", remedy="say why")
    if digest_of_facts(request) != digest:
        raise UsageError(
            "the facts are no longer those that were shown; nothing was changed",
            remedy="trigger the decision again: it shows what is known now",
            pipeline=request.pipeline.name,
        )
    return [one_line(line) for line in _DONE[request.choice](request, " ".join(reason.split()), by)]


def _lost(request: Request) -> Iterable[str]:
    return (f"{each} of {each.topic_id}" for each in lost_offsets(request.pipeline))


def _incarnations(request: Request) -> Iterator[str]:
    yield f"archived: {micro_batches.stored_topics(request.pipeline.name).get(request.topic)}"
    if (identity := describe_source(request.pipeline.source).get(request.topic)) is not None:
        yield f"now: {identity.topic_id}"
        # How many records wait is no fact of the decision: all of them are read.
        bounds = kafka.offset_bounds(kafka.topic_partitions_of([identity]))
        yield from (f"begins: {tp} at {low}" for tp, (low, _) in bounds.items())


def _pinned(request: Request) -> Iterator[str]:
    assert request.interval is not None
    if (known := pins.find_interval(request.pipeline.name, request.interval.from_time)) is not None:
        yield from (f"pinned: {each} of {each.topic_id}" for each in known.ranges)
        built = revisions.registered_of_interval(known.id)
        yield from (f"registered: {each.table} {each.partition} {each.revision}" for each in built)


def _records(request: Request) -> Iterable[str]:
    chosen = quarantine.select(request.pipeline.name, request.selection)
    return (f"{each.key} of {each.key.topic_id}: {each.reason}" for each in chosen)


def _repairs(request: Request) -> Iterator[str]:
    # By identity: the words about the same disagreement may change.
    for each in disagreements_of(request.pipeline, deep=False):
        if each.repair:
            yield f"{each.repair}: {identity(each)}"


def _known_loss(request: Request) -> Iterator[str]:
    lost = lost_offsets(request.pipeline)
    if not lost:
        raise UsageError("nothing is lost: Kafka holds everything from the archive's position on")
    yield f"lost: {sum(map(len, lost)):,} offsets, removed from Kafka before they were archived"
    yield from (f"lost: {each}, {len(each):,} offsets" for each in lost)
    yield "then: they count as gaps for ever, and a new generation of the stream opens"
    yield from _running(request)


def _known_topic(request: Request) -> Iterator[str]:
    stored = micro_batches.stored_topics(request.pipeline.name).get(request.topic, "")
    identity = describe_source(request.pipeline.source).get(request.topic)
    if identity is None or not stored or identity.topic_id == stored:
        raise UsageError(f"topic {request.topic!r} was not created again: there is nothing to adopt")
    yield f"archived: topic id {stored}; it is now {identity.topic_id}"
    for tp, (low, high) in kafka.offset_bounds(kafka.topic_partitions_of([identity])).items():
        yield f"begins: {tp} at offset {low}, {high - low:,} records wait"
    yield "then: what was archived of the old one and is in no interval yet is pinned as one interval"
    yield from _running(request)


def _known_interval(request: Request) -> Iterator[str]:
    assert request.interval is not None
    yield from plan_interval(request.pipeline, request.interval, source=Source.KAFKA, repin=True)


def _known_records(request: Request) -> Iterator[str]:
    chosen = quarantine.select(request.pipeline.name, request.selection)
    if not chosen:
        raise UsageError("no such record is in quarantine")
    yield f"chosen: {len(chosen):,} records in quarantine; their bytes stay, and they still count as quarantined"
    yield from (f"reason {reason}: {count:,}" for reason, count in Counter(each.reason for each in chosen).items())
    yield from (f"record: {each.key}" for each in chosen[:10])


def _known_plan(request: Request) -> Iterator[str]:
    plan = repair.plan(disagreements_of(request.pipeline, deep=False))
    if not plan:
        raise UsageError("ledger, catalog and files agree: there is nothing to repair")
    yield from (f"plan: {line}" for line in plan)


def _running(request: Request) -> Iterator[str]:
    if (live := live_writer(request.pipeline.name)) is not None:
        yield f"first: a driver still runs ({live.holder}); pause and stop the stream, else this is refused"


def _accept_loss(request: Request, reason: str, by: str) -> Iterator[str]:
    for each in generations.accept_loss(request.pipeline, reason=reason, accepted_by=by):
        yield f"{each} ({len(each)} offsets) is accepted as lost"


def _adopt(request: Request, reason: str, by: str) -> Iterator[str]:
    adopted = generations.adopt(request.pipeline, request.topic, reason=reason, adopted_by=by)
    yield from (f"{name}: {value}" for name, value in adopted.items())


def _pin_again(request: Request, reason: str, by: str) -> Iterator[str]:
    assert request.interval is not None
    with locks.no_attempt_under_way(request.pipeline.name, request.interval):
        pinned = pin_interval(request.pipeline, request.interval, pinned_by=by, repin=True)
    yield from (f"pinned: {each}, {len(each):,} offsets" for each in pinned.ranges)
    yield f"next: run interval__{request.pipeline.name} for it, which builds and registers these"


def _discard(request: Request, reason: str, by: str) -> Iterator[str]:
    counts = quarantine.discard(request.pipeline.name, request.selection, reason=reason, by=by)
    yield from (f"{name}: {count}" for name, count in counts.items())


def _repair(request: Request, reason: str, by: str) -> Iterator[str]:
    lines: list[str] = []
    repair.repair(disagreements_of(request.pipeline, deep=False), lines.append)
    yield from lines
    left = repair.plan(disagreements_of(request.pipeline, deep=False))
    yield f"left: {len(left)} disagreements" if left else "ledger, catalog and files agree"


_KNOWN: Mapping[Choice, Callable[[Request], Iterator[str]]] = {
    Choice.ACCEPT_LOSS: _known_loss,
    Choice.ADOPT: _known_topic,
    Choice.REPIN: _known_interval,
    Choice.DISCARD: _known_records,
    Choice.REPAIR: _known_plan,
}
_FACTS: Mapping[Choice, Callable[[Request], Iterable[str]]] = {
    Choice.ACCEPT_LOSS: _lost,
    Choice.ADOPT: _incarnations,
    Choice.REPIN: _pinned,
    Choice.DISCARD: _records,
    Choice.REPAIR: _repairs,
}
_DONE: Mapping[Choice, Callable[[Request, str, str], Iterator[str]]] = {
    Choice.ACCEPT_LOSS: _accept_loss,
    Choice.ADOPT: _adopt,
    Choice.REPIN: _pin_again,
    Choice.DISCARD: _discard,
    Choice.REPAIR: _repair,
}
