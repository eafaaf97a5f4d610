"""What an erasure removes from the ledger, and what PostgreSQL has to give to Python for that."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product

import pytest
from sqlalchemy import literal, select
from sqlalchemy.orm import Session

from include.erasure.keys import FORGOTTEN, Keys
from include.erasure.names import Names
from include.ledger.alerts import DISMISSED, Alert, dismissed_alerts, noted, open_alerts
from include.ledger.alerts.noted import close_alert, note_alert
from include.ledger.database import session
from include.ledger.erasures import named_partitions, scrub, unfinished
from include.ledger.models import ListedRow, OutageRow
from tests.conftest import Home
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
    ("columns", "kept"),
    [
        ([("device_id",)], [1]),
        ([("device_id", "camera")], [1, 3]),
        ([("device_id", "camera"), ("slot",)], []),
        # Nobody knows what the report has made of it.
        ([("last_event.device",)], []),
    ],
    ids=["one column of the key", "with its former name", "two columns", "none of the key"],
)
def test_outages_of_others_stay_when_another_column_of_their_key_equals_the_key(
    postgres: Home, request: pytest.FixtureRequest, columns: list[tuple[str, ...]], kept: list[int]
) -> None:
    pipeline = str(request.node.name)[-50:]
    keys: list[dict[str, object]] = [
        {"device_id": "7", "slot": 1},
        {"device_id": "8", "slot": 7},
        {"device_id": 7, "slot": 2},
        {"camera": "8", "slot": 7},
    ]
    interval = note(pipeline, *keys)
    with session() as ledger:
        scrub.forget(ledger, pipeline, [], Keys(["7"]), columns)
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


def test_alert_says_no_key_and_still_tells_what_it_is_about_when_the_key_is_a_part_of_a_time(postgres: Home) -> None:
    """By its intervals, its run and its query the end of an alert is found."""
    kept = {
        "dag": "interval__keyed", "run": "scheduled__2026-11-11T11:00:00+00:00", "task": "publish", "query": "by_11",
        "interval": "2026-11-11T11:00:00Z/2026-11-11T12:00:00Z", "until": "2026-11-11T12:00:00Z",
        "intervals": ["2026-11-11T11:00:00Z/2026-11-11T12:00:00Z"], "keys": 11, "max_keys": 11,
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
