"""What a step's task and the command say of it: rendered from what the ledger holds, bounded, failures at both ends."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from include.errors import ReconciliationFailed
from include.intervals import steps
from include.intervals.reporting.summary import LINES, WIDTH, bounded, summarize
from include.ledger.database import session
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.models import Attempt, IntervalRow
from include.reconciliation import Difference, DifferenceClass
from tests.support.attempts import begin_attempt, build_and_register, note_build, register

pytestmark = pytest.mark.services

INTERVAL = "2026-11-20T05:00:00Z/2026-11-20T06:00:00Z"
PARTITION = "date=2026-11-20/interval=2026-11-20T05"
MET = ExpectationResult("t", "expect_rows", "", "as many rows as counted", True, "190", 0)
MISSED = ExpectationResult("t", "expect_set", "kind", "kind is one of a, b", False, "3 % unexpected", 6)


def test_summary_names_ranges_and_page_when_an_interval_is_pinned(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    first, given, *ranges, page = summarize("pin_ranges", attempt)
    assert first == f"{pipeline} {INTERVAL}: pinned to 200 offsets"
    assert given == (
        f"given: 200 offsets of 2 topic partitions of nest-logs; source kafka, attempt {attempt}, code 1a2b3c"
    )
    assert ranges == [f"range: nest-logs-{number} [0, 100), 100 offsets" for number in (0, 1)]
    assert page.endswith(f"/reports/{pipeline}/2026-11-20T05.html")


def test_ranges_are_counted_and_not_listed_when_there_are_hundreds(pipeline: str) -> None:
    lines = summarize("pin_ranges", begin_attempt(pipeline, topic_partitions=300))
    assert len(lines) <= LINES
    assert "range: 290 more topic partitions, 29,000 offsets" in lines


def test_summary_has_fates_classes_revisions_and_seconds_when_an_interval_is_built(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    late = Difference(DifferenceClass.LATE, "batch view against speed view", "zip 10115", "2 counted, 1 live")
    note_build(attempt, differences=(late,))
    lines = summarize("build_interval", attempt)
    assert lines[0] == f"{pipeline} {INTERVAL}: built 190 rows in 1 table partitions"
    assert lines[2:] == [
        "found: 200 offsets = 190 archived + 4 empty + 6 quarantined + 0 gaps",
        "found: 190 matched, 1 pending, 0 late, 0 unexplained",
        "late: batch view against speed view, zip 10115: 2 counted, 1 live",
        f"wrote: {pipeline} {PARTITION} r-{attempt}, 190 rows in 1 files, content 0123456789abcdef",
        "seconds: read and compare 3.2, report 0.5",
    ]


def test_unexplained_differences_stand_first_and_last_when_a_build_left_some(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    rows = [Difference(DifferenceClass.UNEXPLAINED, "archive against Kafka", f"offset {n}", "gone") for n in range(9)]
    note_build(attempt, differences=tuple(rows), unexplained=9)
    for step in ("build_interval", "reconcile"):
        lines = summarize(step, attempt)  # type: ignore[arg-type]
        failed = (
            f"{pipeline} {INTERVAL}: FAILED, 9 differences are unexplained; first: archive against Kafka, offset 0; "
            "nothing will be registered"
        )
        assert (lines[0], lines[-1]) == (failed, failed)
        assert [line for line in lines if line.startswith("unexplained: ")] == [
            f"unexplained: archive against Kafka, offset {n}: gone" for n in range(3)
        ]


def test_summary_names_registered_and_unchanged_partitions_when_it_is_published(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    built = note_build(attempt)
    register(attempt, built, Validation(True, pipeline, (MET,), {"t": 1.25}))
    lines = summarize("publish", attempt)
    assert lines[0] == f"{pipeline} {INTERVAL}: 1 of 1 expectations are met, 1 table partitions are registered"
    assert lines[2:] == [
        f"registered: {pipeline} {PARTITION} r-{attempt}, 190 rows, content 0123456789abcdef",
        "seconds: t 1.2",
    ]
    again = begin_attempt(pipeline)
    spare = note_build(again)
    spec = attempts.load_attempt(again)
    changes = builds.Changes(kept=(spare,))
    builds.finish_registration(builds.begin_registration(spec, Validation(True, pipeline, (MET,)), changes))
    assert summarize("publish", again)[-1].endswith(f"r-{attempt}, 190 rows, content 0123456789abcdef, unchanged")


def test_missed_expectations_stand_first_and_what_stays_is_named_when_a_publication_is_refused(pipeline: str) -> None:
    before = build_and_register(pipeline)
    attempt = begin_attempt(pipeline)
    note_build(attempt)
    builds.reject(attempts.load_attempt(attempt), Validation(False, pipeline, (MET, MISSED)))
    lines = summarize("publish", attempt)
    failed = f"{pipeline} {INTERVAL}: FAILED, 1 expectation; nothing was registered"
    assert (lines[0], lines[-1]) == (failed, failed)
    assert lines[1] == "FAILED: t: kind is one of a, b (observed 3 % unexpected, 6 unexpected)"
    assert lines[-2].endswith(f"r-{before}, 190 rows, content 0123456789abcdef, stays")


def test_warnings_and_the_command_that_decides_are_told_when_a_build_waits_for_a_person(pipeline: str) -> None:
    attempt = begin_attempt(pipeline)
    note_build(attempt)
    examples = ({"kafka_offset": "7", "kind": "x"},)
    warned, noted = replace(MISSED, severity="warn", examples=examples), replace(MISSED, severity="info")
    builds.hold(attempts.load_attempt(attempt), Validation(False, pipeline, (MET, noted, warned), question=12))
    lines = summarize("publish", attempt)
    waits = f"{pipeline} {INTERVAL}: WAITS for approval of 1 warning; nothing is registered yet"
    assert (lines[0], lines[-1]) == (waits, waits)
    assert lines[1:4] == [
        f"decide: ./tidemark approve {shlex.quote(pipeline)} --from 2026-11-20T05:00:00Z --to 2026-11-20T06:00:00Z "
        '--question 12 --reason "…"',
        "warning: t: kind is one of a, b (observed 3 % unexpected, 6 unexpected); first: kind=x kafka_offset=7",
        "note: t: kind is one of a, b (observed 3 % unexpected, 6 unexpected)",
    ]


@pytest.mark.parametrize("said", ["approved", "refused"])
def test_who_decided_and_why_is_told_when_a_person_has_decided(pipeline: str, said: str) -> None:
    attempt = begin_attempt(pipeline)
    built = note_build(attempt)
    decision = {"decision": said, "by": "airflow ada", "reason": "a holiday", "at": "2026-11-20T07:00:00Z"}
    warned = (replace(MISSED, severity="warn"),)
    not_checked = ("whether rows are usual: 3 earlier intervals",)
    found = Validation(said == "approved", pipeline, warned, {}, not_checked, 12, decision)
    if found.success:
        register(attempt, built, found)
        told = summarize("publish", attempt)
        assert told[1].startswith("warning: t: kind is one of a, b")
        assert "approved: by airflow ada at 2026-11-20T07:00:00Z: a holiday" in told
        assert "not checked: whether rows are usual: 3 earlier intervals" in told
    else:
        builds.reject(attempts.load_attempt(attempt), found)
        told = summarize("publish", attempt)
        assert told[0] == told[-1] == f"{pipeline} {INTERVAL}: REFUSED by airflow ada: a holiday"
        assert not [line for line in told if line.startswith("decide: ")]


def test_summary_names_tables_report_and_page_when_it_is_announced(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The declaration belongs to another pipeline; the ledger's rows are this test's.
    monkeypatch.setattr(steps, "load_pipeline", lambda _: steps_pipeline())
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
    attempt = build_and_register(pipeline)
    lines = summarize("announce", attempt, steps.announce(attempt))
    assert lines[0] == f"{pipeline} {INTERVAL}: complete, 1 table partitions are registered"
    assert f"announced: lake.{pipeline}, 1 table partitions, 190 rows" in lines
    assert lines[-1] == f"page: http://127.0.0.1:8080/tidemark/intervals/{pipeline}/2026-11-20T05"


def test_newer_report_stays_when_an_older_attempt_is_announced_late(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "load_pipeline", lambda _: steps_pipeline())
    resumed, older = begin_attempt(pipeline), begin_attempt(pipeline)
    register(older, note_build(older, rows=150))
    newer = build_and_register(pipeline, rows=190)
    first = Path(steps.announce(newer).report)
    report = first.read_text()
    late = steps.announce(older)
    assert (late.exit_code, Path(late.report)) == (0, first)
    assert first.read_text() == report
    assert verdict_of(pipeline)["registered"][0]["revision"] == f"r-{newer}"
    # One that began before both is built at last: what it built is the newest.
    register(resumed, note_build(resumed, rows=180))
    steps.announce(resumed)
    assert verdict_of(pipeline)["registered"][0]["revision"] == f"r-{resumed}"
    assert open_attempts(pipeline) == []


def test_newer_build_s_verdict_is_written_by_an_older_attempt_when_its_process_may_have_died(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "load_pipeline", lambda _: steps_pipeline())
    older = begin_attempt(pipeline)
    attempts.resume_attempt(older, code_version="5eed1e55")
    register(older, note_build(older, rows=150))
    newer = build_and_register(pipeline)
    assert steps.announce(older).exit_code == 0
    verdict = verdict_of(pipeline)
    assert verdict["code_version"] == attempts.load_attempt(newer).code_version != "5eed1e55"
    assert "5eed1e55" not in Path(verdict["report"]).read_text()
    # Its driver may live, and ends it then.
    assert open_attempts(pipeline) == [newer]
    assert not attempts.went_on_since_build(newer)
    # Nobody has judged what it builds again: the registered build's verdict is the interval's.
    attempts.resume_attempt(newer)
    note_build(newer, unexplained=3)
    with session() as ledger:
        ledger.scalars(select(IntervalRow).where(IntervalRow.pipeline == pipeline)).one().verdict = None
    steps.announce(older)
    assert verdict_of(pipeline)["reconciliation"]["unexplained"] == 0
    assert open_attempts(pipeline) == [newer]
    attempts.note_failure(newer, 4)
    steps.announce(older)
    with session() as ledger:
        failed = ledger.get_one(Attempt, newer)
        assert (failed.ended_at, failed.exit_code) == (None, 4)


def test_older_attempt_writes_no_verdict_when_the_newer_one_failed_after_its_registration(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "load_pipeline", lambda _: steps_pipeline())
    older, newer = begin_attempt(pipeline), begin_attempt(pipeline)
    note_build(older, unexplained=3)
    register(newer, note_build(newer))
    attempts.note_failure(newer, 4)
    with pytest.raises(ReconciliationFailed):
        steps.judge_reconciliation(older)
    assert not verdict_of(pipeline)
    assert open_attempts(pipeline) == [newer]


def test_registered_verdict_stays_when_an_older_attempt_fails_late(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "load_pipeline", lambda _: steps_pipeline())
    older = begin_attempt(pipeline)
    note_build(older, unexplained=3)
    newer = build_and_register(pipeline)
    steps.announce(newer)
    with pytest.raises(ReconciliationFailed):
        steps.judge_reconciliation(older)
    assert verdict_of(pipeline)["reconciliation"]["unexplained"] == 0
    assert open_attempts(pipeline) == []


def verdict_of(pipeline: str) -> Any:
    with session() as ledger:
        return ledger.scalars(select(IntervalRow.verdict).where(IntervalRow.pipeline == pipeline)).one()


def open_attempts(pipeline: str) -> list[int]:
    with session() as ledger:
        wanted = select(Attempt.id).join(IntervalRow, IntervalRow.id == Attempt.interval_id)
        return list(ledger.scalars(wanted.where(IntervalRow.pipeline == pipeline, Attempt.ended_at.is_(None))))


def steps_pipeline() -> object:
    from include.pipelines import load_pipeline

    return load_pipeline("isp_hits")


def test_lines_hold_no_control_character_and_are_bounded_when_data_is_quoted() -> None:
    lines = bounded(["\x1b[31mred\x07" + "x" * 1000, *map(str, range(50)), "last"])
    assert len(lines) == LINES
    assert lines[0].startswith(" [31mred x")
    assert len(lines[0]) == WIDTH
    assert lines[-2:] == ["… 33 more lines are on the interval's page", "last"]
