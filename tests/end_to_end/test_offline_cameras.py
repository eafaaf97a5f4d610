"""Offline cameras: told within seconds, once when they go offline and once when they are back; intervals prove it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

import psycopg2
import pytest

from tests.conftest import Home, end_of, iso, last_hours, wait_for
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(2)
TOPIC = "nest-camera-offline"
LASTING = "key LIKE '%lasting%'"

LONG_AGO = START - timedelta(days=40)
"""The last event of a camera that has seen nothing since."""


@pytest.fixture(scope="module")
def landed(home: Home) -> Home:
    """An hour of records, in which a hundredth of the cameras' states is offline."""
    home.run("produce", "nest_cameras", "--events", "1500", "--start", iso(START), "--span", "1h", "--seed", "7")
    send(home, "lasting", START + timedelta(minutes=59), is_online=False, event=LONG_AGO)
    home.run("stream", "nest_cameras", "--until-caught-up")
    return home


def told(home: Home) -> list[dict[str, Any]]:
    """Every message of the topic, in its order."""
    if TOPIC not in audit.topics(home.kafka):
        return []
    return [json.loads(record.value or b"") for _, record in sorted(audit.read_topic(home.kafka, TOPIC).items())]


def outages_in(records: dict[audit.Coordinates, audit.Record]) -> list[tuple[str, str, audit.Coordinates]]:
    """Return each camera's changes in the log: whether it goes down or is up again, and by which record."""
    found = []
    rows = sorted(audit.expected(records).rows.items(), key=lambda row: (row[1]["device_id"], row[0]))
    for device, states in groupby(rows, key=lambda row: row[1]["device_id"]):
        was_online = True
        for identity, camera in states:
            if camera["is_online"] != was_online:
                was_online = camera["is_online"]
                found.append((device, "up" if was_online else "down", identity[:3]))
    return sorted(found)


def as_told(messages: list[dict[str, Any]]) -> list[tuple[str, str, audit.Coordinates]]:
    return sorted(
        (m["device_id"], m["state"], (m["kafka_topic"], m["kafka_partition"], m["kafka_offset"])) for m in messages
    )


def execute(home: Home, statement: str) -> None:
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        assert cursor.rowcount > 0, statement


def test_each_outage_of_the_log_is_told_once_when_it_begins_and_once_when_it_ends(landed: Home) -> None:
    messages = told(landed)
    expected = outages_in(audit.read_topic(landed.kafka, "nest-logs"))
    assert as_told(messages) == expected
    assert {state for _, state, _ in expected} == {"down", "up"}
    assert len({m["id"] for m in messages}) == len(messages)
    assert {(m["pipeline"], m["report"]) for m in messages} == {("nest_cameras", "Cameras offline")}
    assert {m["name_long"] for m in messages} == {"Porch", *(f"Camera {m['device_id']}" for m in messages)} - {
        "Camera lasting"
    }


@pytest.fixture(scope="module")
def streaming(landed: Home) -> Iterator[Callable[..., Any]]:
    """Starts the stream, and returns it once it reads."""
    started = []

    def start(**extra: str) -> Any:
        stream = landed.start("stream", "nest_cameras", **extra)
        started.append(stream)
        assert stream.stderr is not None
        while "streaming from" not in (line := stream.stderr.readline()):
            assert line, "the stream ended before it began"
        return stream

    yield start
    for stream in started:
        end_of(stream)


def send(
    home: Home, device: str, at: datetime, *, is_online: bool, times: int = 1, event: datetime | None = None
) -> None:
    last_event = {"start_time": iso(event or at), "has_person": False}
    camera = {"device_id": device, "name_long": "Porch", "is_online": is_online, "last_event": last_event}
    message = json.dumps({"devices": {"cameras": {device: camera}}}).encode()
    producer = home.producer()
    for _ in range(times):
        producer.produce("nest-logs", message, device.encode(), timestamp=int(at.timestamp() * 1000))
    assert producer.flush(30) == 0


def told_of(home: Home, device: str) -> list[str]:
    return [m["state"] for m in told(home) if m["device_id"] == device]


def test_camera_is_told_within_seconds_while_the_stream_runs_and_by_the_next_driver_when_one_is_killed(
    landed: Home, streaming: Callable[..., Any]
) -> None:
    at = START + timedelta(minutes=61)
    first = streaming()
    send(landed, "porch", at, is_online=True)
    # The first micro-batch of a driver takes longer than those that follow.
    send(landed, "warm", at, is_online=False)
    wait_for("the first camera", lambda: told_of(landed, "warm"), 120)
    send(landed, "lasting", at, is_online=True, event=LONG_AGO)
    send(landed, "porch", at, is_online=False, times=5)
    wait_for("the outage", lambda: told_of(landed, "porch") == ["down"], 30)
    send(landed, "porch", at, is_online=True, times=5)
    wait_for("its end", lambda: told_of(landed, "porch") == ["down", "up"], 30)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=120)

    # It dies between the commit and the message.
    send(landed, "porch", at, is_online=False)
    killed = landed.run("stream", "nest_cameras", "--until-caught-up", expect=None, TIDEMARK_CRASH_AT="batch_committed")
    assert killed.returncode != 0
    assert told_of(landed, "porch") == ["down", "up"]
    landed.run("stream", "nest_cameras", "--until-caught-up")
    assert told_of(landed, "porch") == ["down", "up", "down"]
    assert as_told(told(landed)) == outages_in(audit.read_topic(landed.kafka, "nest-logs"))


def test_interval_matches_every_outage_and_tells_nobody_a_second_time(landed: Home) -> None:
    before = told(landed)
    verdict = landed.interval("nest_cameras", START)
    assert verdict["reconciliation"]["unexplained"] == 0
    again = landed.interval("nest_cameras", START)
    assert again["registered"] == verdict["registered"]
    assert told(landed) == before


def test_interval_stops_with_exit_code_3_when_an_outage_was_missed_or_made_up(landed: Home) -> None:
    execute(landed, "CREATE TABLE kept AS SELECT * FROM outages ORDER BY id LIMIT 1")
    execute(landed, "DELETE FROM outages WHERE id = (SELECT id FROM kept)")
    missed = landed.interval("nest_cameras", START, expect=3)
    found = [d["evidence"] for d in missed["differences"] if d["class"] == "unexplained"]
    assert found
    assert all("which the stream did not note" in evidence for evidence in found)
    assert all(d["what"] == "outages of Cameras offline" for d in missed["differences"] if d["class"] == "unexplained")

    execute(landed, "INSERT INTO outages SELECT * FROM kept")
    # Of the same camera, a record later: nobody is offline there.
    execute(landed, "UPDATE outages SET record_offset = record_offset + 1 WHERE id = (SELECT id FROM kept)")
    made_up = landed.interval("nest_cameras", START, expect=3)
    evidence = " ".join(d["evidence"] for d in made_up["differences"] if d["class"] == "unexplained")
    assert "which the row does not give" in evidence
    assert "which the stream did not note" in evidence

    execute(landed, "UPDATE outages SET record_offset = record_offset - 1 WHERE id = (SELECT id FROM kept)")
    assert landed.interval("nest_cameras", START)["reconciliation"]["unexplained"] == 0


def test_next_interval_begins_with_the_cameras_that_were_down_before(landed: Home) -> None:
    verdict = landed.interval("nest_cameras", START + timedelta(hours=1))
    assert verdict["reconciliation"]["unexplained"] == 0
    # Without its beginning, a camera's first state of being up again would have no cause.
    execute(landed, f"UPDATE outages SET key = 'other' WHERE {LASTING}")
    missed = landed.interval("nest_cameras", START + timedelta(hours=1), expect=3)
    assert missed["reconciliation"]["unexplained"] == 1
    execute(landed, "UPDATE outages SET key = '{\"device_id\": \"lasting\"}' WHERE key = 'other'")
