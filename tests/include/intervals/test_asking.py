"""Operators are told once that an interval waits for a person, and once that it was decided.

There is no broker here, so that the topic is a receiver that is away; the mail server and the web server listen.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from include import lake
from include.intervals import approving, steps
from include.ledger.alerts import open_alerts
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.validation import approvals
from include.ledger.validation.approvals import Question
from include.times import Interval, format_time
from tests.conftest import Home, settings_of
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build
from tests.support.receivers import Received, listening

pytestmark = pytest.mark.services

NAME = "isp_hits"
FEW = ExpectationResult(NAME, "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn")
LATE = ExpectationResult(NAME, "expect_freshness", "", "at most 60 s", False, "90", 0, severity="warn")


@pytest.fixture
def receivers(postgres: Home) -> Iterator[Received]:
    with listening() as received:
        channels = {"SMTP": received.smtp, "EMAIL_TO": "on-call@example.org", "WEBHOOK": received.webhook}
        with settings_of(postgres, **{f"TIDEMARK_ALERT_{name}": value for name, value in channels.items()}):
            yield received


def build_that_is_warned(interval: Interval, *warnings: ExpectationResult) -> Question:
    """Return the announced result of an interval whose suite warns."""
    attempt = begin_attempt(NAME, interval)
    note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    question = approvals.ask(spec.build, "suite-1", warnings)
    builds.hold(spec, Validation(False, NAME, warnings, question=question.id))
    steps.announce(attempt)
    return question


def states(receivers: Received) -> list[str]:
    return [each["state"] for each in receivers.posts]


def test_approval_is_asked_for_once_by_mail_and_webhook_and_told_when_it_is_decided(receivers: Received) -> None:
    interval = hour(20)
    question = build_that_is_warned(interval, FEW)
    [told] = receivers.posts
    times = f"--from {format_time(interval.from_time)} --to {format_time(interval.to_time)}"
    assert told["what"] == "1 warning waits for approval: isp_hits: 50 to 294 rows"
    assert told["where"] == f"interval__isp_hits, {interval}, task publish"
    assert told["since"] == format_time(question.asked_at)
    assert told["todo"].endswith(f': ./tidemark approve isp_hits {times} --reason "…"')
    assert lake.uri("reports", NAME, f"{interval.label}.html").removeprefix("file://") in told["todo"]
    assert told["warnings"] == ["isp_hits: 50 to 294 rows (observed 7)"]
    [mail] = receivers.mails
    assert " ".join(mail["Subject"].split()) == f"[tidemark] isp_hits raised: {told['what']}"

    again = build_that_is_warned(interval, FEW)
    assert again.id != question.id
    assert states(receivers) == ["raised"], "the same warnings of the same interval are told once"

    approving.approve(again, by="airflow ada", reason="a holiday")
    assert states(receivers) == ["raised", "recovered"]
    over = receivers.posts[-1]
    assert (over["decision"], over["by"], over["reason"]) == ("approved", "airflow ada", "a holiday")
    assert len(receivers.mails) == 2


def test_another_alert_is_raised_when_the_interval_has_other_warnings(receivers: Received) -> None:
    build_that_is_warned(hour(21), FEW)
    question = build_that_is_warned(hour(21), FEW, LATE)
    assert states(receivers) == ["raised", "recovered", "raised"]
    assert receivers.posts[1]["ended"] == "other warnings are asked about now"
    assert str(receivers.posts[2]["what"]).startswith("2 warnings wait for approval: ")
    approving.refuse(question, by="bob@host", reason="rows are missing")
    assert (states(receivers)[3:], receivers.posts[3]["decision"]) == (["recovered"], "refused")


def test_newer_build_s_question_stays_open_when_the_older_one_s_is_answered(receivers: Received) -> None:
    older = build_that_is_warned(hour(24), FEW)
    newer = build_that_is_warned(hour(24), FEW)
    approving.approve(older, by="airflow ada", reason="a holiday")
    assert states(receivers) == ["raised"]
    approving.approve(newer, by="airflow ada", reason="a holiday")
    assert states(receivers) == ["raised", "recovered"]


def test_question_is_over_when_the_interval_was_built_anew_and_nobody_is_asked(receivers: Received) -> None:
    build_that_is_warned(hour(22), FEW)
    attempt = begin_attempt(NAME, hour(22))
    note_build(attempt)
    steps.announce(attempt)
    assert states(receivers) == ["raised", "recovered"]
    assert receivers.posts[1]["ended"] == "nobody is asked about its latest build"
    assert not open_alerts("approval/isp_hits/" + format_time(hour(22).from_time))


def test_question_stays_open_when_an_older_attempt_is_announced_late(receivers: Received) -> None:
    older = build_and_register(NAME, hour(23))
    build_that_is_warned(hour(23), FEW)
    steps.announce(older)
    assert states(receivers) == ["raised"]
