"""What a person decides about a build's warnings is kept with who, when and why, and is about nothing else."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest

from include.errors import UsageError
from include.intervals import approving
from include.intervals.approving import Answered
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, locks
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.intervals.pins import replace_ranges
from include.ledger.intervals.revisions import of_build, registered_of_interval, set_state
from include.ledger.intervals.states import RevisionState
from include.ledger.inventory import mark_revisions_removed, revisions_no_longer_needed
from include.ledger.models import Attempt, Erasure
from include.ledger.validation import approvals
from include.ledger.validation.approvals import Decision, Question
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build, register

pytestmark = pytest.mark.services

ROW = {"kafka_topic": "nest-logs", "kafka_partition": "0", "kafka_offset": "7", "kind": "x"}
WARNED = ExpectationResult("t", "expect_set", "kind", "kind is a", False, "1 %", 1, severity="warn", examples=(ROW,))
FEW = ExpectationResult("t", "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn")
KEPT = replace(FEW, words="it keeps 9 rows")


def ask(pipeline: str, *, suite: str = "suite-1", warned: ExpectationResult = WARNED) -> Question:
    """What is asked about the build of a new attempt."""
    attempt = begin_attempt(pipeline)
    note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    question = approvals.ask(spec.build, suite, (warned,))
    builds.hold(spec, Validation(False, pipeline, (warned,), question=question.id))
    return question


def decision(question: Question | None) -> Decision:
    assert question is not None
    assert question.decision is not None
    return question.decision


def at_once(*calls: Callable[[], Question]) -> list[Question | UsageError]:
    """Start all calls at the same moment; return each one's result or refusal."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], Question]) -> Question | UsageError:
        barrier.wait(10)
        try:
            return call()
        except UsageError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


def test_question_holds_build_suite_and_warnings_when_it_is_undecided(pipeline: str) -> None:
    question = ask(pipeline)
    assert approvals.last_of_interval(pipeline, hour()) == question
    assert (question.pipeline, question.interval, question.suite, question.decision) == (
        pipeline,
        hour(),
        "suite-1",
        None,
    )
    assert question.warnings == (WARNED.as_json(),)
    assert question.keys == {WARNED.key}
    decided = approvals.decide(question.id, approved=True, by="airflow admin", reason=" a quiet\nholiday ")
    said = decision(decided)
    assert (said.approved, said.by, said.reason) == (True, "airflow admin", "a quiet holiday")
    assert approvals.last_of_build(question.build) == decided


def test_question_is_asked_once_and_its_decision_stays_when_it_is_repeated(pipeline: str) -> None:
    question = ask(pipeline, warned=FEW)
    decided = approvals.decide(question.id, approved=True, by="ada", reason="a holiday")
    assert approvals.ask(question.build, "suite-1", (replace(FEW, words="51 to 290.5 rows"),)) == decided


@pytest.mark.parametrize(
    ("suite", "warnings"),
    [("suite-2", (FEW,)), ("suite-1", (FEW, WARNED)), ("suite-1", (WARNED,)), ("suite-1", (FEW, KEPT))],
    ids=["another suite", "a further warning", "another warning", "a further one of the same kind"],
)
def test_nobody_has_decided_when_suite_or_warnings_are_others_than_those_that_were_approved(
    pipeline: str, suite: str, warnings: tuple[ExpectationResult, ...]
) -> None:
    first = ask(pipeline, warned=FEW)
    approvals.decide(first.id, approved=True, by="ada", reason="a holiday")
    anew = approvals.ask(first.build, suite, warnings)
    assert anew.id > first.id
    assert anew.decision is None
    assert approvals.last_of_build(first.build) == anew
    with pytest.raises(UsageError, match=f"question {first.id} was asked again as {anew.id}"):
        approvals.decide(first.id, approved=True, by="ada", reason="a holiday")
    approvals.decide(anew.id, approved=False, by="bob", reason="not this")
    assert decision(approvals.last_of_build(first.build)).by == "bob"


def test_approval_of_an_older_suite_does_not_count_when_that_suite_comes_back(pipeline: str) -> None:
    first = ask(pipeline)
    approvals.decide(first.id, approved=True, by="ada", reason="a holiday")
    approvals.ask(first.build, "suite-2", (WARNED,))
    again = approvals.ask(first.build, "suite-1", (WARNED,))
    assert again.id != first.id
    assert again.decision is None


def test_decision_is_refused_without_a_reason_or_when_it_was_decided_otherwise(pipeline: str) -> None:
    question = ask(pipeline)
    with pytest.raises(UsageError, match="a reason is needed"):
        approvals.decide(question.id, approved=True, by="somebody", reason=" ")
    approvals.decide(question.id, approved=False, by="somebody", reason="wrong unit")
    with pytest.raises(UsageError, match="refused by somebody before: wrong unit"):
        approvals.decide(question.id, approved=True, by="another", reason="it is fine")
    with pytest.raises(UsageError, match="there is no question 0"):
        approvals.decide(0, approved=True, by="another", reason="it is fine")


def test_one_of_two_decides_when_one_approves_and_the_other_refuses_at_once(pipeline: str) -> None:
    question = ask(pipeline)
    outcomes = at_once(
        lambda: approvals.decide(question.id, approved=True, by="ada", reason="a holiday"),
        lambda: approvals.decide(question.id, approved=False, by="bob", reason="rows are missing"),
    )
    [refused] = [each for each in outcomes if isinstance(each, UsageError)]
    [decided] = [each for each in outcomes if isinstance(each, Question)]
    assert approvals.last_of_build(question.build) == decided
    assert f"by {decision(decided).by} before" in str(refused)


def test_first_approval_is_kept_and_named_to_both_when_two_come_at_once(pipeline: str) -> None:
    question = ask(pipeline)
    outcomes = at_once(
        *(
            lambda name=name: approvals.decide(question.id, approved=True, by=name, reason=f"says {name}")  # type: ignore[misc]
            for name in ("ada", "bob")
        )
    )
    assert outcomes == [approvals.last_of_build(question.build)] * 2
    assert decision(approvals.last_of_build(question.build)).reason in ("says ada", "says bob")


def test_one_question_is_asked_when_two_publish_at_once(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    note_build(attempt)
    build = attempts.load_attempt(attempt).build
    assert build is not None
    asked = at_once(*[lambda: approvals.ask(build, "suite-1", (WARNED,))] * 2)
    assert asked[0] == asked[1] == approvals.last_of_build(build)


def test_nothing_is_asked_when_the_interval_was_built_again(pipeline: str) -> None:
    question = ask(pipeline)
    note_build(begin_attempt(pipeline))
    assert approvals.last_of_interval(pipeline, hour()) is None
    assert approvals.last_of_build(question.build) == question


def test_nothing_is_asked_when_the_interval_was_pinned_again(pipeline: str) -> None:
    question = ask(pipeline)
    assert approving.answered(question.id) is None
    pinned = attempts.load_attempt(question.attempt).pinned
    assert replace_ranges(pinned, pinned.ranges, repinned_by="test") is not None
    assert approvals.last_of_interval(pipeline, hour()) is None
    assert approving.answered(question.id) is Answered.OVERTAKEN
    note_build(begin_attempt(pipeline))
    assert approving.answered(question.id) is Answered.BUILT_AGAIN
    again = ask(pipeline)
    assert approvals.last_of_interval(pipeline, hour()) == again


def test_question_ends_with_the_next_build_when_an_attempt_is_under_way_after_pinning_again(pipeline: str) -> None:
    question = ask(pipeline)
    pinned = attempts.load_attempt(question.attempt).pinned
    with locks.no_attempt_under_way(pipeline, hour()):
        assert replace_ranges(pinned, pinned.ranges, repinned_by="test") is not None
        assert approving.answered(question.id) is None
        attempt = begin_attempt(pipeline)
    assert approving.answered(question.id) is None
    # It waits for a retry.
    attempts.note_failure(attempt, 6)
    assert approving.answered(question.id) is None
    note_build(attempt)
    assert approving.answered(question.id) is Answered.BUILT_AGAIN


def test_question_is_overtaken_when_the_attempt_after_pinning_again_was_lost(pipeline: str) -> None:
    question = ask(pipeline)
    pinned = attempts.load_attempt(question.attempt).pinned
    assert replace_ranges(pinned, pinned.ranges, repinned_by="test") is not None
    attempt = begin_attempt(pipeline)
    with session() as ledger:
        ledger.get_one(Attempt, attempt).started_at -= timedelta(hours=25)
    assert approving.answered(question.id) is Answered.OVERTAKEN


def test_nothing_is_asked_when_an_erasure_discarded_the_build(pipeline: str) -> None:
    first, second = ask(pipeline), ask(pipeline)
    set_state(of_build(first.build), RevisionState.DISCARDED)
    assert approvals.last_of_interval(pipeline, hour()) == second
    set_state(of_build(second.build), RevisionState.DISCARDED)
    assert approvals.last_of_interval(pipeline, hour()) is None
    told = {"columns": [], "reason": "test", "begun_by": "test", "salt": "00", "key_hashes": [], "counts": {}}
    with session() as ledger:
        erasure = Erasure(pipeline=pipeline, intervals=[], last_build=second.build, **told)
        ledger.add(erasure)
        ledger.flush()
        number = erasure.id
    # It may build the interval again.
    assert approving.answered(second.id) is None
    with session() as ledger:
        ledger.get_one(Erasure, number).ended_at = datetime.now(UTC)
    assert approving.answered(second.id) is Answered.OVERTAKEN


def test_question_and_its_files_stay_when_what_is_registered_is_built_again_to_be_compared(pipeline: str) -> None:
    build_and_register(pipeline)
    question = ask(pipeline)
    pinned = attempts.load_attempt(question.attempt).pinned
    rebuilt = attempts.begin_attempt(pinned, run_by=attempts.REBUILD, code_version="1a2b3c", source="kafka")
    set_state([note_build(rebuilt)], RevisionState.DISCARDED)
    assert approvals.last_of_interval(pipeline, hour()) == question
    due = revisions_no_longer_needed([pipeline], hour().to_time + timedelta(days=3650))
    assert [each.attempt for each in due] == [rebuilt]


def test_registered_revisions_stay_when_a_later_build_waits(pipeline: str) -> None:
    first = begin_attempt(pipeline)
    built = note_build(first)
    register(first, built)
    question = ask(pipeline)
    spec = attempts.load_attempt(question.attempt)
    assert [each.revision for each in registered_of_interval(spec.pinned.id)] == [built.revision]
    validation = spec.findings.validation
    assert validation is not None
    assert (validation.success, validation.waits, validation.question) == (False, True, question.id)
    assert validation.failed == (WARNED,)


def test_files_stay_when_a_question_about_them_is_open(pipeline: str) -> None:
    def due() -> list[int]:
        return [each.attempt for each in revisions_no_longer_needed([pipeline], hour().to_time + timedelta(days=3650))]

    earlier = ask(pipeline)
    latest = ask(pipeline)
    # The interval was built again since the first question.
    assert due() == [earlier.attempt]
    approvals.decide(latest.id, approved=False, by="ada", reason="rows are missing")
    assert due() == [earlier.attempt, latest.attempt]
    mark_revisions_removed(revisions_no_longer_needed([pipeline], hour().to_time + timedelta(days=3650)))
    assert due() == []


def test_files_stay_when_a_build_was_approved_and_is_not_published_yet(pipeline: str) -> None:
    def due() -> list[int]:
        return [each.attempt for each in revisions_no_longer_needed([pipeline], hour().to_time + timedelta(days=3650))]

    first = ask(pipeline)
    approvals.decide(first.id, approved=True, by="ada", reason="a quiet night")
    assert due() == []
    # Another suite asks again; the last answer counts.
    again = approvals.ask(first.build, "suite-2", (WARNED,))
    approvals.decide(again.id, approved=False, by="ada", reason="rows are missing")
    assert due() == [first.attempt]


def test_files_of_an_approved_build_go_when_the_interval_was_built_again(pipeline: str) -> None:
    question = ask(pipeline)
    approvals.decide(question.id, approved=True, by="ada", reason="a quiet night")
    note_build(begin_attempt(pipeline))
    due = revisions_no_longer_needed([pipeline], hour().to_time + timedelta(days=3650))
    assert question.attempt in [each.attempt for each in due]
