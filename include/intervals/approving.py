"""Deciding about a build that failed only by warnings, for the command and for Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from include.errors import UsageError
from include.intervals import steps
from include.intervals.reporting.asking import notify_decided
from include.intervals.verdict import Verdict
from include.ledger.erasures.open import open_erasures
from include.ledger.intervals import attempts, builds, locks
from include.ledger.inventory import has_later_attempt
from include.ledger.validation import approvals
from include.ledger.validation.approvals import Question
from include.times import Interval

_PUBLISHED_WITHIN = timedelta(minutes=10)
"""How long after an approval whoever gave it may take to publish the build, before somebody else does."""


class Answered(StrEnum):
    """Why nobody needs to be asked a question any more."""

    DECIDED = "decided"
    BUILT_AGAIN = "the interval was built again since"
    OVERTAKEN = "the interval was pinned again, or records of it were erased since"


def answered(question: int) -> Answered | None:
    """Return why nobody needs to be asked a question any more; None while it is open.

    An approval counts once the build is published, or should have been long ago. While the interval may be built again,
    it stays open until it was.
    """
    asked = approvals.question(question)
    last = approvals.last_of_interval(asked.pipeline, asked.interval)
    if last is None or last.build != asked.build:
        # Before looking for a newer build: whoever works on it may note it meanwhile.
        is_worked_on = _is_worked_on(asked)
        if not approvals.is_latest(asked):
            return Answered.BUILT_AGAIN
        return None if is_worked_on else Answered.OVERTAKEN
    if (decision := asked.decision) is None:
        # A newer question about the same build is the one that is open; whoever answers this one is told so.
        return None
    waits = decision.approved and not builds.is_published(asked.build)
    return None if waits and datetime.now(UTC) - decision.at < _PUBLISHED_WITHIN else Answered.DECIDED


def _is_worked_on(asked: Question) -> bool:
    """Return whether a run or an erasure may build the question's interval again."""
    return (
        # First: whoever pins it again holds this lock until an attempt has begun.
        bool(locks.with_attempts(asked.pipeline, [asked.interval]))
        or has_later_attempt(asked.attempt)
        or any(each.pipeline == asked.pipeline for each in open_erasures())
    )


def find_question(pipeline: str, interval: Interval, number: int | None = None) -> Question:
    """Return the question that a person is asked about an interval; its number must be `number` if that is given.

    Raises UsageError when there is no question, and when it has another number.
    """
    question = approvals.last_of_interval(pipeline, interval)
    if question is None:
        raise UsageError(
            f"{interval} does not wait for approval", remedy="run the interval, which asks for it", pipeline=pipeline
        )
    if number not in (None, question.id):
        raise UsageError(
            f"question {number} is not what is asked about {interval} now: that is question {question.id}",
            remedy="look at the interval's page, then decide about that",
            pipeline=pipeline,
        )
    return question


def approve(question: Question, *, by: str, reason: str) -> Question:
    """Note that the warnings are approved; publishing the attempt then registers the build. Raises like `decide`."""
    decided = approvals.decide(question.id, approved=True, by=by, reason=reason)
    notify_decided(decided)
    return decided


def refuse(question: Question, *, by: str, reason: str) -> Verdict:
    """Note that the build is refused, write its report and return its verdict; what is registered stays.

    Raises UsageError like `decide`, and when the build was registered meanwhile; AnotherWriter while it is being
    published.
    """
    with locks.publishing(question.pipeline, question.interval):
        if builds.is_published(question.build):
            raise UsageError(
                f"{question.interval} is published already: its warnings were met or approved meanwhile",
                remedy="run the interval again to replace it",
                pipeline=question.pipeline,
            )
        decided = approvals.decide(question.id, approved=False, by=by, reason=reason)
        spec = attempts.load_attempt(question.attempt)
        if decided.decision and spec.build == question.build:
            builds.refuse(spec, decided.id, decided.decision.as_json())
        notify_decided(decided)
        return steps.announce(question.attempt)


def lines_of(question: Question) -> Iterator[str]:
    """Yield what a decision is about, and what was decided, a line each."""
    yield f"question {question.id}: {question.pipeline} {question.interval}, suite {question.suite}"
    for each in question.warnings:
        yield f"warning: {each['table']}: {each['words']} (observed {each['observed'] or 'nothing'})"
    if question.decision is not None:
        said = question.decision.as_json()
        yield f"{said['decision']} by {said['by']} at {said['at']}: {said['reason']}"
