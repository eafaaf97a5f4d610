"""A real server of server-sent events on loopback, which can misbehave in every way that a network does."""

from __future__ import annotations

import json
import random
import re
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from include.producing.messages import wiki_changes
from include.services.process import free_port

End = Literal["close", "reset", "hold"]


@dataclass(frozen=True)
class Answer:
    """One answer: a status with headers, pieces of body as they go out, and how it ends.

    `reset` cuts the connection in the middle, `hold` keeps it open and silent until the server stops.
    """

    pieces: Iterable[bytes] = ()
    end: End = "close"
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream; charset=utf-8"})


class EventServer(ABC):
    """Serves at `url` until closed; `last_event_ids` and `user_agents` record the requests."""

    def __init__(self) -> None:
        self.last_event_ids: list[str | None] = []
        self.user_agents: list[str] = []
        self.closing = threading.Event()
        self.lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked = self.headers.get("Last-Event-ID")
                with outer.lock:
                    number = len(outer.last_event_ids)
                    outer.last_event_ids.append(asked)
                    outer.user_agents.append(self.headers.get("User-Agent", ""))
                with suppress(ConnectionError, TimeoutError):
                    outer.serve(self, number, asked)
                self.close_connection = True

            def log_message(self, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", free_port()), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v2/stream/recentchange"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    @abstractmethod
    def serve(self, request: BaseHTTPRequestHandler, number: int, last_event_id: str | None) -> None:
        """Answer the request of that number."""

    def answer(self, request: BaseHTTPRequestHandler, answer: Answer, pieces: Iterator[bytes] | None = None) -> None:
        request.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request.send_response(answer.status)
        for name, value in answer.headers.items():
            request.send_header(name, value)
        has_body = answer.status == 200 or bool(answer.pieces)
        request.send_header(*(("Transfer-Encoding", "chunked") if has_body else ("Content-Length", "0")))
        request.end_headers()
        if not has_body:
            return
        for piece in pieces if pieces is not None else answer.pieces:
            request.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            request.wfile.flush()
        if answer.end == "hold":
            self.closing.wait(60)
        elif answer.end == "reset":
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.connection.close()
        else:
            request.wfile.write(b"0\r\n\r\n")


class ScriptedServer(EventServer):
    """Sends the answers in turn, the last one for ever."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = answers
        super().__init__()

    def serve(self, request: BaseHTTPRequestHandler, number: int, last_event_id: str | None) -> None:
        self.answer(request, self._answers[min(number, len(self._answers) - 1)])


class ChangeServer(EventServer):
    """A log of changes with the ids of Wikimedia's service, resumed after `Last-Event-ID`, over a bad network.

    Each connection ends in the middle of an event after about `per_connection` of them, pieces are of any
    length, some events come twice, and comments, empty events and other types are in between; one answer in
    five is a 503. After the last event the connection is held.
    """

    def __init__(self, changes: Sequence[dict[str, Any]], *, seed: int = 1, per_connection: int = 400) -> None:
        self.changes = changes
        self.sent = 0
        self._rng = random.Random(seed)
        self._per_connection = per_connection
        super().__init__()

    @staticmethod
    def event_id(number: int) -> str:
        topic = "eqiad.mediawiki.recentchange"
        return json.dumps([{"topic": topic, "partition": 0, "offset": number}], separators=(",", ":"))

    def serve(self, request: BaseHTTPRequestHandler, number: int, last_event_id: str | None) -> None:
        rng = random.Random(self._rng.random())
        if number and rng.random() < 0.2:
            self.answer(request, Answer(status=503, headers={"Retry-After": "0"}))
            return
        first = json.loads(last_event_id)[0]["offset"] + 1 if last_event_id else 0
        until = first + rng.randint(1, 2 * self._per_connection)
        whole = until >= len(self.changes)
        end: End = "hold" if whole else "reset"
        self.answer(request, Answer(end=end), self._pieces(first, min(until, len(self.changes)), rng, cut=not whole))

    def _pieces(self, first: int, until: int, rng: random.Random, *, cut: bool) -> Iterator[bytes]:
        yield b":ok\n\nretry: 20\n\n"
        for number in range(first, until):
            frame = self._frame(number, rng)
            if cut and number == until - 1:
                yield frame[: rng.randint(1, len(frame) // 2)]
                return
            at = rng.randint(0, len(frame))
            yield from (piece for piece in (frame[:at], frame[at:]) if piece)
            with self.lock:
                self.sent = max(self.sent, number + 1)
            if rng.random() < 0.03:
                yield rng.choice((b": still here\n\n", b"event: surprise\ndata: {}\n\n", b"event: empty\n\n", frame))

    def _frame(self, number: int, rng: random.Random) -> bytes:
        newline = rng.choice((b"\n", b"\r\n"))
        data = json.dumps(self.changes[number], ensure_ascii=False, indent=rng.choice((None, None, 1))).encode()
        lines = [b"event: message", b"id: " + self.event_id(number).encode()]
        lines += [b"data: " + line for line in data.split(b"\n")]
        return newline.join([*lines, b"", b""])


class GrowingServer(ChangeServer):
    """A log that grows while it is followed, over the same bad network; `add` sends to connected readers."""

    def __init__(self, *, seed: int = 1, per_connection: int = 150) -> None:
        super().__init__([], seed=seed, per_connection=per_connection)

    def add(self, changes: Sequence[dict[str, Any]]) -> None:
        """Send more changes."""
        with self.lock:
            self.changes = [*self.changes, *changes]

    def serve(self, request: BaseHTTPRequestHandler, number: int, last_event_id: str | None) -> None:
        first = json.loads(last_event_id)[0]["offset"] + 1 if last_event_id else 0
        self.answer(request, Answer(end="reset"), self._growing(first, random.Random(self._rng.random())))

    def _growing(self, first: int, rng: random.Random) -> Iterator[bytes]:
        end = first + rng.randint(1, 2 * self._per_connection)
        while not self.closing.wait(0.05):
            until = min(end, len(self.changes))
            yield from self._pieces(first, until, rng, cut=until == end)
            first = until
            if until == end:
                return


class ServiceServer(EventServer):
    """A log of changes a minute apart that answers as Wikimedia's service does.

    403 to a reader who names no contact, 400 to a position before `kept_since`, and ids that name times. Without a
    position or `since` it begins with the event `present`. At its end it holds the connection.
    """

    def __init__(self, begin: datetime, count: int) -> None:
        self.begin = begin
        self.changes = [made_up_changes(1, begin + timedelta(minutes=n), seed=n)[0] for n in range(count)]
        self.kept_since = begin
        self.present = 0
        super().__init__()

    def serve(self, request: BaseHTTPRequestHandler, number: int, last_event_id: str | None) -> None:
        if not re.search(r"\(.*(\S+@\S+|https?://\S+).*\)", self.user_agents[number]):
            text = b"Please set a user-agent and respect our robot policy https://w.wiki/4wJS. See also T400119.\n"
            self.answer(request, Answer([text], status=403, headers={"Content-Type": "text/plain"}))
            return
        since = parse_qs(urlsplit(request.path).query).get("since")
        milliseconds = self.present * 60_000
        if last_event_id:
            moment = next(each["timestamp"] for each in json.loads(last_event_id) if "timestamp" in each)
            milliseconds = moment - int(self.begin.timestamp() * 1000)
        elif since:
            milliseconds = int((datetime.fromisoformat(since[0]) - self.begin).total_seconds() * 1000)
        if self.begin + timedelta(milliseconds=milliseconds) < self.kept_since:
            told = {"status": 400, "type": "invalid_position", "detail": "the position is too old"}
            answer = Answer([json.dumps(told).encode()], status=400, headers={"Content-Type": "application/json"})
            self.answer(request, answer)
            return
        first = max(0, -(-milliseconds // 60_000))
        frames = [self._frame(number) for number in range(first, len(self.changes))]
        self.answer(request, Answer([b":ok\n\n", *frames], end="hold"))

    def moment(self, number: int) -> datetime:
        return self.begin + timedelta(minutes=number)

    def _frame(self, number: int) -> bytes:
        after = int(self.moment(number).timestamp() * 1000) + 1
        places = [
            {"topic": "eqiad.mediawiki.recentchange", "partition": 0, "timestamp": after},
            {"topic": "codfw.mediawiki.recentchange", "partition": 0, "offset": -1},
        ]
        return f"event: message\nid: {json.dumps(places)}\ndata: {json.dumps(self.changes[number])}\n\n".encode()


def made_up_changes(count: int, moment: Any, seed: int = 1) -> list[dict[str, Any]]:
    """Changes as the service sends them; none is a canary event."""
    rng = random.Random(seed)
    return [wiki_changes._change(moment, rng) for _ in range(count)]
