"""The form of a decision: what each choice needs, what is known before a person decides, and that this still holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from include.approvals import choices, of_streams
from include.approvals.choices import carry_out, digest_of_facts, what_is_known
from include.approvals.request import Choice, Request
from include.doctor.disagreement import REPAIR, Disagreement
from include.errors import ServiceUnreachable, UsageError
from include.intervals import lake_of_ledger
from include.intervals.reporting.asking import notify_asked
from include.ledger import quarantine
from include.ledger.alerts import open_alerts
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, pins
from include.ledger.intervals.findings import ExpectationResult, Validation
from include.ledger.models import LandingFileRow, MicroBatchRange
from include.ledger.streams.writers import Lease
from include.ledger.validation import approvals
from include.offsets import OffsetRange
from include.pipelines import load_pipeline
from include.quarantine import Selection, records
from include.times import parse_time
from tests.support.attempts import begin_attempt, build_and_register, hour, note_build
from tests.support.committed import TP, commit, write_quarantined

FORM = {"pipeline": "nest_cameras", "topic": None, "from": None, "to": None}


@pytest.mark.parametrize(
    ("form", "missing"),
    [
        ({"decision": "adopt topic"}, "the topic is missing"),
        ({"decision": "stop reading topic"}, "the topic is missing"),
        ({"decision": "discard from quarantine"}, "no record is named"),
        ({"decision": "pin again", "from": "2026-11-20T05:00:00Z"}, "the interval is missing"),
        ({"decision": "pin again", "from": "2026-11-20T05:00:00Z", "to": "2026-11-20T07:00:00Z"}, "not one interval"),
        ({"decision": "accept loss", "pipeline": "no_such"}, "no_such"),
    ],
)
def test_form_is_refused_when_it_lacks_what_its_choice_needs(form: dict[str, Any], missing: str) -> None:
    with pytest.raises(UsageError, match=missing):
        Request.of_form({**FORM, **form})


def test_form_names_the_subject_when_a_choice_is_made() -> None:
    discard = Request.of_form({**FORM, "decision": "discard from quarantine", "topic_partition": 0, "offset": 7})
    assert discard.selection == Selection("nest-logs", 0, 7)
    bounds = {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"}
    again = Request.of_form({**FORM, "decision": "pin again", **bounds})
    assert again.interval is not None
    assert again.interval.from_time == parse_time(bounds["from"])


@pytest.mark.services
def test_plan_names_ranges_and_revisions_and_needs_a_reason_when_pinning_again(postgres: Any) -> None:
    build_and_register("isp_hits")
    read = {"micro_batch_id": commit("isp_hits", 900, 0, 1), "topic": "nest-logs", "topic_id": "id"}
    with session() as ledger:
        ledger.add_all(
            MicroBatchRange(**read, topic_partition=number, from_offset=0, until_offset=200) for number in (0, 1)
        )
    times = {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"}
    request = Request.of_form({**FORM, "pipeline": "isp_hits", "decision": Choice.REPIN, **times})
    lines = what_is_known(request)
    assert lines[0] == "pin again of isp_hits"
    assert f"isp_hits {hour()}: dry run, nothing is changed" in lines
    assert (
        "would resolve again: the ranges begin where they do, or where the archive does, and may become longer" in lines
    )
    assert "would read from kafka: nest-logs-0 [0, 100), 100 offsets" in lines
    assert any(line.startswith("registered: isp_hits date=2026-11-20/interval=2026-11-20T05 ") for line in lines)
    assert lines[-1].startswith("would replace: built by code 1a2b3c, the code is ")
    # Pinned after it: its ranges are those of the next one's beginning.
    begin_attempt("isp_hits", hour(1))
    refused = [line for line in what_is_known(request) if line.startswith("would be refused")]
    assert len(refused) == 1
    with pytest.raises(UsageError, match="a reason is needed"):
        carry_out(request, digest="", reason=" ", by="somebody")
    with pytest.raises(UsageError, match="no longer those"):
        carry_out(request, digest="", reason="late records", by="somebody")
    shown = digest_of_facts(request)
    assert digest_of_facts(request) == shown
    build_and_register("isp_hits")
    assert digest_of_facts(request) != shown


@pytest.mark.services
def test_alert_about_a_question_is_over_when_its_interval_is_pinned_again(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.alerts.configured_channels", dict)
    name = "isp_asked"
    attempt = begin_attempt(name)
    note_build(attempt)
    spec = attempts.load_attempt(attempt)
    assert spec.build is not None
    warned = (ExpectationResult(name, "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn"),)
    question = approvals.ask(spec.build, "suite-1", warned)
    builds.hold(spec, Validation(False, name, warned, question=question.id))
    notify_asked(attempts.load_attempt(attempt))
    assert len(open_alerts(f"approval/{name}/")) == 1

    def pin_interval(*_: Any, **__: Any) -> pins.PinnedInterval | None:
        return pins.replace_ranges(spec.pinned, spec.pinned.ranges, repinned_by="test")

    monkeypatch.setattr(choices, "pin_interval", pin_interval)
    request = Request(Choice.REPIN, replace(load_pipeline("isp_hits"), name=name), interval=hour())
    carry_out(request, digest=digest_of_facts(request), reason="late records", by="somebody")
    assert open_alerts(f"approval/{name}/") == []


def test_loss_is_accepted_only_when_it_is_the_one_that_was_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    lost, accepted = [OffsetRange(TP, 0, 10, "id")], [OffsetRange(TP, 0, 10, "id")]
    monkeypatch.setattr(of_streams, "lost_offsets", lambda _: lost)
    monkeypatch.setattr(of_streams.generations, "accept_loss", lambda *_, **__: accepted)
    request = Request.of_form({**FORM, "decision": Choice.ACCEPT_LOSS})
    shown = digest_of_facts(request)
    for now in (OffsetRange(TP, 0, 500, "id"), OffsetRange(TP, 0, 10, "another id")):
        lost[:] = [now]
        with pytest.raises(UsageError, match="no longer those that were shown"):
            carry_out(request, digest=shown, reason="moved", by="somebody")
    lost[:] = accepted
    assert carry_out(request, digest=shown, reason="moved", by="somebody") == [
        "events-0 [0, 10) (10 offsets) is accepted as lost"
    ]


def test_loss_that_grew_while_the_decision_waited_for_its_turn_is_not_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = [OffsetRange(TP, 0, 10, "id")]

    @contextmanager
    def no_stream(*_: str) -> Iterator[Lease]:
        # As long as a driver that died holds its lease.
        lost[:] = [OffsetRange(TP, 0, 500, "id")]
        yield Lease("nest_cameras", 7, "here")

    monkeypatch.setattr(of_streams, "lost_offsets", lambda _: lost)
    ways_on = of_streams.generations
    monkeypatch.setattr(ways_on, "lost_offsets", lambda _: lost)
    monkeypatch.setattr(ways_on, "check_lake", lambda _: None)
    monkeypatch.setattr(ways_on, "check_not_taken_over", lambda _: None)
    monkeypatch.setattr(ways_on, "no_stream", no_stream)
    monkeypatch.setattr(ways_on, "check_sources", lambda _: pytest.fail("it is accepted"))
    request = Request.of_form({**FORM, "decision": Choice.ACCEPT_LOSS})
    with pytest.raises(UsageError, match="no longer those that were shown"):
        carry_out(request, digest=digest_of_facts(request), reason="moved", by="somebody")


def test_nothing_is_repaired_or_planned_when_the_lake_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """To a lake that is not mounted, every table is damaged, and a repair creates it again there."""
    request = Request.of_form({**FORM, "decision": Choice.REPAIR})
    missing = Disagreement("Iceberg table differs", "nest_cameras", "its metadata is gone", REPAIR, "commit to Iceberg")
    monkeypatch.setattr(choices, "disagreements_of", lambda *_, **__: [missing])
    monkeypatch.setattr(choices.repair, "repair", lambda *_: pytest.fail("it is repaired"))
    monkeypatch.setattr(lake_of_ledger, "check_version", lambda: None)
    monkeypatch.setattr(lake_of_ledger, "lake_error", lambda _: None)
    shown = digest_of_facts(request)
    assert "plan: commit to Iceberg: its metadata is gone" in what_is_known(request)
    unmounted = ServiceUnreachable("the lake holds nothing of it")
    monkeypatch.setattr(lake_of_ledger, "lake_error", lambda _: unmounted)
    for way in (what_is_known, lambda each: carry_out(each, digest=shown, reason="gone", by="somebody")):
        with pytest.raises(ServiceUnreachable, match="holds nothing"):
            way(request)


def quarantine_at(pipeline: str, number: int, offsets: list[int]) -> None:
    """A micro-batch with records in quarantine."""
    batch = commit(pipeline, number, offsets[0], offsets[-1] + 1, quarantined=len(offsets))
    with session() as ledger:
        path = ledger.query(LandingFileRow).where(LandingFileRow.micro_batch_id == batch).one().path
    write_quarantined(path, offsets)


@pytest.mark.services
def test_records_are_discarded_only_when_none_came_after_the_question(postgres: Any) -> None:
    pipeline = replace(load_pipeline("nest_cameras"), name="nest_decided")
    request = Request(Choice.DISCARD, pipeline, selection=Selection(reason="malformed_json"))
    quarantine_at(pipeline.name, 0, [0, 1])
    shown = digest_of_facts(request)
    quarantine_at(pipeline.name, 1, [2, 3])
    with pytest.raises(UsageError, match="no longer those"):
        carry_out(request, digest=shown, reason="a broken camera", by="somebody")
    assert {each["state"] for each in records(pipeline.name)} == {"quarantined"}
    assert "discarded: 4" in carry_out(request, digest=digest_of_facts(request), reason="broken", by="somebody")


@pytest.mark.services
def test_record_is_not_discarded_when_it_comes_while_the_decision_waits_for_its_turn(
    postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = replace(load_pipeline("nest_cameras"), name="nest_decided_late")
    request = Request(Choice.DISCARD, pipeline, selection=Selection(reason="malformed_json"))
    quarantine_at(pipeline.name, 0, [0, 1])
    shown, deciding = digest_of_facts(request), quarantine.deciding

    def after_another_record(name: str) -> Any:
        quarantine_at(name, 1, [2])
        return deciding(name)

    with monkeypatch.context() as patched:
        patched.setattr(quarantine, "deciding", after_another_record)
        with pytest.raises(UsageError, match="no longer those"):
            carry_out(request, digest=shown, reason="a broken camera", by="somebody")
    assert {each["state"] for each in records(pipeline.name)} == {"quarantined"}
    assert "discarded: 3" in carry_out(request, digest=digest_of_facts(request), reason="broken", by="somebody")
