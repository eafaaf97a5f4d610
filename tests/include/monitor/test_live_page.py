"""The live page: what it serves and to whom, and in a browser that it follows its file and shows texts as texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from include.errors import UsageError
from include.monitor.live_page import POLICY, live_app, serving
from tests.conftest import wait_for

HOSTILE = "<img src=x onerror=\"document.title='owned'\">\x1b[31m\u202e"


def found(*rows: list[Any], total: int = 12) -> dict[str, Any]:
    window = {
        "from": "2026-11-20T05:00:00Z",
        "to": "2026-11-20T05:10:00Z",
        "total": total,
        "keys": 2,
        "rows": list(rows),
    }
    return {
        "pipeline": "wiki_changes", "title": "Top", "by": ["user", "bot"], "measure": "count", "late": 0,
        "updated_at": "2026-11-20T05:11:00Z", "watermark": None, "since": "2026-11-20T05:00:00Z", "windows": [window],
    }  # fmt: skip


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return tmp_path / "top.json"


@pytest.fixture
def address(result: Path) -> Iterator[str]:
    with serving(live_app(result, "Top <10>", "wiki_changes"), 0) as served:
        yield served


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60) as client:
        yield client


def test_page_loads_only_its_own_files_when_it_is_served(client: httpx.Client) -> None:
    page = client.get("/")
    assert page.headers["content-security-policy"] == POLICY
    assert "'unsafe-inline'" not in POLICY
    assert "Top &lt;10&gt;" in page.text
    for name, kind in (("live_top.css", "text/css"), ("live_top.js", "text/javascript")):
        asset = client.get(name)
        assert asset.headers["content-type"].startswith(kind)
        assert asset.headers["x-content-type-options"] == "nosniff"
        assert "innerHTML" not in asset.text


def test_counts_are_those_of_the_file_with_safe_texts_when_it_is_read(client: httpx.Client, result: Path) -> None:
    assert client.get("top.json").json() == {}
    result.write_text(json.dumps(found([HOSTILE, True, 9], ["x" * 5000, False, 3])))
    rows = client.get("top.json").json()["windows"][0]["rows"]
    assert rows[0] == ["<img src=x onerror=\"document.title='owned'\">[31m", True, 9]
    assert len(rows[1][0]) < 300


def test_whole_number_is_a_text_when_javascript_would_round_it(client: httpx.Client, result: Path) -> None:
    exact, rounded = 2**53 - 1, 2**53 + 1
    result.write_text(json.dumps(found([rounded, True, exact], [-rounded, False, rounded], total=rounded)))
    (window,) = client.get("top.json").json()["windows"]
    assert window["rows"] == [[str(rounded), True, exact], [str(-rounded), False, str(rounded)]]
    assert window["total"] == str(rounded)


@pytest.mark.parametrize("path", ["interval.html", "..%2flive_page.py", "docs", "openapi.json", "live_top.html"])
def test_path_is_not_served_when_it_is_unknown(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 404


def test_page_is_refused_when_this_machine_is_called_by_another_name(client: httpx.Client) -> None:
    assert client.get("/", headers={"Host": "rebound.example"}).status_code == 400


def test_port_is_named_when_it_is_taken(address: str, result: Path) -> None:
    port = httpx.URL(address).port
    with pytest.raises(UsageError, match=f"port {port} "), serving(live_app(result, "t", "p"), port or 0):
        pytest.fail("it listens twice")


@pytest.mark.browser
def test_chart_and_table_follow_the_file_when_it_changes(browser: Any, address: str, result: Path) -> None:
    def texts(selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return list(browser.execute_script(script, selector))

    result.write_text(json.dumps(found(["Ada", False, 8], [HOSTILE, True, 4])))
    browser.get(address)
    wait_for("the page", lambda: texts("#rows tr") != [])
    assert texts("#columns th") == ["user", "bot", "count"]
    assert texts("#rows tr:nth-child(1) td") == ["Ada", "", "8"]
    assert texts("#rows tr:nth-child(2) td")[0].startswith("<img src=x")
    assert texts("#rows tr:nth-child(2) td")[1:] == ["yes", "4"]
    widths = browser.execute_script(
        "return [...document.querySelectorAll('#chart rect')].map((e) => e.width.baseVal.value)"
    )
    assert widths[0] == pytest.approx(2 * widths[1])
    assert browser.execute_script("return document.images.length") == 0
    assert texts("#window")[0].endswith("05:10:00Z: 12 in all, 2 different")
    result.write_text(json.dumps(found(["Bo", False, 30], total=30) | {"since": "2026-11-20T05:05:00Z"}))
    wait_for("the page", lambda: texts("#rows tr:nth-child(1) td") == ["Bo", "", "30"])
    assert len(texts("#rows tr")) == 1
    assert "05:10:00Z, read from 2026-11-20T05:05:00Z on: 30 in all" in texts("#window")[0]
    assert "owned" not in browser.title
    assert [
        entry
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
    ] == []
