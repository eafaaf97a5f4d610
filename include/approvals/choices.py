"""Decisions that only a person may take: the facts before one is taken, and carrying it out if these still hold.

Each writes what its command writes (`./tidemark accept-loss`, `adopt`, `unsubscribe`, `new-generation`,
`interval --repin`, `quarantine discard`, `doctor --repair`), with the name of who decided.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from include import quarantine
from include.approvals import of_streams
from include.approvals.request import Choice, Decided, Request
from include.doctor import repair
from include.doctor.compare import disagreements_of, identity
from include.doctor.disagreement import Disagreement
from include.errors import UsageError, one_line
from include.intervals.lake_of_ledger import check_lake
from include.intervals.pinning import pin_interval
from include.intervals.reporting.asking import notify_overtaken
from include.intervals.reporting.plan import plan_interval
from include.ledger.intervals import locks, pins, revisions
from include.ledger.intervals.states import Source

MOST = 40
"""How many lines of facts are shown."""


def what_is_known(request: Request) -> list[str]:
    """Return what a person should know before deciding, a line each: the exact loss, or the plan. Nothing is changed.

    Raises UsageError when there is nothing to decide.
    """
    lines = [f"{request.choice} of {request.pipeline.name}", *_DECISIONS[request.choice].known(request)]
    left_out = len(lines) - MOST
    shown = [one_line(line) for line in lines[:MOST]]
    return [*shown, f"… {left_out} more lines"] if left_out > 0 else shown


def digest_of_facts(request: Request) -> str:
    """Return a hash of all that a decision is about: lost ranges, incarnations, pins, records, or the plan.

    Nothing is changed. Raises UsageError for a record that is not in quarantine, and what reading Kafka raises.
    """
    return _digest(_DECISIONS[request.choice].facts(request))


def _digest(facts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()


def carry_out(request: Request, *, digest: str, reason: str, by: str) -> list[str]:
    """Do what was decided and return what was done, a line each.

    `digest`: that of the facts that the person was shown. Raises UsageError when the facts differ now, and what the
    command raises.
    """
    if not reason.strip():
        raise UsageError("a reason is needed", remedy="say why")
    decision = _DECISIONS[request.choice]
    _check_shown(request, digest, decision.facts(request))
    # A stream adds records, and retention removes some, at any time: once more, for just those that it is about.
    decided = Decided(" ".join(reason.split()), by, agreed=lambda facts: _check_shown(request, digest, facts))
    return [one_line(line) for line in decision.carry_out(request, decided)]


def _check_shown(request: Request, digest: str, facts: Iterable[str]) -> None:
    if _digest(facts) != digest:
        raise UsageError(
            "the facts are no longer those that were shown; nothing was changed",
            remedy="trigger the decision again: it shows what is known now",
            pipeline=request.pipeline.name,
        )


def _pinned(request: Request) -> Iterator[str]:
    assert request.interval is not None
    if (known := pins.find_interval(request.pipeline.name, request.interval.from_time)) is not None:
        yield from (f"pinned: {each} of {each.topic_id}" for each in known.ranges)
        built = revisions.registered_of_interval(known.id)
        yield from (f"registered: {each.table} {each.partition} {each.revision}" for each in built)


def _records(request: Request) -> Iterable[str]:
    return _told(quarantine.select(request.pipeline.name, request.selection))


def _told(chosen: Iterable[quarantine.Quarantined]) -> Iterable[str]:
    return (f"{each.key} of {each.key.topic_id}: {each.reason}" for each in chosen)


def _repairs(request: Request) -> Iterator[str]:
    # By identity: the words about the same disagreement may change.
    for each in _disagreements(request):
        if each.repair:
            yield f"{each.repair}: {identity(each)}"


def _disagreements(request: Request) -> list[Disagreement]:
    """Return what ledger, catalog and files disagree about.

    Raises the error of `check_lake`: in a lake that is not mounted all is missing, and tables would be made anew there.
    """
    check_lake(request.pipeline)
    return [*disagreements_of(request.pipeline, deep=False)]


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
    plan = repair.plan(_disagreements(request))
    if not plan:
        raise UsageError("ledger, catalog and files agree: there is nothing to repair")
    yield from (f"plan: {line}" for line in plan)


def _pin_again(request: Request, decided: Decided) -> Iterator[str]:
    assert request.interval is not None
    with locks.no_attempt_under_way(request.pipeline.name, request.interval):
        pinned = pin_interval(request.pipeline, request.interval, pinned_by=decided.by, repin=True)
        notify_overtaken(request.pipeline.name, [request.interval])
    yield from (f"pinned: {each}, {len(each):,} offsets" for each in pinned.ranges)
    yield f"next: run interval__{request.pipeline.name} for it, which builds and registers these"


def _discard(request: Request, decided: Decided) -> Iterator[str]:
    counts = quarantine.discard(
        request.pipeline.name,
        request.selection,
        reason=decided.reason,
        by=decided.by,
        agreed=lambda records: decided.agreed(_told(records)),
    )
    yield from (f"{name}: {count}" for name, count in counts.items())


def _repair(request: Request, decided: Decided) -> Iterator[str]:
    lines: list[str] = []
    repair.repair(_disagreements(request), lines.append)
    yield from lines
    left = repair.plan(_disagreements(request))
    yield f"left: {len(left)} disagreements" if left else "ledger, catalog and files agree"


class _Decision(NamedTuple):
    """What there is of a choice, each as lines."""

    facts: Callable[[Request], Iterable[str]]
    """All that the decision is about, in any order."""
    known: Callable[[Request], Iterator[str]]
    """What a person is shown. Raises UsageError when there is nothing to decide."""
    carry_out: Callable[[Request, Decided], Iterator[str]]
    """Does it, and yields what was done."""


_DECISIONS: Mapping[Choice, _Decision] = {
    Choice.ACCEPT_LOSS: _Decision(of_streams.facts_of_loss, of_streams.known_loss, of_streams.accept_loss),
    Choice.ADOPT: _Decision(of_streams.facts_of_topic, of_streams.known_topic, of_streams.adopt),
    Choice.LEAVE: _Decision(of_streams.facts_of_leaving, of_streams.known_leaving, of_streams.leave),
    Choice.NEW_GENERATION: _Decision(
        of_streams.facts_of_generation, of_streams.known_generation, of_streams.begin_generation
    ),
    Choice.REPIN: _Decision(_pinned, _known_interval, _pin_again),
    Choice.DISCARD: _Decision(_records, _known_records, _discard),
    Choice.REPAIR: _Decision(_repairs, _known_plan, _repair),
}
