"""A page that updates by itself, in a browser: what stays as the reader has it, connections, and what is cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, StreamingResponse
from starlette.staticfiles import StaticFiles

from include.errors import ServiceUnreachable
from include.monitor.live_page import serving
from include.monitor.web.events import events
from include.monitor.web.pages import STATIC
from tests.conftest import wait_for
from tests.support.browser import telephone

pytestmark = pytest.mark.browser


@dataclass
class Served:
    """A page and its events, without a ledger."""

    address: str = ""
    title: str = "Page"
    main: str = '<p id="words">first</p>'
    error: str = ""
    connections: int = 0

    def html(self) -> str:
        if self.error:
            raise ServiceUnreachable(self.error)
        script = '<script src="/static/live.js" defer></script>'
        head = '<!doctype html><meta name="viewport" content="width=device-width">'
        return f'{head}<title>{self.title}</title>{script}<main data-live="/events">{self.main}</main>'

    def follow(self, request: Request) -> StreamingResponse:
        answer = events(request, self.html)
        parts = answer.body_iterator

        async def counted() -> AsyncIterator[Any]:
            self.connections += 1
            try:
                async for part in parts:
                    yield part
            finally:
                self.connections -= 1

        answer.body_iterator = counted()
        return answer


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr("include.monitor.web.events.EVERY", 0.2)
    app, served = FastAPI(), Served()
    app.mount("/static", StaticFiles(directory=STATIC))
    app.add_api_route("/", lambda: HTMLResponse(served.html()))
    app.add_api_route("/events", served.follow)
    with serving(app, 0) as served.address:
        yield served


def text(browser: Any, selector: str) -> str:
    found: str = browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
    return found


def wait_until_live(browser: Any) -> None:
    wait_for("the events", lambda: "Live" in text(browser, "#connection"), 30)


@pytest.fixture
def page(browser: Any, served: Served) -> Iterator[Any]:
    browser.get(served.address)
    wait_until_live(browser)
    yield browser
    # The server waits for open connections when it ends.
    browser.get("about:blank")


def test_connection_is_closed_when_the_page_is_hidden(page: Any, served: Served) -> None:
    first = page.current_window_handle
    others = []
    try:
        # A browser opens six connections to a host at once.
        for _ in range(7):
            page.switch_to.new_window("tab")
            others.append(page.current_window_handle)
            page.get(served.address)
            wait_until_live(page)
        wait_for("one connection", lambda: served.connections == 1, 30)
        served.main = '<p id="words">second</p>'
        page.switch_to.window(first)
        wait_for("the page to go on", lambda: text(page, "#words") == "second", 30)
        wait_until_live(page)
    finally:
        for each in others:
            page.switch_to.window(each)
            page.close()
        page.switch_to.window(first)


@pytest.mark.slow
def test_reason_stays_when_the_page_is_cut_off(page: Any, served: Served) -> None:
    page.execute_script(
        "window.said = []; new MutationObserver(() => said.push(document.querySelector('#connection').textContent))"
        ".observe(document.querySelector('#connection'), {childList: true, characterData: true, subtree: true})"
    )
    served.error = "PostgreSQL does not answer"
    wait_for("the reason", lambda: served.error in text(page, "#connection"), 30)
    # Until the browser has asked again: once a failure, and every second by the clock.
    wait_for("another look", lambda: page.execute_script("return performance.now()") > 12000, 30)
    assert page.execute_script("return said.length") == 1
    assert served.error in text(page, "#connection")
    assert "nothing new since" in text(page, "#connection")
    served.error = ""
    wait_until_live(page)


CARD = '<li id="card-{0}"><a href="#{0}">{0}</a> <span>{1}</span><details><summary>more</summary>{1}</details></li>'


def test_reader_s_state_stays_when_the_page_changes(page: Any, served: Served) -> None:
    served.main = f"<ul id='cards'>{CARD.format('b', 1)}{CARD.format('c', 1)}</ul>"
    wait_for("the cards", lambda: text(page, "#card-b span") == "1", 30)
    page.execute_script(
        "const card = document.querySelector('#card-b'); card.querySelector('details').open = true;"
        "window.link = card.querySelector('a'); link.focus();"
        "getSelection().selectAllChildren(link)"
    )
    served.title = "(1) Page"
    served.main = f"<ul id='cards'>{CARD.format('a', 2)}{CARD.format('c', 2)}{CARD.format('b', 2)}</ul>"
    wait_for("the change", lambda: text(page, "#card-b span") == "2", 30)
    assert page.execute_script("return [...document.querySelectorAll('#cards a')].map((e) => e.textContent)") == [
        "a", "c", "b",
    ]  # fmt: skip
    assert page.execute_script("return document.activeElement === link && link.isConnected")
    assert page.execute_script("return document.querySelector('#card-b details').open")
    assert not page.execute_script("return document.querySelector('#card-a details').open")
    served.main = f"<ul id='cards'>{CARD.format('c', 3)}{CARD.format('b', 3)}</ul>"
    wait_for("the change", lambda: text(page, "#card-b span") == "3", 30)
    assert page.execute_script("return document.activeElement === link && link.isConnected")
    assert page.title == "(1) Page"


def test_selection_stays_when_other_text_changes(page: Any, served: Served) -> None:
    page.execute_script("getSelection().selectAllChildren(document.querySelector('#words'))")
    served.main = '<p id="words">first</p><p id="others">second</p>'
    wait_for("the change", lambda: text(page, "#others") == "second", 30)
    assert page.execute_script("return getSelection().toString()") == "first"


def test_section_appears_and_goes_when_the_page_has_it_only_for_a_time(page: Any, served: Served) -> None:
    served.main = '<section><p id="gaps">missing</p></section><p id="words">first</p>'
    wait_for("the section", lambda: text(page, "#gaps") == "missing", 30)
    assert text(page, "#words") == "first"
    served.main = '<p id="words">first</p>'
    wait_for("its end", lambda: text(page, "#gaps") == "", 30)


def test_age_is_told_when_a_page_does_not_follow(browser: Any, served: Served) -> None:
    served.main = '<p data-age>As of now<span></span>. <a href="" hidden>Reload</a></p>'
    browser.get(served.address)
    assert not browser.execute_script("return document.querySelector('[data-age] a').checkVisibility()")
    browser.execute_script("const now = Date.now; Date.now = () => now() + 7 * 60000")
    wait_for("its age", lambda: "As of now, 7 min ago." in text(browser, "[data-age]"), 30)
    assert browser.execute_script("return document.querySelector('[data-age] a').checkVisibility()")
    browser.get("about:blank")


def test_page_is_not_called_hidden_when_it_is_left(page: Any, served: Served) -> None:
    page.execute_script("window.dispatchEvent(new Event('pagehide'))")
    wait_for("no connection", lambda: served.connections == 0, 30)
    assert "Paused" not in text(page, "#connection")
    page.execute_script("window.dispatchEvent(new Event('pageshow'))")
    wait_for("a connection", lambda: served.connections == 1, 30)


STYLES = '<link rel="stylesheet" href="/static/frame.css"><link rel="stylesheet" href="/static/history.css">'


def test_square_keeps_its_colour_when_colours_are_forced(browser: Any, served: Served) -> None:
    served.main = f'{STYLES}<i class="square failed"></i><i class="swatch t1"></i><i class="square registered"></i>'
    feature = {"name": "forced-colors", "value": "active"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    try:
        browser.get(served.address)
        colours = browser.execute_script(
            "return [...document.querySelectorAll('i')].map((e) => getComputedStyle(e).backgroundColor)"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert len({*colours, browser.execute_script("return getComputedStyle(document.body).backgroundColor")}) == 4
    browser.get("about:blank")


def test_word_stays_whole_when_a_table_is_wider_than_a_telephone(browser: Any, served: Served) -> None:
    cells = "".join(f"<td>registered{n}</td>" for n in range(11))
    served.main = f'{STYLES}<div class="scroll"><table><tr>{cells}</tr></table></div>'
    with telephone(browser):
        browser.get(served.address)
        row, line = browser.execute_script(
            "const td = document.querySelector('td');"
            "return [td.clientHeight, parseFloat(getComputedStyle(td).lineHeight)]"
        )
        assert row < 2 * line
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 375
    browser.get("about:blank")
