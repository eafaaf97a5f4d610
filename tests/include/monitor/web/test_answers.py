"""The page of a view's answers: over real tables of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from include.monitor.live_page import serving
from include.monitor.web.alone import app_alone
from include.pipelines import load_pipeline
from include.serving.live_rows import merge
from include.serving.shape import shape_of
from tests.conftest import Home

pytestmark = pytest.mark.services

TOKEN = "t" * 43
START = datetime(2026, 11, 20, 5, 2, tzinfo=UTC)
HOSTILE = "<script>document.title='owned'</script>"
PAGE = "/pipelines/isp_hits/views/by_zip/answer"


@pytest.fixture(scope="module")
def client(postgres: Home) -> Iterator[httpx.Client]:
    with (
        serving(app_alone(TOKEN, "eve@host"), 0) as address,
        httpx.Client(base_url=address.rstrip("/"), timeout=60, follow_redirects=True) as opened,
    ):
        opened.get("/", params={"token": TOKEN})
        assert "does not serve this view" in opened.get(PAGE).text
        pipeline = load_pipeline("isp_hits")
        old, length = START - timedelta(days=9), timedelta(minutes=10)
        rows = [("94103", START, START + length, 5), (HOSTILE, START, START + length, 7), ("1", old, old + length, 1)]
        merge(shape_of(pipeline, pipeline.views[0]), rows, 3)
        yield opened


def test_newest_windows_have_their_state_and_escaped_keys_when_a_page_is_opened(client: httpx.Client) -> None:
    text = client.get(PAGE).text
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text
    told = client.get(PAGE, params={"format": "json"}).json()
    assert [(row["key"], row["values"], row["state"], row["version"]) for row in told["rows"]] == [
        ([HOSTILE], ["7"], "live", 3),
        (["94103"], ["5"], "live", 3),
    ]
    assert (told["proved_until"], told["proved_below"], told["name"]) == (None, "", "live.isp_hits_by_zip")


def test_all_windows_of_a_key_are_shown_when_it_is_named(client: httpx.Client) -> None:
    told = client.get(PAGE, params={"format": "json", "column": "zipcode", "key": "1"}).json()
    assert [(row["key"], row["start"]) for row in told["rows"]] == [(["1"], "2026-11-11T05:02:00Z")]
    nothing = client.get(PAGE, params={"column": "zipcode", "key": "' OR 1=1 --"})
    assert "No window has this key" in nothing.text


def test_largest_keys_are_shown_without_a_window_when_the_view_is_a_total(client: httpx.Client) -> None:
    pipeline = load_pipeline("isp_hits")
    view = next(each for each in pipeline.views if each.name == "zip_totals")
    page = PAGE.replace("by_zip", view.name)
    merge(shape_of(pipeline, view), [("94103", 5), (HOSTILE, 7), (None, 1)], 3)
    told = client.get(page, params={"format": "json"}).json()
    assert [(row["key"], row["values"], row["state"], row["start"]) for row in told["rows"]] == [
        ([HOSTILE], ["7"], "live", None),
        (["94103"], ["5"], "live", None),
        (["–"], ["1"], "live", None),
    ]
    # The same micro-batch once more, then one that changes a key.
    merge(shape_of(pipeline, view), [("94103", 99)], 3)
    merge(shape_of(pipeline, view), [("94103", 8)], 4)
    one = client.get(page, params={"format": "json", "column": "zipcode", "key": "94103"}).json()
    assert [(row["values"], row["version"]) for row in one["rows"]] == [(["8"], 4)]
    text = client.get(page).text
    assert HOSTILE not in text
    assert '<th scope="col">window</th>' not in text


def test_page_is_refused_when_it_does_not_exist(client: httpx.Client) -> None:
    assert client.get(PAGE, params={"column": "hits; DROP TABLE x", "key": "1"}).status_code == 422
    assert client.get("/pipelines/isp_hits/views/none/answer").status_code == 404
    assert "does not serve this view" in client.get("/pipelines/nest_cameras/views/hourly_counts/answer").text
