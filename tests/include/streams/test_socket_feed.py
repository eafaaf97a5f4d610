"""A server of lines that vanishes, without services: when it is noticed, and what is told."""

from __future__ import annotations

import logging
import socket
from contextlib import nullcontext
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from include import lake
from include.errors import ServiceUnreachable, TidemarkError
from include.ledger.streams import lines
from include.pipelines.spec.lines import SocketLines
from include.services.process import free_port
from include.streams.line_feeds import SocketFeed
from include.streams.received_lines import OpenConnection

LEASE: Any = SimpleNamespace(pipeline="isp_hits_socket")


@pytest.fixture(autouse=True)
def _no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = lines.Connection(1, "socket://127.0.0.1:1", datetime(2026, 11, 20, tzinfo=UTC))
    monkeypatch.setattr(lines, "left_open", lambda _: [])
    monkeypatch.setattr(lines, "open_connection", lambda *_: opened)
    monkeypatch.setattr(lines, "close_connection", lambda *_: None)


def connection() -> socket.socket:
    """A connection that the server closes at once."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        client = socket.socket()
        client.connect(listener.getsockname())
        listener.accept()[0].close()
    return client


def test_vanished_server_is_noticed_after_a_minute_when_it_says_nothing() -> None:
    with connection() as connected:
        OpenConnection(connected, "socket://127.0.0.1:1", LEASE)
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count = (
            connected.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
    assert idle + interval * count <= 60


def test_each_outage_is_told_once_when_the_server_cannot_be_reached_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    feed = SocketFeed(SocketLines("127.0.0.1", 1), LEASE, until_end=False)
    monkeypatch.setattr(feed.stopping, "wait", lambda _: feed.stopping.is_set())
    refused = ConnectionRefusedError("Connection refused")
    answers: list[Any] = [connection(), refused, refused, connection(), refused, connection()]

    def connect(*_: object, **__: object) -> socket.socket:
        answer = answers.pop(0)
        if not answers:
            feed.stopping.set()
        if isinstance(answer, OSError):
            raise answer
        found: socket.socket = answer
        return found

    monkeypatch.setattr(socket, "create_connection", connect)
    with caplog.at_level(logging.WARNING, "tidemark"):
        feed.feed()
    told = "socket://127.0.0.1:1 cannot be reached, what it sends meanwhile is lost; trying again: Connection refused"
    assert [each.getMessage() for each in caplog.records] == [told, told]


class Ending:
    """A connection that brings one content, then ends by an error, or is closed."""

    def __init__(self, content: bytes, error: OSError | None) -> None:
        self._answers: list[Any] = [*filter(None, [content]), error or b""]

    def recv(self, _: int) -> bytes:
        answer = self._answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        found: bytes = answer
        return found

    def __getattr__(self, name: str) -> Any:
        return MagicMock()

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("content", "error", "told"),
    [
        (b"", None, ""),
        (b"cut", None, "closed by the other side: 0 lines were received, 3 bytes of an unfinished line are lost"),
        (b"", OSError("reset by peer"), "broken: reset by peer: 0 lines were received, 0 bytes of"),
    ],
)
@pytest.mark.parametrize("until_end", [True, False])
def test_end_of_a_connection_is_told_when_something_may_be_lost(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
    error: OSError | None,
    told: str,
    until_end: bool,
) -> None:
    """A connection that was broken has not caught up."""
    feed = SocketFeed(SocketLines("127.0.0.1", 1), LEASE, until_end=until_end)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: Ending(content, error))
    monkeypatch.setattr(lines, "close_connection", lambda *_: None if until_end else feed.stopping.set())
    with (
        caplog.at_level(logging.WARNING, "tidemark"),
        pytest.raises(TidemarkError) if until_end and error else nullcontext(),
    ):
        feed.feed()
    assert [told in each.getMessage() for each in caplog.records] == ([True] if told else [])


def test_lines_that_cannot_be_written_are_told_when_the_store_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise ServiceUnreachable("the lake does not answer")

    monkeypatch.setattr(lake, "write_bytes", refuse)
    feed = SocketFeed(SocketLines("127.0.0.1", 1), LEASE, until_end=True)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: Ending(b"one\ntwo\ncut", None))
    with caplog.at_level(logging.WARNING, "tidemark"), pytest.raises(ServiceUnreachable):
        feed.feed()
    (told,) = caplog.records
    assert "the last 2 lines that it brought could not be written or noted" in told.getMessage()
