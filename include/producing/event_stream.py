"""A client of server-sent events (WHATWG HTML, section 9.2) that reconnects until the server ends the stream.

Each new connection asks for the events after `Last-Event-ID`. The pause before it doubles with every connection
that brought no event.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import cast

import httpx
from httpx_sse import EventSource, ServerSentEvent
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from include.errors import ServiceUnreachable, one_line
from include.times import format_time

FIRST_PAUSE = 1.0
"""Seconds before the first reconnection, unless the server sets another time (`retry:`)."""

SHORTEST_PAUSE = 0.05
"""Lower bound in seconds for a server's `retry:`: a server that always hangs up must not cause a tight loop."""

LONGEST_PAUSE = 60.0
"""Upper bound in seconds for a pause between attempts."""

LONGEST_RETRY_AFTER = 3600.0
"""Upper bound in seconds for a server's `Retry-After`."""

SILENCE = 60.0
"""Seconds without a byte after which a connection counts as dead: services send comments to keep it alive."""

MAX_EVENT_CHARACTERS = 16 * 1024 * 1024
"""Longest event that is read: a stream without line ends must not fill the memory."""

_TEMPORARY = frozenset({408, 425, 429})
_REFUSING = frozenset({400, 410, 416})
"""Statuses by which a service says that it does not have the events after a position."""
_BLANK_LINE = re.compile(r"(?>\r\n|\n|\r){2}")
_SENDABLE = re.compile(r"[^\x00-\x20\x7f]+(?:[ \t]+[^\x00-\x20\x7f]+)*")
"""Ids that fit into a header. Any other id does not replace the one before: events may come twice, but none is lost."""
_HEADERS = {
    "Accept": "text/event-stream",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True)
class Event:
    """One event of the stream."""

    id: str
    """Id after which to resume; empty until the stream has sent one."""
    type: str
    data: str


@dataclass(frozen=True)
class EventFacts:
    """What an event's data says about the event; None where it does not say."""

    identity: str | None = None
    """Unique id of the event."""
    key: bytes | None = None
    """Key of its Kafka record."""
    moment: datetime | None = None
    """Time of the event."""
    is_canary: bool = False
    """Whether the service sent the event only to test itself."""


class PositionRefused(Exception):
    """The service refuses the position that it was asked for: after the last event, or the `since` of the URL."""


class _Disconnected(Exception):
    """The connection ended or failed; another attempt may succeed."""

    def __init__(self, reason: str, after: float = 0.0) -> None:
        self.after = after
        super().__init__(reason)


class _Ended(Exception):
    """The server ended the stream (204)."""


class EventStream:
    """The events of a URL in order, over any number of connections."""

    def __init__(
        self,
        url: str,
        last_event_id: str,
        tell: Callable[[str], None],
        *,
        contact: str = "",
        silence: float = SILENCE,
    ) -> None:
        self.connections = 0
        self._contact = contact
        self.address = public_address(url)
        self._url = url
        self._last_event_id = last_event_id
        self._tell = tell
        self._silence = silence
        self._first_pause = FIRST_PAUSE
        self._connections_without_events = 0

    async def follow(self, receive: Callable[[Event], Awaitable[None]]) -> None:
        """Pass every complete event to `receive` until the server ends the stream (204).

        An event that was cut off is not passed on; the next connection brings it whole. Raise ServiceUnreachable
        for an answer that a retry would not change: another content type, a status other than 2xx, 5xx, 408, 425
        or 429, or an event that is too long. Raise PositionRefused when the service refuses the position.
        """
        headers = {**_HEADERS, "User-Agent": user_agent(self._contact)}
        client = httpx.AsyncClient(
            timeout=httpx.Timeout(15.0, read=self._silence), headers=headers, follow_redirects=True
        )
        connecting = AsyncRetrying(
            retry=retry_if_exception_type(_Disconnected), wait=self._pause, before_sleep=self._tell_pause
        )
        async with client:
            try:
                await connecting(self._connect, client, receive)
            except _Ended:
                self._tell(f"{self.address} has no more events (204)")

    def begin_anew(self, since: datetime | None) -> None:
        """Forget the position: the next connection asks for the events since a time, or from now on."""
        url = httpx.URL(self._url).copy_remove_param("since")
        self._url = str(url if since is None else url.copy_set_param("since", format_time(since)))
        self._last_event_id = ""

    @property
    def since(self) -> str | None:
        """Return the time that the URL asks for; None when it names no time."""
        return httpx.URL(self._url).params.get("since")

    async def _connect(self, client: httpx.AsyncClient, receive: Callable[[Event], Awaitable[None]]) -> None:
        self._connections_without_events += 1
        # As bytes: httpx encodes header text as ASCII, and an id may hold other characters.
        headers = {b"Last-Event-ID": self._last_event_id.encode()} if self._last_event_id else {}
        try:
            async with client.stream("GET", self._url, headers=headers) as response:
                await self._check(response)
                self.connections += 1
                async for sent in self._events(response):
                    if sent.retry is not None:
                        # Before the division: a number of any length may be sent.
                        self._first_pause = max(min(sent.retry, LONGEST_PAUSE * 1000) / 1000, 0.0)
                    await self._pass_on(sent, receive)
        except httpx.InvalidURL as error:
            raise ServiceUnreachable(f"{self.address}: {error}", remedy="correct the URL") from error
        except httpx.UnsupportedProtocol as error:
            raise ServiceUnreachable(f"{self.address}: {error}", remedy="begin the URL with https://") from error
        except httpx.HTTPError as error:
            raise _Disconnected(f"{type(error).__name__} {error}".strip()) from error
        raise _Disconnected("the server closed the connection")

    async def _pass_on(self, sent: ServerSentEvent, receive: Callable[[Event], Awaitable[None]]) -> None:
        # Once it has seen an id, httpx_sse yields an event at every blank line, even after a mere comment.
        resumable = sent.id if _SENDABLE.fullmatch(sent.id) else self._last_event_id
        if not sent.data and resumable == self._last_event_id:
            return
        await receive(Event(resumable, sent.event, sent.data))
        self._last_event_id = resumable
        self._connections_without_events = 0

    def _events(self, response: httpx.Response) -> AsyncIterator[ServerSentEvent]:
        # The standard asks for UTF-8 without a byte order mark, whatever the header says.
        response.encoding = "utf-8-sig"
        return EventSource(cast(httpx.Response, _Bounded(response, self.address))).aiter_sse()

    async def _check(self, response: httpx.Response) -> None:
        """Raise an error unless the response is an event stream."""
        status, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if status == 204:
            raise _Ended
        if status in _TEMPORARY or status >= 500:
            raise _Disconnected(f"answer {status} {response.reason_phrase}", _retry_after(response))
        if not response.is_success:
            answer = f"{status} {response.reason_phrase}{await _said(response)}"
            if status in _REFUSING and (self._last_event_id or self.since):
                raise PositionRefused(answer)
            raise ServiceUnreachable(f"{self.address} answers {answer}", remedy=self._remedy(status))
        if kind != "text/event-stream":
            raise ServiceUnreachable(
                f"{self.address} answers with {kind or 'no content type'}, not with text/event-stream",
                remedy="name the URL of an event stream",
            )

    def _remedy(self, status: int) -> str:
        if status != 403:
            return "correct the URL or ask its owner"
        if self._contact:
            return f"your contact was given as {self._contact}; correct that, or ask its owner"
        return (
            "services like Wikimedia's require a contact: "
            "--contact with your e-mail address or https://… page, or TIDEMARK_CONTACT"
        )

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        retry_after = error.after if isinstance(error, _Disconnected) else 0.0
        # Jitter from the second failure on: clients must not all return to a restarted service at once.
        failures = self._connections_without_events
        backoff = max(self._first_pause, SHORTEST_PAUSE) * 2.0 ** min(max(failures - 1, 0), 30)
        pause = backoff if failures < 2 else backoff * random.uniform(0.75, 1.0)
        return max(min(pause, LONGEST_PAUSE), min(retry_after, LONGEST_RETRY_AFTER))

    def _tell_pause(self, state: RetryCallState) -> None:
        reason = state.outcome.exception() if state.outcome else ""
        pause = state.next_action.sleep if state.next_action else 0.0
        self._tell(f"{self.address}: {reason}; connecting again in {pause:.1f} s")


class _Bounded:
    """A response that raises ServiceUnreachable when an event is longer than `MAX_EVENT_CHARACTERS`."""

    def __init__(self, response: httpx.Response, address: str) -> None:
        # httpx_sse takes only this spelling; `_check` has taken others.
        self.headers = {"content-type": "text/event-stream"}
        self._response = response
        self._address = address

    async def aiter_text(self) -> AsyncIterator[str]:
        """Yield the decoded text as it arrives."""
        length, last = 0, ""
        async for text in self._response.aiter_text():
            ends = [blank_line.end() for blank_line in _BLANK_LINE.finditer(last + text)]
            length = len(last + text) - ends[-1] if ends else length + len(text)
            if length > MAX_EVENT_CHARACTERS:
                raise ServiceUnreachable(
                    f"{self._address} sends an event of more than {MAX_EVENT_CHARACTERS} characters",
                    remedy="report it to its owner; it cannot be followed past this event",
                )
            last = text[-1:]
            yield text
            await asyncio.sleep(0)


def _retry_after(response: httpx.Response) -> float:
    """Return the seconds of the `Retry-After` header; 0 without one."""
    value = response.headers.get("retry-after", "").strip()
    if value.isdecimal() and len(value) < 10:
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


async def _said(response: httpx.Response) -> str:
    """Return a colon and the beginning of the answer's text; empty when it has none."""
    # Without the text, the status alone is reported.
    with suppress(httpx.HTTPError):
        async for text in response.aiter_text():
            if text.strip():
                return f": {one_line(text, 200)}"
    return ""


def user_agent(contact: str) -> str:
    """Return the header that tells the service who reads it, in the form that Wikimedia's policy asks for."""
    return f"tidemark ({contact or 'follows event streams into Kafka'}) httpx/{httpx.__version__}"


def public_address(url: str) -> str:
    """Return the URL without user, password, query and fragment, safe for messages and files."""
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL:
        return "the stream's URL"
    return str(parts.copy_with(userinfo=b"", query=None, fragment=None))
