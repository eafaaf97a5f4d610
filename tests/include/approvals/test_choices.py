"""The form of a decision: what each choice needs, and what is known before a person decides."""

from __future__ import annotations

from typing import Any

import pytest

from include.approvals.choices import Choice, Request, carry_out, what_is_known
from include.errors import UsageError
from include.quarantine import Selection
from include.times import parse_time
from tests.support.attempts import begin_attempt, hour, note_build, register

FORM = {"pipeline": "nest_cameras", "topic": None, "from": None, "to": None}


@pytest.mark.parametrize(
    ("form", "missing"),
    [
        ({"decision": "adopt topic"}, "the topic is missing"),
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
    attempt = begin_attempt("isp_hits")
    register(attempt, note_build(attempt))
    times = {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"}
    request = Request.of_form({**FORM, "pipeline": "isp_hits", "decision": Choice.REPIN, **times})
    lines = what_is_known(request)
    assert lines[0] == "pin again of isp_hits"
    assert f"isp_hits {hour()}: dry run, nothing is changed" in lines
    assert "would resolve again: the ranges begin where they do, and may become longer" in lines
    assert "would read from kafka: nest-logs-0 [0, 100), 100 offsets" in lines
    assert any(line.startswith("registered: isp_hits date=2026-11-20/interval=2026-11-20T05 ") for line in lines)
    assert lines[-1].startswith("would replace: built by code 1a2b3c, the code is ")
    # Pinned after it: its ranges are those of the next one's beginning.
    begin_attempt("isp_hits", hour(1))
    refused = [line for line in what_is_known(request) if line.startswith("would be refused")]
    assert len(refused) == 1
    with pytest.raises(UsageError, match="a reason is needed"):
        carry_out(request, reason=" ", by="somebody")
