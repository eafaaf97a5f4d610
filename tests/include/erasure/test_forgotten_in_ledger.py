"""What an erasure removes from the ledger, and what PostgreSQL has to give to Python for that."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
from sqlalchemy import literal, select, update
from sqlalchemy.orm import Session

from include.erasure.keys import FORGOTTEN, Keys
from include.erasure.names import Names
from include.ledger.alerts import DISMISSED, Alert, dismissed_alerts, noted, open_alerts
from include.ledger.alerts.noted import close_alert, note_alert
from include.ledger.database import session
from include.ledger.erasures import named_partitions, scrub, unfinished
from include.ledger.intervals import attempts
from include.ledger.intervals.findings import Validation
from include.ledger.models import (
    Approval,
    Attempt,
    Build,
    ExpectationRow,
    Generation,
    IntervalRow,
    ListedRow,
    OutageRow,
)
from tests.conftest import Home
from tests.support import attempts as made
from tests.support.committed import DAY, register
from tests.support.ledger_waits import waits_with

pytestmark = pytest.mark.services

KEYS = (
    "cam-1",
    "7",
    "José",
    "a%b",
    "a_b",
    "c:\\x",
    'say "hi"',
    '"quoted"',
    "ends\\",
    'back\\"quote',
    "x" * 60,
    "😀",
    "日本",
)


def spellings(key: str) -> list[str]:
    """Texts that name the key, as it is and in JSON, in JSON in JSON, and by single escapes."""
    plain = f"it is {key} here"
    once = [json.dumps({"key": key, "said": plain}, ensure_ascii=ascii_only) for ascii_only in (True, False)]
    twice = [json.dumps({"where": each}, ensure_ascii=ascii_only) for each in once for ascii_only in (True, False)]
    escaped = "".join(f"\\u{ord(each):04X}" if ord(each) < 1 << 16 else each for each in key)
    return [
        key,
        plain,
        *once,
        *twice,
        *(json.dumps([each]) for each in twice),
        escaped,
        f'"{escaped}"',
        f'{key}\\"',
        f'\\"{key}',
    ]


@pytest.mark.parametrize("key", KEYS)
def test_text_reaches_python_when_it_names_the_key_in_any_spelling(postgres: Home, key: str) -> None:
    keys = Keys([key])
    texts = [each for other in KEYS for each in spellings(other) if keys.named_in(each)]
    assert len(texts) >= 8
    with session() as ledger:
        passed = [ledger.scalar(select(scrub._may_name(literal(each), keys))) for each in texts]
    assert [text for text, is_passed in zip(texts, passed, strict=True) if not is_passed] == []


def test_text_stays_in_the_database_when_it_names_others_in_json(postgres: Home) -> None:
    texts = [json.dumps({"where": json.dumps({"device_id": f"cam {each}"})}) for each in range(3)]
    with session() as ledger:
        for key, text in product(("cam-1", "cam%2", "c_m"), texts):
            assert ledger.scalar(select(scrub._may_name(literal(text), Keys([key])))) is False


def things(pipeline: str) -> list[dict[str, object]]:
    with session() as ledger:
        outages = ledger.scalars(select(OutageRow.key).where(OutageRow.pipeline == pipeline).order_by(OutageRow.id))
        return [json.loads(each) for each in outages]


def note(pipeline: str, *keys: dict[str, object]) -> int:
    """Note an outage and a listed row of each key, and return the interval."""
    interval = register(pipeline, 0, 0, 10)
    with session() as ledger:
        for offset, values in enumerate(keys):
            key = json.dumps(values, sort_keys=True)
            ledger.add(
                OutageRow(
                    pipeline=pipeline, report="Offline", key=key, micro_batch=1, topic="events", topic_id="id",
                    topic_partition=0, record_offset=offset, element=0, began_at=DAY, row={},
                )
            )  # fmt: skip
            ledger.add(ListedRow(interval_id=interval, build_id=1, report="Offline", key=key, row={}))
    return interval


@pytest.mark.parametrize(
    ("key", "columns", "kept"),
    [
        # A number counts only in columns that hold keys.
        ("7", [("device_id",)], [1, 3]),
        ("7", [("device_id", "camera")], [1, 3]),
        ("7", [("device_id", "camera"), ("slot",)], []),
        ("7", [("last_event.device_id",)], [1, 3]),
        # Nobody knows what the report has made of it.
        ("cam-7", [("last_event.device",)], []),
        ("7", [("last_event.device",)], [0, 1, 2, 3]),
    ],
    ids=["one column", "with its former name", "two columns", "by the path's end", "a word in none", "number in none"],
)
def test_outages_of_others_stay_when_another_column_of_their_key_equals_the_key(
    postgres: Home, request: pytest.FixtureRequest, key: str, columns: list[tuple[str, ...]], kept: list[int]
) -> None:
    pipeline = str(request.node.name)[-50:]
    number = int(key) if key.isdecimal() else key
    keys: list[dict[str, object]] = [
        {"device_id": key, "slot": 1},
        {"device_id": "8", "slot": number},
        {"device_id": number, "slot": 2},
        {"camera": "8", "slot": number},
    ]
    interval = note(pipeline, *keys)
    with session() as ledger:
        scrub.forget(ledger, pipeline, [], Keys([key]), columns)
    assert things(pipeline) == [keys[each] for each in kept]
    with session() as ledger:
        listed = ledger.scalars(select(ListedRow.key).where(ListedRow.interval_id == interval))
        assert sorted(listed) == sorted(json.dumps(keys[each], sort_keys=True) for each in kept)


def test_outage_of_another_stays_when_a_former_name_is_now_another_column_s(
    postgres: Home, request: pytest.FixtureRequest
) -> None:
    pipeline = str(request.node.name)[-50:]
    note(pipeline, {"camera_id": "8", "device_id": "7"})
    with session() as ledger:
        scrub.forget(ledger, pipeline, [], Keys(["7"]), [("camera_id", "device_id")])
    assert things(pipeline) == [{"camera_id": "8", "device_id": "7"}]


@pytest.mark.parametrize("columns", [[("structure_id",)], [("home.structure_id",)]], ids=["plain", "nested"])
@pytest.mark.parametrize(("house", "is_kept"), [("house-7", False), ("next to house-7", True), ("house-8", True)])
def test_outages_of_a_thing_go_when_their_row_has_the_key_in_another_column(
    postgres: Home, request: pytest.FixtureRequest, house: str, is_kept: bool, columns: list[tuple[str, ...]]
) -> None:
    pipeline = str(request.node.name)[-50:]
    row: dict[str, object] = {"name_long": "Nursery (Anna)", "structure_id": house}
    interval = note(pipeline, {"device_id": "cam-9"})
    with session() as ledger:
        ledger.execute(update(OutageRow).where(OutageRow.pipeline == pipeline).values(row=row))
        ledger.execute(update(ListedRow).where(ListedRow.interval_id == interval).values(row=row))
        scrub.forget(ledger, pipeline, [], Keys(["house-7"]), columns)
    assert bool(things(pipeline)) is is_kept
    with session() as ledger:
        listed = ledger.scalars(select(ListedRow).where(ListedRow.interval_id == interval)).all()
        assert [each.row["name_long"] for each in listed] == ["Nursery (Anna)"] * is_kept
        assert "house-7" not in str([each.row for each in listed])


@pytest.mark.parametrize(("began", "ended"), [("house-7", "house-8"), ("house-8", "house-7")])
def test_outage_of_a_moved_thing_keeps_only_the_end_at_which_it_had_another_owner(
    postgres: Home, request: pytest.FixtureRequest, began: str, ended: str
) -> None:
    """The rows of the other owner still give it."""
    pipeline = str(request.node.name)[-50:]
    note(pipeline, {"device_id": "cam-9"})
    row, end_row = ({"name_long": "Nursery", "structure_id": house} for house in (began, ended))
    with session() as ledger:
        ledger.execute(update(OutageRow).where(OutageRow.pipeline == pipeline).values(row=row, end_row=end_row))
        scrub.forget(ledger, pipeline, [], Keys(["house-7"]), [("structure_id",)])
    gone = {"name_long": None, "structure_id": FORGOTTEN}
    with session() as ledger:
        kept = ledger.scalars(select(OutageRow).where(OutageRow.pipeline == pipeline)).one()
        assert [kept.row, kept.end_row] == [
            gone if each["structure_id"] == "house-7" else each for each in (row, end_row)
        ]


def found(pipeline: str, findings: dict[str, Any], key: str, *, is_own: bool = False) -> dict[str, Any]:
    """What is left of a published build's findings when a key in the column `device_id` is forgotten."""
    attempt = made.build_and_register(pipeline)
    spec = attempts.load_attempt(attempt)
    with session() as ledger:
        build = ledger.get_one(Build, spec.build)
        build.findings = findings
        for row in (ledger.get_one(Attempt, attempt), ledger.get_one(IntervalRow, spec.pinned.id)):
            row.verdict = {**findings, "report": "/reports/of/12.html"}
        ledger.flush()
        scrub.forget(ledger, pipeline, [spec.pinned.id] if is_own else [], Keys([key]), [("last_event.device_id",)])
        ledger.expire_all()
        for row in (ledger.get_one(Attempt, attempt), ledger.get_one(IntervalRow, spec.pinned.id)):
            assert row.verdict == {**build.findings, "report": "/reports/of/12.html"}
        return build.findings


REPORT: dict[str, Any] = {
    "sections": [
        {
            "title": "Top 12 devices", "note": "above 12, in cells of 34", "columns": ["device_id", "hits", "seen"],
            "rows": [
                ["12", 34, "2026-11-12 12:00"], ["34", 12, "12"], ["keys", 12, "34"], [12, 5, "at 34"],
                ["cam-4", 4915112345678, True],
            ],
            "truncated": 12, "grid": {"size": 12, "x": [12, 34], "y": [34, 12], "cells": [[12, 34, 12]]},
        }
    ],
    "chart": {
        "title": "hits of 12", "unit": "values", "x": ["2026-11-12 12:00"],
        "series": [{"name": "keys", "values": [12]}, {"name": "porch 34", "values": [34]}],
        "others": {"keys": 34, "values": [12]},
    },
}  # fmt: skip
"""A report whose numbers and names may all be keys."""


@pytest.mark.parametrize(
    ("key", "rows", "series"),
    [
        ("12", {0: [FORGOTTEN, None, None], 3: [FORGOTTEN, None, None]}, {}),
        ("34", {1: [FORGOTTEN, None, None]}, {1: FORGOTTEN}),
        ("keys", {2: [FORGOTTEN, None, None]}, {0: FORGOTTEN}),
        ("values", {}, {}),
        ("true", {}, {}),
        ("4915112345678", {4: [None, FORGOTTEN, None]}, {}),
        ("2026", {}, {}),
    ],
)
def test_report_of_another_interval_keeps_its_form_and_counts_when_one_is_equal_to_the_key(
    postgres: Home, request: pytest.FixtureRequest, key: str, rows: dict[int, list[Any]], series: dict[int, str]
) -> None:
    wanted = deepcopy(REPORT)
    for at, row in rows.items():
        wanted["sections"][0]["rows"][at] = row
    for at, name in series.items():
        wanted["chart"]["series"][at]["name"] = name
    assert found(str(request.node.name)[-50:], {**REPORT, "records": {"archived": 12}}, key) == {
        **wanted,
        "records": {"archived": 12},
    }


def test_number_is_a_key_when_a_view_counts_by_its_column(postgres: Home, request: pytest.FixtureRequest) -> None:
    """The view's function has renamed the archive's column."""
    pipeline = str(request.node.name)[-50:]
    with session() as ledger:
        started = {"pipeline": pipeline, "number": 1, "started_by": "me@here", "reason": "first start", "positions": {}}
        ledger.add(Generation(**started, fingerprints={"archive": {}, "by_camera": {"key": ["camera", "window"]}}))
    section = {"title": "Top", "columns": ["camera", "hits"], "rows": [[12, 34], [34, 12]]}
    left = found(pipeline, {"sections": [section]}, "12")
    assert left["sections"][0]["rows"] == [[FORGOTTEN, None], [34, 12]]


def test_nothing_of_the_rows_stays_when_the_interval_held_the_erased_ones(
    postgres: Home, request: pytest.FixtureRequest
) -> None:
    mark = "Nursery (Anna)"
    result = {"table": "cameras", "column": "name_long", "observed": "3 % unexpected", "value": 0.97, "success": False}
    changed = {"table": "cameras", "added": 1, "examples": [{"change": "added", "key": mark}]}
    findings = {
        "report": {"sections": [{"title": "Offline", "columns": ["id", "name"], "rows": [["cam-1", mark]]}]},
        "expectations": [{**result, "examples": [{"kafka_offset": "5", "name_long": mark}]}],
        "revision_differences": [changed],
        "differences": [{"class": "unexplained", "what": "w", "where": "t-0 offset 5", "evidence": f"Kafka '{mark}'"}],
        "unknown_fields": {"records": 1, "paths": [{"path": mark, "records": 1}]},
        "records": {"archived": 1},
    }  # fmt: skip
    left = found(str(request.node.name)[-50:], findings, "cam-1", is_own=True)
    assert mark not in json.dumps(left)
    assert left["expectations"] == [{**result, "examples": []}]
    assert left["revision_differences"] == [{**changed, "examples": []}]
    assert left["differences"] == [{"class": "unexplained", "what": "w", "where": "t-0 offset 5", "evidence": ""}]
    assert left["records"] == {"archived": 1}


def test_examples_of_another_interval_lose_what_is_beside_the_key(
    postgres: Home, request: pytest.FixtureRequest
) -> None:
    examples = [{"device_id": "cam-1", "name_long": "Nursery"}, {"device_id": "cam-2", "name_long": "by cam-1"}]
    left = found(str(request.node.name)[-50:], {"expectations": [{"observed": "1", "examples": examples}]}, "cam-1")
    assert left["expectations"][0]["examples"] == [
        {"device_id": FORGOTTEN, "name_long": FORGOTTEN},
        {"device_id": "cam-2", "name_long": FORGOTTEN},
    ]


@pytest.mark.parametrize(
    ("where", "evidence", "left_of_where", "left_of_evidence"),
    [
        ("logs-0 offset 12", "Kafka 12, archive 34", "logs-0 offset 12", "Kafka 12, archive 34"),
        ('{"device_id": "12"}', "count: batch view 12", FORGOTTEN, "count: batch view 12"),
        ('{"device_id": "cam-1"}', "archive {'name': 'cam-1'}", FORGOTTEN, FORGOTTEN),
        ("logs-0 offset 7", "the row finds cam-1 down", "logs-0 offset 7", FORGOTTEN),
    ],
)
def test_difference_of_another_interval_keeps_counts_and_offsets_when_one_is_equal_to_the_key(
    postgres: Home, request: pytest.FixtureRequest, where: str, evidence: str, left_of_where: str, left_of_evidence: str
) -> None:
    difference = {"class": "late", "what": "w", "where": where, "evidence": evidence}
    key = "cam-1" if left_of_evidence == FORGOTTEN else "12"
    left = found(str(request.node.name)[-50:], {"differences": [difference]}, key)
    assert left["differences"] == [{**difference, "where": left_of_where, "evidence": left_of_evidence}]


def test_numbers_of_a_result_go_with_its_text_when_the_column_holds_keys(
    postgres: Home, request: pytest.FixtureRequest
) -> None:
    """The number of rows is the same number, and nobody's key."""
    pipeline = str(request.node.name)[-50:]
    attempt = made.build_and_register(pipeline)
    build = attempts.load_attempt(attempt).build
    said = {"build_id": build, "table_name": "t", "success": True, "unexpected_count": 0, "low": 1.0, "high": 199.0}
    with session() as ledger:
        for number, column in enumerate(("device_id", "")):
            of_column = {"number": number, "column_name": column, "expectation": "max", "words": "is at most 199"}
            ledger.add(ExpectationRow(**said, **of_column, observed="199", value=199.0))
        ledger.flush()
        forgotten = scrub.forget(ledger, pipeline, [], Keys(["199"]), [("device_id",)])
        assert (forgotten.rows, forgotten.in_proofs) == (1, 1)
        rows = ledger.scalars(select(ExpectationRow).where(ExpectationRow.build_id == build)).all()
        kept = {each.column_name: (each.observed, each.value, each.low, each.high) for each in rows}
    assert kept == {"device_id": (FORGOTTEN, None, None, None), "": ("199", 199.0, 1.0, 199.0)}


def test_reason_of_an_approval_is_forgotten_and_counted_when_a_proof_repeats_it(
    postgres: Home, request: pytest.FixtureRequest
) -> None:
    pipeline = str(request.node.name)[-50:]
    decision = {"decision": "approved", "by": "me@here", "reason": "cam-1 was moved", "at": "2026-11-20T05:00:00Z"}
    attempt = made.begin_attempt(pipeline)
    made.register(attempt, made.note_build(attempt), Validation(True, "s", decision=decision))
    spec = attempts.load_attempt(attempt)
    with session() as ledger:
        asked = Approval(
            build_id=spec.build, interval_id=spec.pinned.id, suite="s", warnings=[], approved=True, reason="of cam-1"
        )
        ledger.add(asked)
        ledger.flush()
        forgotten = scrub.forget(ledger, pipeline, [], Keys(["cam-1"]), [("device_id",)])
        assert (forgotten.in_proofs, forgotten.reasons_in_proofs) == (0, 1)
        assert asked.reason == FORGOTTEN
    validation = attempts.load_attempt(attempt).findings.validation
    assert validation is not None
    assert validation.decision == {**decision, "reason": FORGOTTEN}


def test_alert_says_no_key_and_still_tells_what_it_is_about_when_the_key_is_a_part_of_a_time(postgres: Home) -> None:
    """By its intervals, its run and its query the end of an alert is found."""
    kept = {
        "dag": "interval__keyed", "run": "scheduled__2026-11-11T11:00:00+00:00", "task": "publish", "query": "by_11",
        "interval": "2026-11-11T11:00:00Z/2026-11-11T12:00:00Z", "until": "2026-11-11T12:00:00Z",
        "intervals": ["2026-11-11T11:00:00Z/2026-11-11T12:00:00Z"], "keys": 11, "max_keys": 11,
        "failed_at": "2026-11-11T11:40:00Z",
    }  # fmt: skip
    said = {"error": "the sensor 11 is broken", "warnings": ["t: all have 11 (observed 11)"]}
    told = Alert("task/keyed", "keyed", "the sensor 11 is broken", "at 11", DAY, "look at 11", {**kept, **said})
    note_alert(told)
    with session() as ledger:
        assert scrub.forget(ledger, "keyed", [], Keys(["11"]), [("sensor",)]).rows == 1
    [found] = open_alerts("task/keyed")
    assert {found.what, found.place, found.todo} == {FORGOTTEN}
    assert found.facts == {**kept, "error": FORGOTTEN, "warnings": [FORGOTTEN]}
    close_alert("task/keyed")


def forget_key(key: str) -> None:
    with session() as ledger:
        assert scrub.forget(ledger, "keyed", [], Keys([key]), [("zip",)]).rows == 1


def forget_partitions(key: str) -> None:
    begun = unfinished.Begun(1, "keyed", ("zip",), "r", "me", DAY, None, "00", (), {}, (), 0, None)
    named_partitions.forget_names(begun, "keyed", Names({f"zip={key}"}))


@pytest.mark.parametrize("forget", [forget_key, forget_partitions])
def test_dismissal_stays_when_the_alert_is_cleaned_meanwhile(
    postgres: Home, monkeypatch: pytest.MonkeyPatch, forget: Callable[[str], None]
) -> None:
    about = f"task/{forget.__name__}"
    note_alert(Alert(about, "keyed", "zip=11 is broken", "here", DAY, "look at it"))

    def dismiss(other: Session) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(noted, "session", lambda: nullcontext(other))
            assert close_alert(about, dict(zip(DISMISSED, ("me", "it is known"), strict=True)))
        other.flush()

    assert "alerts" in waits_with(lambda: forget("11"), dismiss)
    [found] = dismissed_alerts(about)
    assert (found.facts[DISMISSED[1]], "11" in found.what) == ("it is known", False)
