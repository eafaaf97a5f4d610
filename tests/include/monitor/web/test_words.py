"""What pages say of data that is made here: rendered without a ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from include import lake
from include.ledger import quarantine as ledger_quarantine
from include.ledger.completeness import Completeness, Open
from include.ledger.pages.interval import AttemptFacts
from include.ledger.quarantine import QuarantineFile
from include.monitor.history.calendar import Calendar, Cell, Day, Strip
from include.monitor.history.doctor_look import Found, Look
from include.monitor.history.drill import IntervalPage
from include.monitor.history.plot import Series, Trend
from include.monitor.history.quarantine import read_quarantine
from include.monitor.history.remedies import of_failure
from include.monitor.history.states import MEANINGS, CellState
from include.monitor.history.trend import TablePage
from include.monitor.streams.page import RefusedPipeline, StreamsPage
from include.monitor.streams.state import StreamState
from include.monitor.web.pages import as_json, render
from include.pipelines import load_pipeline
from include.times import Interval

NAME = "isp_hits"
START = datetime(2026, 11, 20, 5, tzinfo=UTC)
HOUR = timedelta(hours=1)


def rendered(template: str, data: Any, path: str = "/") -> str:
    """Return the page with its white space collapsed."""
    request = Request({"type": "http", "headers": [], "query_string": b"", "path": path})
    return re.sub(r"\s+", " ", unescape(render(request, template, data)))


def interval_page(verdict: Mapping[str, Any], *, has_report: bool = False, code: int = 2) -> IntervalPage:
    interval = Interval(START, START + HOUR)
    state = CellState.FAILED
    advice = of_failure(NAME, interval, code)
    # A rebuild is no attempt to register it.
    attempts = (
        AttemptFacts(3, START, START, "rebuild", "1", "kafka", 0, False),
        AttemptFacts(2, START, START, "eve", "1", "kafka", code, False),
    )
    nothing: tuple[Any, ...] = ((), attempts, {}, ())
    return IntervalPage(
        NAME, interval.label, interval, state, MEANINGS[state], advice, "command", START, "eve", *nothing,
        verdict, "", "", {}, has_report=has_report,
    )  # fmt: skip


def test_interval_is_not_told_to_agree_when_doctor_found_more_than_is_kept() -> None:
    found = Found("file missing", "a.parquet", "it is gone", "run doctor", False, "2026-11-20T09")
    for is_cut in (True, False):
        look = Look((found,), is_cut, START).about("2026-11-20T05")
        page = rendered("interval.html", replace(interval_page({}), doctor=look))
        assert ("ledger, catalog and files agree" in page) is not is_cut
        assert ("Nothing among the first disagreements" in page) is is_cut


def test_failed_expectations_stand_below_the_advice_when_an_interval_was_rejected() -> None:
    failed = {"expectation": "expect_<it>", "column": "user", "observed": "0.5", "unexpected_count": 1234}
    page = rendered("interval.html", interval_page({"validation": {"success": False, "failed": [failed]}}))
    assert '<td>expect_<it></td><td>user</td><td>0.5</td><td class="n">1,234</td>' in page
    assert "not met" not in rendered("interval.html", interval_page({"validation": {"success": None, "failed": []}}))


def test_expectations_of_an_earlier_verdict_are_not_shown_when_the_last_attempt_failed_otherwise() -> None:
    failed = {"expectation": "expect_it", "column": "user", "observed": "0.5", "unexpected_count": 1}
    verdict = {"validation": {"success": False, "failed": [failed]}}
    assert "expect_it" in rendered("interval.html", interval_page(verdict))
    assert "expect_it" not in rendered("interval.html", interval_page(verdict, code=6))
    # A person decides about that verdict, whatever became of a later attempt.
    assert "expect_it" in rendered("interval.html", replace(interval_page(verdict, code=6), is_asked=True))


def test_report_is_linked_only_when_one_is_written() -> None:
    place = f'href="/intervals/{NAME}/2026-11-20T05/report"'
    assert place not in rendered("interval.html", interval_page({"validation": {}}))
    assert place in rendered("interval.html", interval_page({"validation": {}}, has_report=True))


def test_unknown_fields_are_listed_with_their_first_record_when_the_verdict_has_some() -> None:
    first = {"topic": "hits", "partition": 0, "offset": 13}
    paths = [{"path": "at.<floor>", "records": 4, "share": 0.4, "first": first}]
    page = rendered("interval.html", interval_page({"unknown_fields": {"paths": paths, "further_paths": 7}}))
    assert '<td>at.<floor></td><td class="n">4</td><td class="n">40.0 %</td>' in page
    assert f'<a href="/intervals/{NAME}/2026-11-20T05/record?topic=hits&partition=0&offset=13">' in page
    assert "7 more paths are not listed" in page


def strip(name: str, state: CellState) -> Strip:
    day = Day(START.date(), (Cell("2026-11-20T05", state, None, 0),))
    return Strip(name, name, (day,), {state.value: 1}, 0)


def calendar(*strips: Strip) -> Calendar:
    meanings = {state.value: words for state, words in MEANINGS.items()}
    return Calendar(START, START + HOUR, (), 0, strips, meanings, days=7, only="isp_hits", pipelines=("a", "isp_hits"))


def test_all_clear_is_said_only_when_a_pipeline_is_shown() -> None:
    clear = "no interval failed, and none is missing"
    assert clear in rendered("intervals.html", calendar(strip(NAME, CellState.REGISTERED)))
    nothing = rendered("intervals.html", calendar())
    assert clear not in nothing
    assert "There is no pipeline here that has intervals" in nothing


@pytest.mark.parametrize("template", ["intervals.html", "interval.html"])
def test_agreement_is_of_the_last_check_when_the_doctor_cannot_look_any_more(template: str) -> None:
    def page(look: Look) -> str:
        data: Any = replace(calendar(), doctor={NAME: look})
        return rendered(template, data if template == "intervals.html" else replace(interval_page({}), doctor=look))

    agree = page(Look(looked_at=START))
    assert ("files agree" in agree, "agreed" in agree) == (True, False)
    failed = page(Look(looked_at=START, error="the catalog does not answer"))
    assert ("the catalog does not answer" in failed, "files agreed" in failed) == (True, True)
    assert "2026-11-20T05:00:00Z" in failed


def test_strip_has_no_days_when_nothing_of_its_table_is_pinned() -> None:
    page = rendered("intervals.html", calendar(strip("shown", CellState.DUE), strip("bare", CellState.NONE)))
    assert 'id="strip-shown"' in page
    assert 'id="strip-bare"' not in page
    assert 'Nothing pinned yet: <a href="/tables/bare">bare</a></p>' in page
    assert "<option selected>isp_hits</option>" in page
    assert page.index("What needs attention") < page.index("registered: validated")


def test_calendar_of_a_table_is_one_stop_of_tab_when_no_script_runs() -> None:
    cells = tuple(Cell(f"2026-11-20T0{n}", CellState.REGISTERED, 1, 0) for n in range(3))
    days = (Day(START.date(), (Cell("", CellState.NONE, None, 0), *cells)), Day(START.date(), cells))
    strips = [replace(strip(name, CellState.REGISTERED), days=days) for name in ("one", "other")]
    page = rendered("intervals.html", calendar(*strips))
    stops = [f"/intervals/{name}/2026-11-20T0{n}" for name in ("one", "other") for n in range(3)]
    links = re.findall(r'<a href="(/intervals/o[^"]*)"( tabindex="-1")? class="registered"', page)
    assert len(links) == 2 * len(stops)
    assert [href for href, is_skipped in links if not is_skipped] == [stops[0], stops[3]]


def test_live_page_says_of_when_it_is_when_no_script_runs() -> None:
    page = rendered("streams.html", StreamsPage((), (), 0))
    (line,) = re.findall(r"<noscript>(.*?)</noscript>", page)
    assert re.search(r"As of \d{4}-\d\d-\d\dT[\d:]+Z\.", line)
    assert '<a href="">Reload</a>' in line
    # A new time alone is no new page to those who follow it.
    assert "As of" not in rendered("streams.html", StreamsPage((), (), 0), "/events")
    assert "<noscript" not in rendered("intervals.html", calendar())


def stopped_stream(name: str) -> StreamState:
    lag: Any = SimpleNamespace(offsets=0, seconds=None, direction="steady")
    return StreamState(
        name, "", "bad", "No driver runs.", "", lag, None, 0, 0, "", None, None, "", "", 0, None, "", START
    )  # fmt: skip


def test_streams_page_names_what_cannot_run_and_what_waits() -> None:
    refused = (RefusedPipeline("broken", "invalid <syntax>", "correct it"),)
    page = rendered("streams.html", StreamsPage((), (), 0, refused, intervals=2))
    assert "<title>(1) Streams · Tidemark</title>" in page
    assert '<p class="state bad">invalid <syntax></p>' in page
    assert "What to do: correct it" in page
    assert '<a href="/intervals">2 intervals</a> need attention.' in page
    # One whose stream is stopped and whose declaration is refused is one problem.
    for name, bad in (("broken", 1), ("Broken", 2)):
        page = rendered("streams.html", StreamsPage((stopped_stream(name),), (), 0, refused))
        assert f"<title>({bad}) Streams" in page
    assert "No pipeline is declared" in rendered("streams.html", StreamsPage((), (), 0, is_any_declared=False))
    assert "that you may read" in rendered("streams.html", StreamsPage((), (), 0))


def table_page(complete: Completeness, waits: str, newest: datetime | None) -> TablePage:
    return TablePage(NAME, NAME, START, START, complete, waits, newest, (), (), (), 0, 0)


def test_table_tells_since_when_it_is_complete_when_its_view_was_declared_later() -> None:
    begins, until = START + HOUR, START + 3 * HOUR
    complete = Completeness(NAME, complete_from=begins, complete_until=until, begins=begins)
    assert "from 2026-11-20T06:00:00Z on" in rendered("table.html", table_page(complete, "", until))
    assert " on." not in rendered("table.html", table_page(replace(complete, begins=None), "", until))


def test_table_leads_with_its_first_hole_when_later_intervals_are_registered() -> None:
    hole = Open("failed", START, START + HOUR)
    page = rendered("table.html", table_page(Completeness(NAME, START, START, hole), "T05", START + 9 * HOUR))
    assert "Complete until 2026-11-20T05:00:00Z" in page
    assert f'waits for <a href="/intervals/{NAME}/T05">T05</a> (failed).' in page
    assert "The newest registered interval ends 2026-11-20T14:00:00Z." in page
    whole = rendered("table.html", table_page(Completeness(NAME, START, START), "", START))
    assert "newest registered" not in whole
    assert "waits for" not in whole
    assert "Nothing is registered." in rendered("table.html", table_page(Completeness(NAME), "", None))


def test_fates_have_their_own_colours_when_one_is_missing() -> None:
    series = (Series("archived", (1.0,), "archived"), Series("gaps", (2.0,), "gaps"))
    trend = Trend("fates", "Fates", "offsets", "", "stack", series)
    assert trend.colours == ("archived", "gaps")
    assert Trend("k", "K", "", "", "stack", (Series("a", (1.0,)), Series("b", (1.0,)))).colours == ("t0", "t1")


@pytest.fixture
def file() -> QuarantineFile:
    return QuarantineFile("quarantine/isp_hits/7.parquet", {})


@pytest.fixture
def no_ledger(monkeypatch: pytest.MonkeyPatch, file: QuarantineFile, tmp_path: Path) -> Iterator[Path]:
    """A lake without the file of a micro-batch that the ledger has."""
    monkeypatch.setattr(ledger_quarantine, "latest_batches", lambda *_: [7])
    monkeypatch.setattr(ledger_quarantine, "files", lambda *_, **__: [file])
    monkeypatch.setattr("include.ledger.archive.landing_files.is_to_be_there", lambda *_: True)
    monkeypatch.setattr(lake, "uri", lambda path: str(tmp_path / Path(path).name))
    monkeypatch.setattr("include.monitor.history.quarantine.quarantine_by_hour", lambda *_: [])
    monkeypatch.setattr("include.monitor.history.quarantine.quarantine_reasons", lambda *_: [])
    monkeypatch.setattr("include.monitor.history.quarantine.is_being_decided", lambda *_: False)
    return tmp_path


@pytest.mark.parametrize("content", [None, b"not a Parquet file, though as long as one may be"])
def test_overview_names_the_file_when_it_is_missing_or_damaged(no_ledger: Path, content: bytes | None) -> None:
    if content is not None:
        (no_ledger / "7.parquet").write_bytes(content)
    found = read_quarantine(load_pipeline(NAME), now=START, reason="", until=None, may_act=False, replay=None, token="")
    assert found.records == ()
    assert found.unreadable.startswith("isp_hits: the quarantine's file quarantine/isp_hits/7.parquet cannot be read")
    assert "./tidemark doctor" in found.unreadable
    page = rendered("quarantine.html", found)
    assert "7.parquet cannot be read" in page
    assert "None here" not in page
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_number_is_a_text_in_json_when_json_has_no_such_number() -> None:
    """A row that another tool has written may hold it, and the whole page would be an error."""
    row = {"speed": float("inf"), "least": [float("-inf"), 0.5, True, 7], "mean": float("nan")}
    assert as_json(row) == {"speed": "inf", "least": ["-inf", 0.5, True, 7], "mean": "nan"}
