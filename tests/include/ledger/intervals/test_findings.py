"""What the ledger keeps of an attempt's findings is what they were."""

from __future__ import annotations

import json

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

# Kafka allows what parts a topic from its number in the name of a topic partition.
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
)
MET = ExpectationResult("t", "expect_rows", "", "as many rows", True, "7", 0)
FAILED = ExpectationResult("t", "expect_set", "column", "one of them", False, "x", 3)


def test_findings_are_the_same_when_they_come_back_from_json() -> None:
    for findings in (
        Findings(),
        Findings(BUILD),
        Findings(BUILD, Validation(False, "suite", (MET, FAILED))),
        Findings(BUILD, Validation(True, "suite", (MET,)), DeltaVersion("lake.view", 4)),
    ):
        assert findings_of(json.loads(json.dumps(findings.as_json()))) == findings


def test_range_keeps_its_incarnation_when_it_comes_back_from_json() -> None:
    back = findings_of(json.loads(json.dumps(Findings(BUILD).as_json()))).build
    assert back is not None
    assert [each.topic_id for each in back.ranges] == ["id"]


def test_validation_names_what_failed_as_the_contract_does() -> None:
    assert Validation(False, "suite", (MET, FAILED)).as_verdict() == {
        "success": False,
        "suite": "suite",
        "failed": [{"expectation": "expect_set", "column": "column", "observed": "x", "unexpected_count": 3}],
    }


def test_findings_of_an_earlier_version_are_read() -> None:
    kept = {"reconciliation": {"matched": 1, "pending": 0, "late": 0, "unexplained": 2}, "records": {"in_ranges": 3}}
    build = findings_of(kept).build
    assert build is not None
    assert (build.reconciliation.unexplained, build.records.in_ranges, build.ranges) == (2, 3, ())
