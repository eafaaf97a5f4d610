"""Approvals: builds that failed only by warnings, and what a person decided about each.

A decision is about one build, the suite by which it was judged, and the warnings that were shown. When one of these
changes, the decision no longer holds, and the question is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select
from sqlalchemy.orm import Session

from include.errors import UsageError
from include.ledger.connection import check_version
from include.ledger.database import session
from include.ledger.erasures.coordinates import check_registered
from include.ledger.intervals.attempts import REBUILD, repins_since
from include.ledger.intervals.findings import ExpectationKey, ExpectationResult, without_numbers
from include.ledger.intervals.pins import pinned_of
from include.ledger.intervals.states import RevisionState
from include.ledger.models import Approval, Attempt, Build, IntervalRow, Revision
from include.times import Interval, format_time


@dataclass(frozen=True)
class Decision:
    """What a person decided about a build's warnings."""

    approved: bool
    by: str
    """user@host, or the user of Airflow."""
    reason: str
    at: datetime

    def as_json(self) -> dict[str, str]:
        """Return the form of the verdict: decision, by, reason, at."""
        said = "approved" if self.approved else "refused"
        return {"decision": said, "by": self.by, "reason": self.reason, "at": format_time(self.at)}


@dataclass(frozen=True)
class Question:
    """A build whose warnings a person is asked about."""

    id: int
    build: int
    attempt: int
    pipeline: str
    interval: Interval
    suite: str
    """Version of what was expected."""
    asked_at: datetime
    warnings: tuple[Mapping[str, Any], ...]
    """Expectations that were not met, as their results are kept."""
    decision: Decision | None
    """None as long as nobody has decided."""

    @property
    def keys(self) -> frozenset[ExpectationKey]:
        """The expectations that a decision is about."""
        return frozenset(
            (each["table"], each["expectation"], each["column"], without_numbers(each["words"]))
            for each in self.warnings
        )


def ask(build: int, suite: str, warnings: Sequence[ExpectationResult]) -> Question:
    """Ask a person about a build's warnings, unless the last question is the same; return the question.

    Raises AnotherWriter when records of its interval were erased since it was built: the warnings may show them.
    """
    with session() as ledger:
        interval = ledger.get_one(Build, build).interval_id
        check_registered(ledger, pinned_of(ledger, ledger.get_one(IntervalRow, interval)), build)
        # Two publications at the same time ask one question.
        ledger.get_one(Build, build, with_for_update=True)
        last = _first(ledger, _of_build(build))
        if last is not None and last.suite == suite and last.keys >= {each.key for each in warnings}:
            return last
        kept = [each.as_json() for each in warnings]
        row = Approval(build_id=build, interval_id=interval, suite=suite, warnings=kept)
        ledger.add(row)
        ledger.flush()
        return _one(ledger, row.id)


def question(number: int) -> Question:
    """Return a question. Raises UsageError when there is none of the number."""
    with session() as ledger:
        return _one(ledger, number)


def last_of_build(build: int | None) -> Question | None:
    """Return what was asked last about a build; None when nothing was."""
    with session() as ledger:
        return _first(ledger, _of_build(build))


def last_of_interval(pipeline: str, interval: Interval) -> Question | None:
    """Return what was asked last about an interval; None when nothing was, or the build has been overtaken since.

    Builds for comparison only do not count.
    """
    latest = _latest_build(pipeline, interval).scalar_subquery()
    with session() as ledger:
        return _first(ledger, _of_build(latest).where(still_counts()))


def is_latest(question: Question) -> bool:
    """Return whether the interval was not built again since; builds for comparison only do not count."""
    with session() as ledger:
        return ledger.scalar(_latest_build(question.pipeline, question.interval)) == question.build


def _latest_build(pipeline: str, interval: Interval) -> Select[int]:
    of_interval = (IntervalRow.pipeline == pipeline, IntervalRow.from_time == interval.from_time)
    return (
        select(func.max(Build.id))
        .join(IntervalRow, IntervalRow.id == Build.interval_id)
        .join(Attempt, Attempt.id == Build.attempt_id)
        .where(*of_interval, Attempt.run_by != REBUILD)
    )


def still_counts() -> ColumnElement[bool]:
    """Return the condition that a question was decided, or that its build can still be registered.

    It cannot once its interval was pinned again, or an erasure discarded it.
    """
    given_up = (RevisionState.DISCARDED, RevisionState.REMOVED)
    is_discarded = exists().where(Revision.build_id == Build.id, Revision.state.in_(given_up))
    return or_(Approval.approved.is_not(None), and_(~repins_since(Build).exists(), ~is_discarded))


def decide(question: int, *, approved: bool, by: str, reason: str) -> Question:
    """Note what a person decided; return the question with it.

    The first decision stays. Raises UsageError without a reason, when it was decided otherwise, when a newer question
    about the build exists, and when newer code has migrated the ledger.
    """
    check_version()
    if not reason.strip():
        raise UsageError("a reason is needed, it is kept for ever", remedy='--reason "…"')
    with session() as ledger:
        asked = _one(ledger, question)
        # Asking takes the same lock.
        ledger.get_one(Build, asked.build, with_for_update=True)
        last = _first(ledger, _of_build(asked.build))
        if last is not None and last.id != question:
            raise UsageError(
                f"question {question} was asked again as {last.id}: the suite or its warnings have changed",
                remedy="look at the interval's page, then decide about that",
                pipeline=asked.pipeline,
            )
        row = ledger.get_one(Approval, question, populate_existing=True)
        if row.approved is None:
            row.approved, row.decided_by, row.reason = approved, by, " ".join(reason.split())
            row.decided_at = func.now()
        elif row.approved is not approved:
            raise UsageError(
                f"it was {'approved' if row.approved else 'refused'} by {row.decided_by} before: {row.reason}",
                remedy="run the interval again, which asks again",
                pipeline=asked.pipeline,
            )
        ledger.flush()
        return _one(ledger, question)


def _questions() -> Select[Approval, Build, IntervalRow]:
    return (
        select(Approval, Build, IntervalRow)
        .join(Build, Build.id == Approval.build_id)
        .join(IntervalRow, IntervalRow.id == Approval.interval_id)
        .execution_options(populate_existing=True)
    )


def _of_build(build: Any) -> Select[Approval, Build, IntervalRow]:
    return _questions().where(Approval.build_id == build).order_by(Approval.id.desc()).limit(1)


def _one(ledger: Session, question: int) -> Question:
    question_row = _first(ledger, _questions().where(Approval.id == question))
    if question_row is None:
        raise UsageError(f"there is no question {question}", remedy="run the interval, which reports what it asks")
    return question_row


def _first(ledger: Session, wanted: Select[Approval, Build, IntervalRow]) -> Question | None:
    row = ledger.execute(wanted).tuples().first()
    return _question(*row) if row else None


def _question(row: Approval, build: Build, interval: IntervalRow) -> Question:
    decision = None
    if row.approved is not None and row.decided_at is not None:
        decision = Decision(row.approved, row.decided_by or "", row.reason or "", row.decided_at)
    times = Interval(interval.from_time, interval.to_time)
    asked = (row.suite, row.asked_at, tuple(row.warnings))
    return Question(row.id, build.id, build.attempt_id, interval.pipeline, times, *asked, decision)
