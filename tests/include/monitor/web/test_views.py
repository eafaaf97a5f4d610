"""The page of a live view over what its topic has told, also while no broker answers; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import httpx
import pytest

from include.ledger.streams import progress
from include.ledger.streams.progress import QueryProgress
from include.ledger.totals import note_keys
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


def test_window_is_open_until_the_watermark_has_passed_its_end(client: httpx.Client) -> None:
    pipeline = load_pipeline("isp_hits")
    views = {view.name: view for view in pipeline.views}
    day = BEGIN.replace(hour=0, minute=0)
    of_day = f'"window": {{"start": "{format_time(day)}", "end": "{format_time(day + timedelta(days=1))}"}}'
    view_watch().follow(pipeline, views["by_zip"]).windows.note(*message(BEGIN, "10001", 7))
    view_watch().follow(pipeline, views["by_isp"]).windows.note(
        f'{{"isp": "n", {of_day}}}'.encode(), b'{"hits": 7, "version": 1}'
    )

    def is_open(name: str = "by_zip", begin: datetime = BEGIN) -> bool:
        asked = {"window": format_time(begin)}
        page = client.get(PLACE.replace("by_zip", name), params=asked).text
        told = client.get(PLACE.replace("by_zip", name), params={**asked, "format": "json"}).json()["is_open"]
        assert (", still open</p>" in page) == told
        return bool(told)

    # Over for hours, and its stream, which has told nothing yet, waits for late rows for one.
    assert not is_open()
    reported = QueryProgress("by_zip", 0, BEGIN, 1, 1.0, 1.0, 1.0, {}, BEGIN + timedelta(minutes=9))
    progress.note(pipeline.name, [reported])
    assert is_open()
    progress.note(pipeline.name, [replace(reported, batch_id=1, watermark=BEGIN + timedelta(minutes=10))])
    assert not is_open()
    # In complete mode no row is too late.
    assert is_open("by_isp", day)


def test_request_is_refused_when_view_or_window_does_not_exist(client: httpx.Client) -> None:
    assert client.get("/pipelines/isp_hits/views/nothing").status_code == 404
    assert client.get(PLACE, params={"window": "yesterday"}).status_code == 422
    assert client.get("/pipelines/isp_hits").text.count(f'href="{PLACE}"') == 1


def test_keys_are_shown_against_their_limit_when_the_view_is_a_total(client: httpx.Client) -> None:
    pipeline = load_pipeline("isp_hits")
    view = next(each for each in pipeline.views if each.name == "isp_totals")
    place = PLACE.replace("by_zip", view.name)
    assert "its keys are not counted yet" in client.get(place).text
    view_watch().follow(pipeline, view).windows.note(b'{"isp": "Northwind Cable"}', b'{"hits": 7, "version": 1}')
    note_keys(pipeline.name, view.name, view.max_keys + 1, 1)
    told = client.get(place, params={"format": "json"}).json()
    assert [(row["key"], row["value"]) for row in told["rows"]] == [(["Northwind Cable"], "7")]
    assert (told["keys"], told["max_keys"], told["windows"], told["start"]) == (5001, 5000, [], None)
    page = client.get(place).text
    assert "5,001 keys, 5,000 are declared at most: raise" in page
    assert "hits per window" not in page
    metrics = client.get("/metrics").text
    assert 'tidemark_view_keys{pipeline="isp_hits",view="isp_totals"} 5001.0' in metrics
    assert 'tidemark_view_keys_limit{pipeline="isp_hits",view="isp_totals"} 5000.0' in metrics
