"""A stream of server-sent events that is followed for as long as it goes on: WHATWG HTML, section 9.2.

A connection that ends is opened again with `Last-Event-ID`, after a pause that doubles with every connection
that brought nothing.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import cast

import httpx
from httpx_sse import EventSource, ServerSentEvent
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from include.errors import ServiceUnreachable

FIRST_PAUSE = 1.0
"""Seconds before the first attempt to connect again, until the server says otherwise (`retry:`)."""

SHORTEST_PAUSE = 0.05
"""What a server may ask for at least, so that one that always hangs up is not asked in a tight loop."""

LONGEST_PAUSE = 60.0
"""Seconds between two attempts at most; a server's `Retry-After` may ask for more, up to `LONGEST_ASKED`."""

LONGEST_ASKED = 3600.0

SILENCE = 60.0
"""Seconds without a byte after which a connection counts as dead; services send a comment every now and then."""

MOST_CHARACTERS = 16 * 1024 * 1024
"""The longest event that is read, so that a stream without an end of line cannot fill the memory."""

_TEMPORARY = frozenset({408, 425, 429})
_BLANK_LINE = re.compile(r"(?>\r\n|\n|\r){2}")
_SENDABLE = re.compile(r"[^\x00-\x20\x7f]+(?:[ \t]+[^\x00-\x20\x7f]+)*")
"""Ids that a header can carry. Any other does not replace the one before: rather events twice than not at all."""
_HEADERS = {
    "Accept": "text/event-stream",
    "Cache-Control": "no-store",
    "User-Agent": "tidemark (follows event streams into Kafka)",
}


@dataclass(frozen=True)
class Event:
    """One event of the stream."""

    id: str
    """The id to resume after; empty while the stream has sent none."""
    type: str
    data: str


@dataclass(frozen=True)
class EventFacts:
    """What is known of an event from its data; None where the data does not say."""

    identity: str | None = None
    """Tells one event from all others."""
    key: bytes | None = None
    """Key of its Kafka record."""
    moment: datetime | None = None
    """When it happened."""
    is_canary: bool = False
    """Whether the service sent it to itself, to see that it works."""


class _Disconnected(Exception):
    """The connection ended or did not come up; the next one may do better."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        self.after = after
        super().__init__(reason)


class _Ended(Exception):
    """The server wants no more connections."""


class EventStream:
    """Events of a URL, in order, over as many connections as it takes."""

    def __init__(self, url: str, last_event_id: str, tell: Callable[[str], None], *, silence: float = SILENCE) -> None:
        self.connections = 0
        self.address = shown_address(url)
        self._url = url
        self._last_event_id = last_event_id
        self._tell = tell
        self._silence = silence
        self._first_pause = FIRST_PAUSE
        self._fruitless = 0

    async def follow(self, receive: Callable[[Event], Awaitable[None]]) -> None:
        """Give every complete event to `receive`, until the server says that the stream is over (204).

        An event that was cut off is not given; the next connection brings it whole. Raises
        ServiceUnreachable for an answer that asking again does not change: another content type, a status
        that is neither 2xx nor 5xx, 408, 425 or 429, an event without an end.
        """
        client = httpx.AsyncClient(
            timeout=httpx.Timeout(15.0, read=self._silence), headers=_HEADERS, follow_redirects=True
        )
        connecting = AsyncRetrying(
            retry=retry_if_exception_type(_Disconnected), wait=self._pause, before_sleep=self._tell_pause
        )
        async with client:
            try:
                await connecting(self._connect, client, receive)
            except _Ended:
                self._tell(f"{self.address} has no more events (204)")

    async def _connect(self, client: httpx.AsyncClient, receive: Callable[[Event], Awaitable[None]]) -> None:
        self._fruitless += 1
        # As bytes: an id may hold what a header's text may not.
        headers = {b"Last-Event-ID": self._last_event_id.encode()} if self._last_event_id else {}
        try:
            async with client.stream("GET", self._url, headers=headers) as response:
                self._check(response)
                self.connections += 1
                async for sent in self._events(response):
                    if sent.retry is not None:
                        self._first_pause = min(max(sent.retry / 1000, 0.0), LONGEST_PAUSE)
                    await self._give(sent, receive)
        except httpx.InvalidURL as error:
            raise ServiceUnreachable(f"{self.address}: {error}", remedy="correct the URL") from error
        except httpx.UnsupportedProtocol as error:
            raise ServiceUnreachable(f"{self.address}: {error}", remedy="begin the URL with https://") from error
        except httpx.HTTPError as error:
            raise _Disconnected(f"{type(error).__name__} {error}".strip()) from error
        raise _Disconnected("the server closed the connection")

    async def _give(self, sent: ServerSentEvent, receive: Callable[[Event], Awaitable[None]]) -> None:
        # The reader hands over an event at every blank line once an id was seen, also behind a comment.
        resumable = sent.id if _SENDABLE.fullmatch(sent.id) else self._last_event_id
        if not sent.data and resumable == self._last_event_id:
            return
        await receive(Event(resumable, sent.event, sent.data))
        self._last_event_id = resumable
        self._fruitless = 0

    def _events(self, response: httpx.Response) -> AsyncIterator[ServerSentEvent]:
        # UTF-8 whatever the header says, without a byte order mark, as the standard asks.
        response.encoding = "utf-8-sig"
        return EventSource(cast(httpx.Response, _Bounded(response, self.address))).aiter_sse()

    def _check(self, response: httpx.Response) -> None:
        """Raise unless events follow."""
        status, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if status == 204:
            raise _Ended
        if status in _TEMPORARY or status >= 500:
            raise _Disconnected(f"answer {status} {response.reason_phrase}", _retry_after(response))
        if not response.is_success:
            raise ServiceUnreachable(
                f"{self.address} answers {status} {response.reason_phrase}", remedy="correct the URL or ask its owner"
            )
        if kind != "text/event-stream":
            raise ServiceUnreachable(
                f"{self.address} answers with {kind or 'no content type'}, not with text/event-stream",
                remedy="name the URL of an event stream",
            )

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = error.after if isinstance(error, _Disconnected) else 0.0
        # The first failure waits what the server asked for; each further one twice as long, scattered so that
        # the clients of a service that comes back do not all come at once.
        doubled = max(self._first_pause, SHORTEST_PAUSE) * 2.0 ** min(max(self._fruitless - 1, 0), 30)
        scattered = doubled if self._fruitless < 2 else doubled * random.uniform(0.75, 1.0)
        return max(min(scattered, LONGEST_PAUSE), min(asked, LONGEST_ASKED))

    def _tell_pause(self, state: RetryCallState) -> None:
        reason = state.outcome.exception() if state.outcome else ""
        pause = state.next_action.sleep if state.next_action else 0.0
        self._tell(f"{self.address}: {reason}; connecting again in {pause:.1f} s")


class _Bounded:
    """A response whose text ends with an error where an event is longer than `MOST_CHARACTERS`."""

    def __init__(self, response: httpx.Response, address: str) -> None:
        self.headers = response.headers
        self._response = response
        self._address = address

    async def aiter_text(self) -> AsyncIterator[str]:
        """The decoded text as it comes in."""
        length, last = 0, ""
        async for text in self._response.aiter_text():
            ends = [found.end() for found in _BLANK_LINE.finditer(last + text)]
            length = len(last + text) - ends[-1] if ends else length + len(text)
            if length > MOST_CHARACTERS:
                raise ServiceUnreachable(
                    f"{self._address} sends an event of more than {MOST_CHARACTERS} characters",
                    remedy="tell its owner; it cannot be followed past this event",
                )
            last = text[-1:]
            yield text
            await asyncio.sleep(0)


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the answer asks to wait for, 0 when it does not."""
    value = response.headers.get("retry-after", "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def shown_address(url: str) -> str:
    """The URL without user, password and query: fit for messages and files."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return "the stream's URL"
    return str(parts.copy_with(userinfo=b"", query=None, fragment=None))
