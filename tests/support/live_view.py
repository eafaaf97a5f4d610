"""A live view that tests look at: its page, the messages of its topic, and a client of the pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import httpx

from include.monitor.live_page import serving
from include.monitor.web.alone import app_alone
from include.times import format_time
from tests.conftest import last_hours

PLACE = "/pipelines/isp_hits/views/by_zip"
BEGIN = last_hours(3) + timedelta(minutes=2)
HOSTILE = "<script>document.title='owned'</script>"

_TOKEN = "t" * 43


def message(start: datetime, zipcode: str, hits: int, version: int = 1) -> tuple[bytes, bytes]:
    """The view's value of a window and key, as its topic has it."""
    window = {"end": format_time(start + timedelta(minutes=10)), "start": format_time(start)}
    key = json.dumps({"window": window, "zipcode": zipcode}).encode()
    return key, json.dumps({"hits": hits, "version": version}).encode()


@contextmanager
def client_of_pages() -> Iterator[httpx.Client]:
    """A client of the pages of this process's settings, while they are served."""
    sent = {"Authorization": f"Bearer {_TOKEN}"}
    with (
        serving(app_alone(_TOKEN, "eve@host"), 0) as address,
        httpx.Client(base_url=address, headers=sent, timeout=60) as client,
    ):
        yield client
