"""A page that updates by itself: server-sent events, each with the page's parts as the server renders them now."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from include.errors import TidemarkError

EVERY = 3.0
"""Seconds between two looks."""

LIFETIME = 20.0
"""Seconds after which a connection is ended, and opened again by the browser: the visitor's rights are then checked
again, and a server that stops does not wait for open pages."""

RETRY = 250
"""Milliseconds after which the browser opens it again."""


AGAIN = 3000
"""Milliseconds until it asks again after a failure."""


def events(request: Request, rendered: Callable[[], str]) -> StreamingResponse:
    """Return a stream of events: `page` with the HTML as a JSON string, `same` when nothing has changed.

    `rendered` may block; it runs in a thread of the pool. When it raises a TidemarkError, the last event is `failed`
    with its text, and the browser asks again later.
    """
    return StreamingResponse(_changes(request, rendered), media_type="text/event-stream")


async def _changes(request: Request, rendered: Callable[[], str]) -> AsyncIterator[str]:
    yield f"retry: {RETRY}\n\n"
    ends, before = time.monotonic() + LIFETIME, ""
    while time.monotonic() < ends and not await request.is_disconnected():
        try:
            html = await run_in_threadpool(rendered)
        except TidemarkError as error:
            yield f"retry: {AGAIN}\nevent: failed\ndata: {json.dumps(str(error))}\n\n"
            return
        yield f"event: page\ndata: {json.dumps(html)}\n\n" if html != before else "event: same\ndata:\n\n"
        before = html
        await asyncio.sleep(EVERY)
