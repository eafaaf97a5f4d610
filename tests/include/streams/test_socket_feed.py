"""A server of lines that vanishes, without services: when it is noticed, and what is told."""

from __future__ import annotations

import logging
import socket
from typing import Any

import pytest

from include.ledger.streams import lines
from include.pipelines.spec.lines import SocketLines
from include.services.process import free_port
from include.streams.line_feeds import SocketFeed, _Connection

LEASE: Any = None


@pytest.fixture(autouse=True)
def _no_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "open_connection", lambda *_: 1)
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
        _Connection(connected, "socket://127.0.0.1:1", LEASE)
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
