"""Lineage of attempts: events that OpenLineage's published schemas accept, sent where set, harmless where not taken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker
from referencing import Registry, Resource

from include.intervals.reporting.lineage import send_lineage
from include.intervals.verdict import Verdict, assemble_verdict
from include.ledger.intervals import attempts, builds, revisions
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.pipelines import load_pipeline
from tests.conftest import Home, settings_of
from tests.support.attempts import begin_attempt, hour, note_build, register
from tests.support.receivers import listening

pytestmark = pytest.mark.services

SCHEMAS = [json.loads(path.read_text()) for path in (Path(__file__).parents[2] / "corpora/openlineage").glob("*.json")]
REGISTRY: Registry[Any] = Registry().with_resources([(each["$id"], Resource.from_contents(each)) for each in SCHEMAS])
PUBLISHED = "https://openlineage.io/spec/"
PIPELINE = load_pipeline("nest_cameras")
MET = ExpectationResult(
    "nest_cameras", "expect_rows", "", "as many rows as counted", True, "190", 0, value=190, low=190, high=190
)
MISSED = ExpectationResult("nest_cameras", "expect_set", "device_id", "known cameras", False, "3 % unexpected", 6)


def check(event: dict[str, Any]) -> list[str]:
    """Return the schemas by which an event and its facets were checked; our own are tested elsewhere."""
    checked: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            url = value.get("schemaURL") or value.get("_schemaURL") or ""
            if url.startswith(PUBLISHED):
                schema = {"$ref": url}
                Draft202012Validator(schema, registry=REGISTRY, format_checker=FormatChecker()).validate(value)
                checked.append(url.rpartition("/")[2])
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(each)

    walk(event)
    return checked


def ended(number: int, *results: ExpectationResult) -> tuple[int, Verdict]:
    """An attempt of an hour of its own that has ended."""
    attempt = begin_attempt("nest_cameras", hour(number))
    built = note_build(attempt)
    success = all(each.success for each in results)
    if success:
        register(attempt, built, Validation(True, "nest_cameras", results))
    else:
        builds.reject(attempts.load_attempt(attempt), Validation(False, "nest_cameras", results))
    spec = attempts.load_attempt(attempt)
    verdict = assemble_verdict(spec, revisions.registered_of_interval(spec.pinned.id))
    attempts.end_attempt(attempt, verdict.exit_code, verdict.as_json())
    return attempt, verdict


@pytest.fixture
def lineage(postgres: Home, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "lineage.ndjson"
    told = {"TIDEMARK_OPENLINEAGE_URL": path.as_uri(), "TIDEMARK_KAFKA_BOOTSTRAP": "broker:9092,other:9092"}
    with settings_of(postgres, **told):
        yield path


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_event_holds_ranges_fates_revision_and_expectations_when_an_interval_is_registered(lineage: Path) -> None:
    attempt, verdict = ended(0, MET)
    assert send_lineage(PIPELINE, attempt, verdict) == 4
    start, complete, judging, judged = events(lineage)
    for event in (start, complete, judging, judged):
        assert {"RunEvent", "JobTypeJobFacet"} <= set(check(event))
    assert [e["eventType"] for e in (start, complete, judging, judged)] == ["START", "COMPLETE"] * 2
    assert start["run"]["runId"] == complete["run"]["runId"] != judged["run"]["runId"]
    assert datetime.fromisoformat(start["eventTime"]) < datetime.fromisoformat(complete["eventTime"])
    assert complete["run"]["facets"]["nominalTime"]["nominalStartTime"] == "2026-11-20T05:00:00Z"
    [topic] = complete["inputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://broker:9092", "nest-logs")
    ranges = topic["inputFacets"]["tidemark_offsetRanges"]["ranges"]
    assert ranges == [
        {"topic_id": "id", "partition": number, "from_offset": 0, "until_offset": 100, "archived": 95, "empty": 2,
         "quarantined": 3, "gaps": 0, "erased": 0}
        for number in (0, 1)
    ]  # fmt: skip
    [table] = complete["outputs"]
    assert table["name"].endswith("/lake/tables/nest_cameras")
    assert table["facets"]["version"]["datasetVersion"] == f"r-{attempt}"
    assert table["facets"]["symlinks"]["identifiers"][0]["name"] == "lake.nest_cameras"
    assert {"device_id", "kafka_offset"} <= {field["name"] for field in table["facets"]["schema"]["fields"]}
    [partition] = table["outputFacets"]["subset"]["outputCondition"]["partitions"]
    assert partition["dimensions"] == {"date": "2026-11-20", "interval": "2026-11-20T05"}
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 190
    [read] = judged["inputs"]
    assert read["name"] == table["name"]
    [assertion] = read["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (assertion["success"], assertion["expected"], assertion["actual"]) == (True, "190 to 190", "190")
    assert judged["run"]["facets"]["parent"]["run"]["runId"] == complete["run"]["runId"]
    # Announced again, it is the same run.
    send_lineage(PIPELINE, attempt, verdict)
    assert events(lineage)[4:] == [start, complete, judging, judged]


def test_event_is_failed_and_has_no_outputs_when_an_interval_failed(lineage: Path) -> None:
    attempt, verdict = ended(1, MET, MISSED)
    send_lineage(PIPELINE, attempt, verdict)
    _, failed, _, judged = events(lineage)
    assert {"RunEvent", "ErrorMessageRunFacet"} <= set(check(failed))
    assert (failed["eventType"], judged["eventType"], failed["outputs"]) == ("FAIL", "FAIL", [])
    assert "known cameras" in failed["run"]["facets"]["errorMessage"]["message"]
    assertions = judged["inputs"][0]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(each["assertion"], each["success"], each["severity"]) for each in assertions] == [
        ("expect_rows", True, "error"),
        ("expect_set", False, "error"),
    ]


def test_key_is_sent_and_never_shown_when_the_receiver_needs_one(
    postgres: Home, caplog: pytest.LogCaptureFixture
) -> None:
    attempt, verdict = ended(2, MET)
    with listening("/api/v1/lineage") as received:
        address = received.webhook.replace("http://", "http://:canary-key@").removesuffix("/api/v1/lineage")
        with settings_of(postgres, TIDEMARK_OPENLINEAGE_URL=address, TIDEMARK_KAFKA_BOOTSTRAP="broker:9092"):
            assert send_lineage(PIPELINE, attempt, verdict) == 4
            assert [each["eventType"] for each in received.posts] == ["START", "COMPLETE"] * 2
            received.refuses = True
            assert send_lineage(PIPELINE, attempt, verdict) == 0
    assert set(received.authorizations) == {"Bearer canary-key"}
    assert "lineage of attempt" in caplog.text
    assert "canary-key" not in caplog.text + json.dumps(received.posts)


def test_nothing_is_sent_when_no_receiver_is_set(postgres: Home) -> None:
    verdict = Verdict("nest_cameras", {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"}, "1a2b3c")
    assert send_lineage(PIPELINE, 1, verdict) == 0


def test_schema_check_reports_it_when_an_event_is_wrong() -> None:
    wrong = {
        "schemaURL": f"{PUBLISHED}2-0-2/OpenLineage.json#/$defs/RunEvent",
        "eventTime": datetime.now(UTC).isoformat(),
    }
    with pytest.raises(Exception, match="required property"):
        check(wrong)
