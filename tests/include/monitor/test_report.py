"""The interval's page: hostile values, the equation, the order of failures, and how a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from include.intervals.verdict import Verdict
from include.monitor.report import headline, render_report
from include.monitor.report_parts import reconciliation_part
from include.monitor.report_tables import MAX_ROWS
from include.monitor.text import percent
from include.services.process import free_port
from tests.support.corpora import NAUGHTY

ZIP_CODES = ("94103", "10001", "60601", "73301", "98101", "02108", "33101", "80202", "30303", "97201")
PARTITION = "date=2026-11-20/interval=2026-11-20T05"


def published() -> dict[str, Any]:
    """The verdict of an interval that was published."""
    expectations = [
        ("nest_cameras", "ExpectTableRowCountToEqual", "", "as many rows as the ledger counted", 58_912),
        ("nest_cameras", "ExpectColumnValuesToNotBeNull", "device_id", "every row names its device", 0),
        (
            "nest_cameras",
            "ExpectColumnValuesToNotBeNull",
            "last_event.start_time",
            "every row has an event time",
            0,
        ),
        (
            "nest_cameras",
            "ExpectCompoundColumnsToBeUnique",
            "kafka_topic, kafka_partition, kafka_offset, kafka_element",
            "each row identity occurs once",
            0,
        ),
        (
            "nest_cameras_hourly_counts",
            "ExpectColumnValuesToMatchRegex",
            "zip_code",
            "zip codes are five digits",
            0,
        ),
        (
            "nest_cameras_hourly_counts",
            "ExpectColumnValuesToBeBetween",
            "count",
            "counts are positive",
            "1 to 1984",
        ),
    ]
    return Verdict(
        "nest_cameras",
        {"from": "2026-11-20T05:00:00Z", "to": "2026-11-20T06:00:00Z"},
        "9c1f02ab77de",
    ).as_json() | {
        "ranges": [
            {
                "topic": "nest-logs",
                "topic_id": "tRk0wYx2QzG7mJv1cUe4Dg",
                "partition": n,
                "from_offset": 41_000 + n * 7,
                "until_offset": 56_000 + n * 7,
                "archived": 14_730 - n * 3,
                "empty": 120,
                "quarantined": 150 + n * 3,
                "gaps": 0,
            }
            for n in range(4)
        ],
        "records": {"in_ranges": 60_000, "archived": 58_902, "empty": 480, "quarantined": 618, "gaps": 0},
        "reconciliation": {"matched": 60_212, "pending": 4, "late": 17, "unexplained": 0},
        "differences": [
            {
                "class": "late",
                "what": "batch view counts more",
                "where": "zip 94103, 2026-11-20T04:00:00Z",
                "evidence": {"batch": 1984, "speed": 1967, "watermark": "2026-11-20T05:01:12Z"},
            },
            {
                "class": "pending",
                "what": "window still open",
                "where": "zip 10001, 2026-11-20T05:00:00Z",
                "evidence": {"batch": 402, "speed": 398},
            },
        ],
        "validation": {"success": True, "suite": "nest_cameras", "failed": []},
        "expectations": [
            {
                "table": table,
                "expectation": name,
                "column": column,
                "words": words,
                "success": True,
                "observed": observed,
                "unexpected_count": 0,
            }
            for table, name, column, words, observed in expectations
        ],
        "registered": [
            {
                "table": table,
                "partition": PARTITION,
                "revision": revision,
                "rows": rows,
                "content_hash": digest,
                "location": f"file:///srv/lake/tables/{table}/{PARTITION}/{revision}",
            }
            for table, revision, rows, digest in (
                ("nest_cameras", "r-7f3a90c1", 58_912, "5d41402abc4b2a76b9719d911017c592"),
                ("nest_cameras_hourly_counts", "r-7f3a90c2", 21, "7d793037a0760186574b0282f2f435e7"),
            )
        ],
    }


def rejected() -> dict[str, Any]:
    """The verdict of an interval whose checkpoint failed."""
    verdict = published()
    failed = {
        "table": "nest_cameras",
        "expectation": "ExpectColumnValuesToBeInSet",
        "column": "where_name",
        "words": "rooms are known rooms",
        "success": False,
        "observed": "3.1 % unexpected",
        "unexpected_count": 1826,
    }
    verdict["expectations"].append(failed)
    verdict["validation"] = {"success": False, "suite": "nest_cameras", "failed": [failed]}
    verdict["registered"] = []
    return verdict


def unexplained() -> dict[str, Any]:
    """The verdict of an interval in which the layers disagree and a record has no fate."""
    verdict = published()
    verdict["records"]["archived"] -= 3
    verdict["reconciliation"]["unexplained"] = 3
    verdict["differences"].insert(
        0,
        {
            "class": "unexplained",
            "what": "in Kafka, neither archived nor quarantined",
            "where": "nest-logs-2 offset 47112",
            "evidence": {"from_offset": 47_112, "until_offset": 47_115, "micro_batch": 31},
        },
    )
    verdict["validation"] = {"success": None, "suite": "", "failed": []}
    verdict["expectations"], verdict["registered"] = [], []
    return verdict


def findings(windows: int = 2) -> dict[str, Any]:
    """What the reports of the interval found."""
    return {
        "description": "Home cameras: every state archived, person sightings counted per zip code and hour",
        "sections": [
            {
                "title": "Busy hours",
                "note": "Zip codes and hours with more than 1000 sightings, from the batch view.",
                "columns": ["zip_code", "window", "count"],
                "truncated": 0,
                "rows": [["94103", "2026-11-20T04:00:00Z", 1984], ["94103", "2026-11-20T05:00:00Z", 1733]],
            },
            {
                "title": "Cameras offline",
                "note": "Last state of the interval is offline.",
                "columns": ["device_id", "name_long", "where_name", "structure_id", "last_is_online_change"],
                "rows": [
                    [
                        f"cam-{n:04d}",
                        f"Camera cam-{n:04d}",
                        "Porch",
                        f"home-{n // 3:03d}",
                        "2026-11-20T05:12:44Z",
                    ]
                    for n in (17, 141, 266)
                ],
                "truncated": 12,
            },
        ],
        "chart": {
            "title": "Person sightings",
            "unit": "per zip code and hour",
            "x": [f"2026-11-20T{n:02d}:00:00Z" for n in range(6 - windows, 6)],
            "series": [
                {
                    "name": zip_code,
                    "values": [(1984 - 190 * i) - 251 * (n % 3) // (i + 1) for n in range(windows)],
                }
                for i, zip_code in enumerate(ZIP_CODES)
            ],
        },
    }


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.style = ""
        self._open = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        if self._open == "style":
            self.style += data
        self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def hostile(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A verdict and data with the value in every place that data can reach."""
    verdict = published()
    for name in ("pipeline", "code_version", "source"):
        verdict[name] = value
    verdict["interval"] = {"from": value, "to": value}
    verdict["ranges"][0] |= {"topic": value, "topic_id": value}
    verdict["differences"] = [
        {"class": kind, "what": value, "where": value, "evidence": {str(value): value}} for kind in ("late", value)
    ]
    verdict["expectations"] = [
        {
            "table": value,
            "expectation": value,
            "column": value,
            "words": value,
            "success": True,
            "observed": value,
            "unexpected_count": value,
        }
    ]
    verdict["validation"]["suite"] = value
    names = ("table", "partition", "from_revision", "to_revision")
    verdict["revision_differences"] = [
        {**dict.fromkeys(names, value), "added": 1, "examples": [{"change": value, "key": value}]}
    ]
    verdict["registered"] = [
        {
            "table": value,
            "partition": value,
            "revision": value,
            "rows": 1,
            "content_hash": value,
            "location": value,
        }
    ]
    data = {
        "description": value,
        "sections": [{"title": value, "note": value, "columns": [value], "rows": [[value]], "truncated": 0}],
        "chart": {"title": value, "unit": value, "x": [value], "series": [{"name": value, "values": [1]}]},
    }
    return verdict, data


def test_markup_is_text_when_a_value_is_markup() -> None:
    attack = "\"'><img src=x onerror=alert(1)><script>alert(1)</script></style><svg onload=alert(1)>"
    clean_tags = [tag for tag, _ in Page(render_report(*hostile("plain"))).tags]
    page = Page(render_report(*hostile(attack)))
    assert [tag for tag, _ in page.tags] == clean_tags
    assert not any(name.startswith("on") or name == "src" for _, attributes in page.tags for name in attributes)
    assert attack in page.text


def test_page_keeps_its_structure_when_values_are_naughty_strings() -> None:
    expected = [tag for tag, _ in Page(render_report(*hostile("plain"))).tags]
    for value in NAUGHTY:
        html = render_report(*hostile(value))
        html.encode("utf-8")
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufeff]", html), repr(value)
        tags = [tag for tag, _ in Page(html).tags]
        # A value that is empty once cleaned leaves out the optional paragraph around it, nothing else.
        assert len(tags) <= len(expected) + 2, repr(value)
        assert {"script", "img", "iframe", "object", "a", "base", "form"}.isdisjoint(tags), repr(value)


@pytest.mark.parametrize("verdict", [published(), rejected(), unexplained(), Verdict("p", {}, "v").as_json()])
def test_nothing_outside_is_referred_to_when_a_page_is_written(verdict: dict[str, Any]) -> None:
    html = render_report(verdict, findings(6))
    page = Page(html)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"style-src 'sha256-{digest}'" in policy
    assert not {"script", "link", "img", "iframe", "object", "embed", "a", "base"} & {tag for tag, _ in page.tags}
    assert not any({"href", "src", "style", "xlink:href", "action"} & set(a) for _, a in page.tags)
    assert "url(" not in page.style
    assert "@import" not in page.style


def test_equation_holds_when_every_offset_has_a_fate() -> None:
    text = Page(render_report(published(), findings())).text
    assert "60,000 in ranges = 58,902 archived + 480 empty + 618 quarantined + 0 gaps" in text
    assert "The equation holds" in text


def test_replayed_records_stand_beside_the_equation_when_there_are_some() -> None:
    verdict = published()
    verdict["records"]["replayed"] = 1_204
    text = Page(render_report(verdict, findings())).text
    assert "a replay delivered 1,204 records from quarantine" in text
    assert "The equation holds" in text
    assert "replay" not in Page(render_report(published(), findings())).text


def test_explained_differences_are_counted_by_class_when_the_verdict_counts_them() -> None:
    verdict = published()
    gap = {"class": "gap", "what": "offsets without a visible record", "where": "nest-logs-0", "evidence": "0..49999"}
    verdict["differences"].append(gap)
    del verdict["explained"]
    assert [each["count"] for each in reconciliation_part(verdict) if each["name"] == "gap"] == ["–"]
    verdict["explained"] = {"gap": 50_000, "code": 3}
    counts = {each["name"]: each["count"] for each in reconciliation_part(verdict)}
    assert (counts["gap"], counts["code"], counts["late"]) == ("50,000", "3", "17")


def test_changed_rows_are_counted_per_table_partition_when_a_rerun_changed_some() -> None:
    verdict = published()
    verdict["revision_differences"] = [
        {
            "table": "nest_cameras",
            "partition": PARTITION,
            "from_revision": "r20261120T060000-1",
            "to_revision": "r20261121T060000-9",
            "added": 3,
            "removed": 0,
            "changed": 58_000,
            "examples": [{"change": "changed", "key": '{"kafka_offset":41000}'}],
        }
    ]
    text = Page(render_report(verdict, findings())).text
    assert "What this run changed" in text
    for part in ("r20261120T060000-1", "r20261121T060000-9", "58,000", '{"kafka_offset":41000}'):
        assert part in text
    assert "What this run changed" not in Page(render_report(published(), findings())).text


def test_equation_is_called_broken_when_offsets_have_no_fate() -> None:
    text = Page(render_report(unexplained(), findings())).text
    assert "60,000 in ranges ≠ 58,899 archived" in text
    assert "3 offsets have no fate" in text
    assert "The equation holds" not in text


@pytest.mark.parametrize(
    ("verdict", "title"),
    [
        (published(), "Published"),
        (rejected(), "Not published: validation failed"),
        (unexplained(), "Not published: the layers disagree"),
        (Verdict("p", {}, "v").as_json(), "Not published: not validated"),
        ({**published(), "registered": []}, "Complete, nothing to publish"),
    ],
)
def test_headline_says_why_when_an_interval_ends(verdict: dict[str, Any], title: str) -> None:
    html = render_report(verdict, findings())
    assert re.search(r'<h2 id="verdict">([^<]*)</h2>', html)[1] == title  # type: ignore[index]


def test_headline_does_not_say_that_every_check_passed_when_a_noted_expectation_was_not_met() -> None:
    first, *others = published()["expectations"]
    noted = {**published(), "expectations": [*others, {**first, "success": False, "severity": "info"}]}
    for verdict in (noted, {**noted, "registered": []}):
        told = headline(verdict)
        assert told.tone == "good"
        assert "1 expectation that is only noted was not met" in told.reason
        assert "very check passed" not in told.reason
    assert headline(published()).reason.endswith("registered after every check passed.")


def test_page_says_how_many_are_left_out_when_more_partitions_were_registered_than_it_shows() -> None:
    verdict = published()
    [entry, *_] = verdict["registered"]
    verdict["registered"] = [{**entry, "partition": f"server={number}"} for number in range(MAX_ROWS + 120)]
    html = render_report(verdict, findings())
    shown = html[html.index("What was registered") :]
    assert shown.count("<dt>Revision</dt>") == MAX_ROWS
    assert "120 more not shown here." in shown


@pytest.mark.parametrize(("share", "said"), [(0.0, "0.0 %"), (5e-6, "< 0.1 %"), (0.9999, "> 99.9 %"), (1.0, "100.0 %")])
def test_share_is_told_as_none_or_all_only_when_it_is(share: float, said: str) -> None:
    assert percent(share) == said


def warned(**validation: Any) -> dict[str, Any]:
    """The verdict of an interval of which one expectation warns, and shows a row with markup."""
    row = {"kafka_offset": "41000", "room": "<script>1</script>"}
    first, *others = published()["expectations"]
    missed = {**first, "success": False, "severity": "warn", "examples": [row], "words": "rooms are known rooms"}
    failed = [{"expectation": first["expectation"]}]
    return {
        **published(),
        "expectations": [*others, missed],
        "validation": {"success": False, "suite": "s", "failed": failed, "question": 12, **validation},
    }


def test_page_asks_for_a_decision_and_shows_rows_as_text_when_only_warnings_were_not_met() -> None:
    html = render_report(warned(not_checked=["whether <b>rows</b> are usual: 3 are registered"]), findings())
    text = Page(html).text
    assert "Not published: waits for approval" in text
    assert "1 warning, and no expectation failed" in text
    assert '<span class="mark">warned</span>' in html
    assert html.index('class="mark">warned') < html.index('class="mark">met')
    assert "kafka_offset=41000 room=<script>1</script>" in text
    assert "<script>" not in html
    assert "Not checked: whether <b>rows</b> are usual: 3 are registered." in text
    assert "./tidemark approve nest_cameras --from 2026-11-20T05:00:00Z --to 2026-11-20T06:00:00Z --question 12" in text


@pytest.mark.parametrize(("said", "title"), [("approved", "Published"), ("refused", "Not published: refused")])
def test_page_names_who_decided_and_why_when_a_person_has_decided(said: str, title: str) -> None:
    decision = {"decision": said, "by": "ada<b>", "at": "2026-11-20T07:00:00Z", "reason": "a <i>holiday</i>"}
    html = render_report(warned(success=said == "approved", decision=decision), findings())
    text = Page(html).text
    assert re.search(r'<h2 id="verdict">([^<]*)</h2>', html)[1] == title  # type: ignore[index]
    assert f"{said} by ada<b> at 2026-11-20T07:00:00Z: a <i>holiday</i>" in text
    assert "./tidemark approve" not in text


def test_failed_expectations_come_first_when_some_failed() -> None:
    html = render_report(rejected(), findings())
    assert html.index("rooms are known rooms") < html.index("every row names its device")
    assert "1,826 unexpected" in html


def test_first_examples_are_open_when_differences_are_unexplained() -> None:
    html = render_report(unexplained(), findings())
    assert html.index("<details open>") < html.index("nest-logs-2 offset 47112")
    assert html.count("<details open>") == 1


def test_page_is_complete_when_nothing_was_found() -> None:
    html = render_report({"pipeline": "nest_cameras"}, {})
    text = Page(html).text
    assert "The run ended before the offsets were counted" in text
    assert "No expectation was judged" in text
    assert "Nothing was registered by this run" in text
    assert "./tidemark rebuild" not in text


def test_values_are_bounded_when_they_are_huge() -> None:
    verdict, data = hostile("x" * 1_000_000)
    verdict["ranges"] *= 2_000
    data["sections"][0]["rows"] = [[10**5000, "y" * 10_000]] * 5_000
    data["sections"][0]["columns"] = ["a", "b"]
    data["chart"] = {
        "title": "t",
        "unit": "",
        "x": [str(i) for i in range(3_000)],
        "series": [{"name": str(n), "values": [10**400, -5, float("nan"), None, "no"]} for n in range(500)],
    }
    html = render_report(verdict, data)
    assert len(html) < 1_000_000
    assert "4,800 more not shown here" in html
    assert max(len(text) for text in Page(html).texts if not text.startswith("\n:root")) < 800


def test_keys_of_a_section_are_written_without_separators_when_they_are_numbers() -> None:
    section = {"title": "Busiest devices", "columns": ["deviceId", "positions"], "rows": [[-5 * 10**18, 1_234]]}
    html = render_report(published(), {**findings(), "sections": [{**section, "keys": ["deviceId"]}]})
    assert {"-5000000000000000000", "1,234"} < set(Page(html).texts)
    # Reports of earlier versions name no keys.
    assert "-5,000,000,000,000,000,000" in render_report(published(), {**findings(), "sections": [section]})


def test_chart_is_left_out_when_it_has_no_values() -> None:
    empty = {"title": "t", "unit": "u", "x": ["a"], "series": [{"name": "s", "values": [0]}]}
    assert "<figure" not in render_report(published(), {**findings(), "chart": empty})
    assert "<figure" not in render_report(published(), {**findings(), "chart": None})


def test_columns_stack_to_the_total_when_there_are_many_windows() -> None:
    html = render_report(published(), findings(6))
    heights = [float(h) for h in re.findall(r'<rect x="[\d.]+%" y="[\d.]+%" width="[\d.]+%" height="([\d.]+)%"', html)]
    tops = [float(y) for y in re.findall(r'<rect x="[\d.]+%" y="([\d.]+)%" width="[\d.]+%" height="[\d.]+%"', html)]
    assert len(heights) == 6 * 6
    assert all(0 <= y <= 100 for y in tops)
    assert sum(heights[:6]) == pytest.approx(100 - min(tops[:6]), abs=0.02)


def test_same_page_when_rendered_twice() -> None:
    assert render_report(published(), findings()) == render_report(published(), findings())


# In a browser

Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    """Serve a page on loopback and open it at a width."""
    numbers = count(1)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    server = ThreadingHTTPServer(("127.0.0.1", free_port()), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def open_page(html: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> Any:
        # The browser's cache takes pages of one name and second for one page.
        name = f"{next(numbers)}.html"
        (tmp_path / name).write_text(html, encoding="utf-8")
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": width < 600},
        )
        browser.get_log("performance"), browser.get_log("browser")
        browser.get(f"http://127.0.0.1:{server.server_port}/{name}")
        return browser

    yield open_page
    server.shutdown()
    server.server_close()


def _requests(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.mark.browser
@pytest.mark.parametrize(
    "verdict", [published(), rejected(), unexplained()], ids=["published", "rejected", "unexplained"]
)
def test_browser_loads_nothing_else_when_it_shows_the_page(opened: Opened, verdict: dict[str, Any]) -> None:
    browser = opened(render_report(verdict, findings(6)))
    assert browser.find_element("id", "verdict").is_displayed()
    assert [url for url in _requests(browser) if not url.endswith(".html")] == []
    assert browser.get_log("browser") == []
    # The policy allows the style: otherwise the sheet would have no rules.
    assert browser.execute_script("return getComputedStyle(document.querySelector('.verdict')).display") == "grid"


@pytest.mark.browser
def test_browser_runs_nothing_when_values_are_hostile(opened: Opened) -> None:
    attack = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    browser = opened(render_report(*hostile(attack)))
    assert browser.execute_script("return document.images.length + document.scripts.length") == 0
    assert len(_requests(browser)) == 1


@pytest.mark.browser
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_page_does_not_scroll_sideways_when_narrow(opened: Opened, width: int) -> None:
    long = "a-very-long-name-without-a-place-to-break" * 5
    for verdict, data in ((published(), findings(6)), (unexplained(), findings(2)), hostile(long)):
        browser = opened(render_report(verdict, data), width=width)
        measured = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert measured[0] <= width, measured


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(
    "verdict", [published(), rejected(), unexplained()], ids=["published", "rejected", "unexplained"]
)
def test_text_has_contrast_when_light_or_dark(opened: Opened, verdict: dict[str, Any], dark: bool) -> None:
    browser = opened(render_report(verdict, findings(6)), dark=dark)
    assert browser.execute_script(_CONTRAST) == []


@pytest.mark.browser
def test_picture_is_a_whole_image_when_the_page_is_photographed(
    opened: Opened, take_picture: Callable[[Any, str], bytes]
) -> None:
    browser = opened(render_report(published(), findings(2)), height=1500)
    width, height = struct.unpack(">II", take_picture(browser, "report")[16:24])
    # Two pixels a point.
    assert (width, height) == (2560, 3000)


_CONTRAST = """
const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const rgba = css => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = css; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data]; };
const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
  .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
const behind = node => { for (; node; node = node.parentElement) {
  const c = rgba(getComputedStyle(node).backgroundColor); if (c[3] === 255) return c; }
  return [255, 255, 255, 255]; };
const weak = [];
for (const node of document.querySelectorAll('body *')) {
  const own = [...node.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
  if (!own || node.closest('svg') || !node.checkVisibility()) continue;
  const a = light(rgba(getComputedStyle(node).color)), b = light(behind(node));
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < 4.5) weak.push(node.tagName + '.' + node.className + ' ' + ratio.toFixed(2));
}
return weak;
"""


def test_place_of_cells_is_written_in_words_when_a_grid_is_drawn(opened: Opened) -> None:
    section = {
        "title": "Where vehicles were",
        "note": "rows of the interval by longitude and latitude, in cells of 0.5",
        "columns": ["longitude from", "latitude from", "rows"],
        "rows": [["-1.0", "47.5", 40], ["0.0", "47.0", 2]],
        "truncated": 0,
        "grid": {"size": 0.5, "x": [-2, 3], "y": [94, 2], "cells": [[-2, 95, 40], [0, 94, 2]]},
    }
    html = render_report(published(), {**findings(), "sections": [section]})
    assert 'viewBox="0 0 3 2"' in html
    assert "Where vehicles were: 2 cells from -1.0 to 0.5 and from 47.0 to 48.0" in html
    assert '<rect x="0" y="0" width="1" height="1" class="g4"><title>-1.0, 47.5: 40</title></rect>' in html
    drawn = opened(html).execute_script(
        "return [...document.querySelectorAll('.grid rect')].map(cell => {"
        " const at = cell.getBoundingClientRect();"
        " return [at.x, at.y, at.width, at.height, getComputedStyle(cell).fill]})"
    )
    (left, upper, width, height, many), (right, lower, _, _, few) = drawn
    assert (right - left, lower - upper) == pytest.approx((2 * width, height))
    assert width == pytest.approx(height)
    assert many != few
