"""The event stream against a real server on loopback: frames, drops, refusals, pauses."""

from __future__ import annotations

import asyncio
import re
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from include.errors import ServiceUnreachable
from include.producing import event_stream
from include.producing.event_stream import Event, EventStream, PositionRefused, public_address
from tests.support.event_server import Answer, EventServer, ScriptedServer, ServiceServer

NOW = datetime.now(UTC)
GONE = Answer(status=204)


@pytest.fixture(autouse=True)
def _short_first_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "FIRST_PAUSE", 0.02)


def received(
    server: EventServer, last_event_id: str = "", *, silence: float = 5.0, contact: str = ""
) -> tuple[list[Event], list[str]]:
    """Return all events until the server answers 204, and the messages printed meanwhile."""
    events: list[Event] = []
    told: list[str] = []

    async def keep(event: Event) -> None:
        events.append(event)

    stream = EventStream(server.url, last_event_id, told.append, silence=silence, contact=contact)
    asyncio.run(asyncio.wait_for(stream.follow(keep), 60))
    return events, told


def quick(*pieces: bytes, **more: Any) -> Answer:
    return Answer((b"retry: 20\n\n", *pieces), **more)


FRAMES = [
    ("one line", [b"id: 1\ndata: a\n\n"], [Event("1", "message", "a")]),
    ("several lines of data", [b"id: 1\ndata: a\ndata:  b\ndata:c\n\n"], [Event("1", "message", "a\n b\nc")]),
    ("carriage returns", [b"id: 1\r\ndata: a\r\n\r\nid: 2\rdata: b\r\r"],
     [Event("1", "message", "a"), Event("2", "message", "b")]),
    ("a byte at a time", [bytes([b]) for b in "id: 1\r\ndata: é\u2028\x85z\r\n\r\n".encode()],
     [Event("1", "message", "é\u2028\x85z")]),
    ("comments", [b":ok\n\n", b"id: 1\n: in between\ndata: a\n\n:\n\n: again\n\n"], [Event("1", "message", "a")]),
    ("another type", [b"event: odd\nid: 1\ndata: a\n\n"], [Event("1", "odd", "a")]),
    ("no id", [b"data: a\n\n"], [Event("", "message", "a")]),
    ("an id alone moves on", [b"id: 1\ndata: a\n\nid: 2\n\n"],
     [Event("1", "message", "a"), Event("2", "message", "")]),
    ("an id that no header can carry", [b"id: 1\ndata: a\n\nid: \x01\ndata: b\n\nid:\ndata: c\n\n"],
     [Event("1", "message", "a"), Event("1", "message", "b"), Event("1", "message", "c")]),
    ("unknown fields", [b"nonsense\nx: y\nid: 1\ndata: a\n\n"], [Event("1", "message", "a")]),
    ("a byte order mark", [b"\xef\xbb\xbfid: 1\ndata: a\n\n"], [Event("1", "message", "a")]),
    ("bytes that are no UTF-8", [b"id: 1\ndata: a\xff\n\n"], [Event("1", "message", "a\ufffd")]),
    ("an event cut off", [b"id: 1\ndata: a\n\nid: 2\ndata: b"], [Event("1", "message", "a")]),
]  # fmt: skip


@pytest.mark.parametrize(("pieces", "expected"), [case[1:] for case in FRAMES], ids=[case[0] for case in FRAMES])
def test_events_are_those_of_the_standard_when_frames_come_as(pieces: list[bytes], expected: list[Event]) -> None:
    with ScriptedServer(Answer(pieces), GONE) as server:
        assert received(server)[0] == expected


@pytest.mark.parametrize("kind", ["Text/Event-Stream", "TEXT/EVENT-STREAM; charset=utf-8"])
def test_events_are_read_when_the_content_type_is_spelled_otherwise(kind: str) -> None:
    with ScriptedServer(Answer((b"id: 1\ndata: a\n\n",), headers={"Content-Type": kind}), GONE) as server:
        events, _ = received(server)
    assert [event.data for event in events] == ["a"]
    assert len(server.last_event_ids) == 2


def test_stream_goes_on_after_the_last_whole_event_when_a_connection_is_cut() -> None:
    cut = quick(b"id: 1\ndata: a\n\nid: 2\ndata: lost", end="reset")
    with ScriptedServer(cut, quick(b"id: 2\ndata: b\n\n"), GONE) as server:
        events, told = received(server, "0")
    assert [event.data for event in events] == ["a", "b"]
    assert server.last_event_ids == ["0", "1", "2"]
    assert len([line for line in told if "connecting again in 0." in line]) == 2


def test_no_id_is_sent_when_none_is_known() -> None:
    with ScriptedServer(GONE) as server:
        received(server)
    assert server.last_event_ids == [None]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_stream_waits_as_asked_and_goes_on_when_the_service_is_away(status: int) -> None:
    away = Answer(status=status, headers={"Retry-After": "1"})
    with ScriptedServer(quick(b"id: 1\ndata: a\n\n"), away, quick(b"id: 2\ndata: b\n\n"), GONE) as server:
        begun = time.monotonic()
        events, told = received(server)
    assert [event.id for event in events] == ["1", "2"]
    assert 1.0 <= time.monotonic() - begun < 10
    assert any(f"answer {status}" in line and "in 1.0 s" in line for line in told)


def test_pauses_double_up_to_the_longest_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "LONGEST_PAUSE", 0.4)
    fruitless = Answer((b"retry: 100\n\n",))
    with ScriptedServer(*[fruitless] * 6, GONE) as server:
        _, told = received(server)
    pauses = [float(line.split("again in ")[1].split()[0]) for line in told if "again in" in line]
    assert pauses[0] == 0.1
    assert 0.1 < pauses[1] <= 0.2
    assert 0.3 <= pauses[2] <= 0.4
    assert all(0.3 <= pause <= 0.4 for pause in pauses[3:])
    assert len(pauses) == 6


def test_stream_goes_on_when_the_server_s_pause_is_a_number_that_no_float_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_stream, "LONGEST_PAUSE", 0.02)
    with ScriptedServer(Answer((b"retry: " + b"9" * 400 + b"\nid: 1\ndata: a\n\n",)), GONE) as server:
        events, _ = received(server)
    assert [event.id for event in events] == ["1"]


def test_stream_connects_again_when_a_connection_is_silent() -> None:
    with ScriptedServer(quick(b"id: 1\ndata: a\n\n", end="hold"), GONE) as server:
        events, told = received(server, silence=0.3)
    assert [event.id for event in events] == ["1"]
    assert any("ReadTimeout" in line for line in told)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(status=404), "answers 404"),
        (Answer(status=403), "answers 403"),
        (Answer((b"<html>",), headers={"Content-Type": "text/html"}), "answers with text/html"),
        (Answer((b"data: a\n\n",), headers={}), "no content type"),
    ],
)
def test_stream_ends_with_one_clear_line_when_the_answer_is_none_of_a_stream(answer: Answer, words: str) -> None:
    with ScriptedServer(answer) as server:
        with pytest.raises(ServiceUnreachable, match=words) as raised:
            received(server)
        assert len(server.last_event_ids) == 1
    assert raised.value.remedy


def test_error_names_the_service_s_answer_and_the_remedy_when_a_reader_has_no_contact() -> None:
    with ServiceServer(NOW, 3) as server:
        with pytest.raises(ServiceUnreachable, match="answers 403 Forbidden: Please set a user-agent") as raised:
            received(server)
        assert "--contact" in raised.value.remedy
        assert "TIDEMARK_CONTACT" in raised.value.remedy


def test_contact_goes_out_with_every_connection_when_it_is_named() -> None:
    with ScriptedServer(quick(b"id: 1\ndata: a\n\n"), GONE) as server:
        received(server, contact="me@example.org")
    assert len(server.user_agents) == 2
    assert all(re.fullmatch(r"tidemark \(me@example.org\) httpx/[\d.]+", each) for each in server.user_agents)


def test_contact_is_named_when_it_is_refused() -> None:
    with (
        ScriptedServer(Answer(status=403)) as server,
        pytest.raises(ServiceUnreachable, match="answers 403") as raised,
    ):
        received(server, contact="https://example.org/me")
    assert "https://example.org/me" in raised.value.remedy


def test_refused_position_is_distinguished_when_an_address_could_be_wrong_too() -> None:
    refusing = Answer([b'{"status":400,"detail":"too old\x1b[31m"}'], status=400, headers={})
    with ScriptedServer(refusing) as server:
        with pytest.raises(PositionRefused, match=r"400 Bad Request: .*too old"):
            received(server, "17")
        with pytest.raises(ServiceUnreachable, match=r"answers 400 Bad Request: .*too old") as raised:
            received(server)
    assert "correct the URL" in raised.value.remedy
    assert "\x1b" not in str(raised.value)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_stream_ends_when_an_event_has_no_end(newline: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT_CHARACTERS", 10_000)
    many = [b"id: 1" + newline + b"data: a" + newline + newline] * 2000
    endless = [b"data: " + b"x" * 500 + newline] * 100
    server = ScriptedServer(Answer([*many, *endless], end="hold"))
    with server, pytest.raises(ServiceUnreachable, match="more than 10000 characters"):
        received(server)


def test_secrets_are_left_out_when_an_address_is_shown() -> None:
    assert public_address("https://me:secret@example.org/stream?token=secret#x") == "https://example.org/stream"
