"""What the exit code of a verdict says."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from include.intervals.verdict import Verdict, assemble_verdict
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.findings import (
    BuildFindings,
    ExpectationResult,
    FateCounts,
    Findings,
    RecordCounts,
    Validation,
)
from include.ledger.intervals.pinned import PinnedInterval
from include.ledger.intervals.states import Source
from include.ledger.lineage import BuiltRevision
from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import ReconciliationCounts
from include.times import Interval


def build(unexplained: int) -> BuildFindings:
    return BuildFindings((), {}, RecordCounts(), ReconciliationCounts(unexplained=unexplained))


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        (Findings(), 2),
        (Findings(build(0)), 2),
        (Findings(build(1)), 3),
        (Findings(build(0), Validation(False, "suite")), 2),
        (Findings(build(0), Validation(True, "suite")), 0),
    ],
    ids=["nothing built", "not validated", "unexplained", "not passed", "passed"],
)
def test_verdict_is_a_success_only_when_a_checkpoint_passed(findings: Findings, code: int) -> None:
    assert Verdict("p", {}, "1", findings=findings).exit_code == code


def test_words_say_so_when_a_person_is_awaited_or_has_refused() -> None:
    warned = ExpectationResult("t", "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn")
    waiting = Validation(False, "suite", (warned,))
    said = Verdict("p", {}, "1", findings=Findings(build(0), waiting)).in_words()
    assert "it waits for a person's approval of 1 warning; not met: 50 to 294 rows" in said
    refused = replace(waiting, decision={"decision": "refused", "by": "ada", "reason": "no", "at": ""})
    verdict = Verdict("p", {}, "1", findings=Findings(build(0), refused))
    assert "it was refused by ada; not met: 50 to 294 rows" in verdict.in_words()
    assert verdict.exit_code == 2


def test_verdict_has_every_part_of_the_contract_when_nothing_was_built() -> None:
    verdict = Verdict("p", {}, "1").as_json()
    assert {"ranges", "records", "reconciliation", "validation", "registered", "report"} <= verdict.keys()
    assert verdict["validation"] == {"success": None, "suite": "", "failed": []}


def test_verdict_has_every_count_of_the_contract_when_something_was_built() -> None:
    verdict = Verdict("p", {}, "1", findings=Findings(build(0), Validation(True, "suite"))).as_json()
    assert {"in_ranges", "archived", "empty", "quarantined", "gaps", "erased"} <= verdict["records"].keys()
    assert verdict["reconciliation"].keys() == {"matched", "pending", "late", "unexplained"}
    assert verdict["validation"] == {"success": True, "suite": "suite", "failed": []}
    assert verdict["odd_timestamps"] == {"count": 0, "first": None}


@pytest.mark.parametrize(
    "validation", [None, Validation(False, "suite"), Validation(True, "suite")], ids=["not run", "not passed", "passed"]
)
def test_verdict_has_the_ranges_that_were_built_and_what_is_registered_only_when_a_checkpoint_passed(
    validation: Validation | None,
) -> None:
    tp, begin = TopicPartition("t", 0), datetime(2026, 11, 20, 5, tzinfo=UTC)
    read, since = OffsetRange(tp, 0, 5, "id"), OffsetRange(tp, 0, 9, "id")
    pinned = PinnedInterval(1, "p", Interval(begin, begin + timedelta(hours=1)), (since,), {"t": "id"})
    findings = Findings(replace(build(0), ranges=(read,), fates={tp: FateCounts(3, 1, 1)}), validation)
    registered = BuiltRevision("p", "interval=2026-11-20T05", "r-1", "file:///nowhere", 3, "00", {})
    verdict = assemble_verdict(AttemptSpec(1, pinned, Source.KAFKA, "1", findings, 1), [registered])
    (told,) = verdict.ranges
    assert (told["until_offset"], told["archived"], told["gaps"]) == (5, 3, 0)
    passed = validation is not None and validation.success
    assert [each["revision"] for each in verdict.registered] == (["r-1"] if passed else [])
    not_built = assemble_verdict(AttemptSpec(1, pinned, Source.KAFKA, "1", Findings(), None), [])
    assert [each["until_offset"] for each in not_built.ranges] == [9]
