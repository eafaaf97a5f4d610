"""The page of a live view over what its topic has told, also while no broker answers; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import httpx
import pytest

from include.monitor.streams.view_watch import view_watch
from include.pipelines import load_pipeline
from include.times import format_time
from tests.conftest import Home, wait_for
from tests.support.live_view import BEGIN, HOSTILE, PLACE, client_of_pages, message

pytestmark = pytest.mark.services


@pytest.fixture
def client(postgres: Home) -> Iterator[httpx.Client]:
    with client_of_pages() as client:
        yield client


def test_windows_that_were_read_stay_with_the_reason_when_the_broker_is_away(client: httpx.Client) -> None:
    def error() -> str:
        return str(client.get(PLACE, params={"format": "json"}).json()["error"])

    wait_for("the reason", lambda: "kafka was never started" in error(), 60)
    pipeline = load_pipeline("isp_hits")
    followed = view_watch().follow(pipeline, pipeline.views[0])
    for each in (message(BEGIN, "10001", 7), message(BEGIN, HOSTILE, 9), message(BEGIN + timedelta(minutes=5), "1", 3)):
        followed.windows.note(*each)
    asked = {"window": format_time(BEGIN)}
    first = client.get(PLACE, params={**asked, "format": "json"}).json()
    assert [(row["key"], row["value"]) for row in first["rows"]] == [([HOSTILE], "9"), (["10001"], "7")]
    page = client.get(PLACE, params=asked).text
    assert HOSTILE not in page
    assert "kafka was never started" in page
    assert f"{PLACE}/events?measure=hits&amp;window=" in page


def test_what_is_no_view_or_no_window_is_refused(client: httpx.Client) -> None:
    assert client.get("/pipelines/isp_hits/views/nothing").status_code == 404
    assert client.get(PLACE, params={"window": "yesterday"}).status_code == 422
    assert client.get("/pipelines/isp_hits").text.count(f'href="{PLACE}"') == 1
