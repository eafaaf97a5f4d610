"""What the ledger keeps of an attempt's findings is what they were."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from include.ledger.intervals.findings import (
    BuildFindings,
    DeltaVersion,
    ExpectationResult,
    FateCounts,
    Findings,
    RecordCounts,
    RevisionDifference,
    Validation,
    findings_of,
)
from include.offsets import OffsetRange, TopicPartition
from include.reconciliation import Difference, DifferenceClass, ReconciliationCounts

# Kafka allows in a topic's name the character that separates topic and number in a topic partition's name.
TP = TopicPartition("nest-logs-2", 3)

BUILD = BuildFindings(
    (OffsetRange(TP, 10, 20, "id"),),
    {TP: FateCounts(7, 1, 1, 1)},
    RecordCounts(10, 7, 1, 1, 1, 2, 0),
    ReconciliationCounts(5, 1, 2, 0),
    (Difference(DifferenceClass.LATE, "a against b", "key", "late"),),
    ("1",),
    {"added": 1, "removed": 0, "changed": 0},
    (RevisionDifference("t", "p", None, "r2", 1, None, 0, ({"change": "added", "key": "{}"},)),),
    {"sections": [], "chart": {"title": "t"}},
    explained={"gap": 3},
)
MET = ExpectationResult("t", "expect_rows", "", "as many rows", True, "7", 0)
FAILED = ExpectationResult("t", "expect_set", "column", "one of them", False, "x", 3)
WARNED = replace(FAILED, severity="warn", examples=({"kafka_offset": "7", "column": "x"},))
NOTED = replace(FAILED, severity="info")
DECISION = {"decision": "approved", "by": "ada", "reason": "a holiday", "at": "2026-11-20T07:00:00Z"}


def test_findings_are_the_same_when_they_come_back_from_json() -> None:
    for findings in (
        Findings(),
        Findings(BUILD),
        Findings(BUILD, Validation(False, "suite", (MET, FAILED))),
        Findings(BUILD, Validation(True, "suite", (MET,)), DeltaVersion("lake.view", 4)),
        Findings(BUILD, Validation(True, "suite", (WARNED,), {}, ("freshness: no rows",), 7, DECISION)),
    ):
        assert findings_of(json.loads(json.dumps(findings.as_json()))) == findings


def test_range_keeps_its_incarnation_when_it_comes_back_from_json() -> None:
    back = findings_of(json.loads(json.dumps(Findings(BUILD).as_json()))).build
    assert back is not None
    assert [each.topic_id for each in back.ranges] == ["id"]


def test_validation_names_failures_as_the_contract_does_when_some_failed() -> None:
    assert Validation(False, "suite", (MET, FAILED)).as_verdict() == {
        "success": False,
        "suite": "suite",
        "failed": [{"expectation": "expect_set", "column": "column", "observed": "x", "unexpected_count": 3}],
    }


@pytest.mark.parametrize(
    ("expectations", "waits"),
    [((MET, WARNED), True), ((WARNED, NOTED), True), ((WARNED, FAILED), False), ((NOTED,), False), ((), False)],
    ids=["a warning", "a warning and a note", "a failure, too", "a note", "nothing"],
)
def test_person_is_waited_for_when_warnings_alone_keep_it_from_being_registered(
    expectations: tuple[ExpectationResult, ...], waits: bool
) -> None:
    validation = Validation(False, "suite", expectations)
    assert validation.waits is waits
    assert not replace(validation, decision=DECISION).waits
    assert not replace(validation, success=True).waits


def test_gravest_comes_first_when_expectations_of_every_severity_were_not_met() -> None:
    found = Validation(False, "suite", (NOTED, WARNED, MET, FAILED))
    assert found.failed == (FAILED, WARNED, NOTED)
    assert found.warnings == (WARNED,)


def test_expectation_without_a_severity_is_a_failure_when_an_earlier_version_kept_it() -> None:
    kept = Findings(BUILD, Validation(False, "suite", (FAILED,))).as_json()
    for name in ("severity", "examples"):
        del kept["expectations"][0][name]
    validation = findings_of(kept).validation
    assert validation is not None
    assert not validation.waits


def test_findings_are_read_when_an_earlier_version_wrote_them() -> None:
    kept = {"reconciliation": {"matched": 1, "pending": 0, "late": 0, "unexplained": 2}, "records": {"in_ranges": 3}}
    build = findings_of(kept).build
    assert build is not None
    assert (build.reconciliation.unexplained, build.records.in_ranges, build.ranges) == (2, 3, ())
