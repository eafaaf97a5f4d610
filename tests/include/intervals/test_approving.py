"""Deciding about a build that failed only by warnings: by the command, with the contract's exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from include.errors import UsageError
from include.intervals import approving
from include.ledger.intervals import attempts, builds, revisions
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.intervals.states import RevisionState
from include.ledger.inventory import revisions_of
from include.ledger.validation import approvals
from include.ledger.validation.approvals import Question
from include.times import Interval, format_time
from tests.conftest import Home
from tests.support.attempts import begin_attempt, hour, note_build, register

pytestmark = pytest.mark.services

NAME = "isp_hits"
WARNED = ExpectationResult(NAME, "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn")


def ask(interval: Interval) -> Question:
    """What is asked about the build of a new attempt of the interval."""
    attempt = begin_attempt(NAME, interval)
    note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    question = approvals.ask(spec.build, "suite-1", (WARNED,))
    builds.hold(spec, Validation(False, NAME, (WARNED,), question=question.id))
    return question


def command(interval: Interval, *extra: str) -> tuple[str, ...]:
    times = ("--from", format_time(interval.from_time), "--to", format_time(interval.to_time))
    return ("approve", NAME, *times, *extra)


def states(question: Question) -> list[RevisionState]:
    return [each.state for each in revisions_of(NAME) if each.attempt == question.attempt]


def test_refusal_is_kept_with_who_and_why_when_a_build_is_refused(postgres: Home) -> None:
    before = begin_attempt(NAME, hour(0))
    built = note_build(before)
    register(before, built)
    question = ask(hour(0))
    refuse = command(hour(0), "--refuse", "--reason", "rows are missing", "--question", str(question.id))
    verdict = postgres.json(*refuse, "--json")
    assert (verdict["validation"]["success"], verdict["registered"]) == (False, [])
    said = verdict["validation"]["decision"]
    assert (said["decision"], said["reason"]) == ("refused", "rows are missing")
    assert "@" in said["by"]
    assert "Not published: refused" in Path(verdict["report"]).read_text()
    assert states(question) == [RevisionState.REJECTED]
    spec = attempts.load_attempt(question.attempt)
    assert [each.revision for each in revisions.registered_of_interval(spec.pinned.id)] == [built.revision]
    # Repeating it changes nothing, and a later person cannot reverse it.
    assert postgres.json(*refuse, "--json")["validation"]["decision"] == said
    other = postgres.run(*command(hour(0), "--reason", "it is fine"), expect=64)
    assert "it was refused by" in other.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (command(hour(1), "--reason", "x"), "does not wait for approval"),
        (("approve", "no_such", *command(hour(1), "--reason", "x")[2:]), "no_such"),
        (command(Interval(hour(1).from_time, hour(2).to_time), "--reason", "x"), "is not one interval of"),
        (command(hour(1)), "--reason"),
    ],
    ids=["nothing is asked", "unknown pipeline", "not an interval", "no reason"],
)
def test_exit_code_is_64_when_approve_is_used_wrongly(postgres: Home, arguments: tuple[str, ...], words: str) -> None:
    assert words in postgres.run(*arguments, expect=64).stderr


def test_nothing_is_decided_when_the_reason_is_blank_or_the_question_is_another(postgres: Home) -> None:
    question = ask(hour(2))
    assert "a reason is needed" in postgres.run(*command(hour(2), "--reason", " "), expect=64).stderr
    anew = approvals.ask(question.build, "suite-2", (WARNED,))
    older = command(hour(2), "--reason", "a holiday", "--question", str(question.id))
    assert f"that is question {anew.id}" in postgres.run(*older, expect=64).stderr
    assert approvals.last_of_build(question.build) == anew
    assert anew.decision is None


def test_refusal_is_too_late_when_the_build_is_published(postgres: Home) -> None:
    question = ask(hour(3))
    spec = attempts.load_attempt(question.attempt)
    [built] = revisions.of_build(question.build)
    approving.approve(question, by="ada", reason="a holiday")
    builds.finish_registration(builds.begin_registration(spec, Validation(True, NAME), builds.Changes(points=(built,))))
    with pytest.raises(UsageError, match="is published already"):
        approving.refuse(question, by="bob", reason="rows are missing")
    assert states(question) == [RevisionState.REGISTERED]


def test_lines_name_decision_and_person_when_one_has_decided(postgres: Home) -> None:
    question = ask(hour(4))
    decided = approving.approve(question, by="airflow ada", reason="a holiday")
    first, warning, last = approving.lines_of(decided)
    assert first == f"question {question.id}: isp_hits {hour(4)}, suite suite-1"
    assert warning == "warning: isp_hits: 50 to 294 rows (observed 7)"
    assert last.startswith("approved by airflow ada at ")
    assert last.endswith(": a holiday")
