"""The streams' pages over a real ledger: as HTML, as JSON, as events and in a browser, with hostile texts as texts."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from include import alerts, pipelines
from include.alerts import refused
from include.errors import UsageError
from include.ledger.alerts import Alert
from include.ledger.database import session
from include.ledger.models import StreamLaunch
from include.ledger.streams import event_gaps, generations, launches, progress, writers
from include.ledger.streams.event_gaps import RefusedAt
from include.ledger.streams.progress import QueryProgress
from include.monitor.live_page import serving
from include.monitor.open_alerts import SHOWN
from include.monitor.streams.driver_log import LINES
from include.monitor.web.alone import app_alone
from include.pipelines import declarations, load_pipeline, pipeline_names
from include.pipelines.spec import Pipeline
from include.versions.loaded_modules import loaded_code
from tests.conftest import Home, end_of, settings_of, wait_for
from tests.support.corpora import NAUGHTY

pytestmark = pytest.mark.services

TOKEN = "t" * 43
HOSTILE = "<img src=x onerror=\"document.title='owned'\">\x1b[31m\u202e"
NAME = "nest_cameras"


def told(number: int, rate: float = 50.0, query: str = "archive") -> QueryProgress:
    return QueryProgress(
        query, number, datetime.now(UTC) + timedelta(seconds=number), 100, rate, 75.0, 1.5,
        {"addBatch": 1.25, "walCommit": 0.25}, datetime.now(UTC) - timedelta(hours=1), 7, 2048,
    )  # fmt: skip


@pytest.fixture(scope="module")
def lease(postgres: Home) -> Iterator[writers.Lease]:
    """A lease that outlives the tests, however long a machine takes for them."""
    with settings_of(postgres, TIDEMARK_LEASE_SECONDS="3600"):
        yield writers.acquire(NAME)


@pytest.fixture(scope="module")
def log(postgres: Home, lease: writers.Lease) -> Path:
    """The log of a driver that holds the lease: launched, of a second generation, with progress of two queries."""
    path = postgres.path / "driver.log"
    path.write_text(f"started {HOSTILE}\npassword=canary-canary\n")
    generations.current_or_first(NAME, "eve@host")
    generations.open_generation(lease, started_by="eve@host", reason=HOSTILE)
    launches.note_intent("failed", NAME, "host", str(path))
    launches.note_end("failed", 4)
    launches.note_intent("replaced", NAME, "host", str(path))
    launches.note_reason("replaced", "replaced: other code was deployed")
    launches.note_end("replaced", 0)
    launches.note_intent("running", NAME, socket.gethostname(), str(path))
    with session() as ledger:
        # Its driver took its lease after it was launched.
        ledger.get_one(StreamLaunch, "running").launched_at -= timedelta(minutes=5)
    progress.note(NAME, [told(number) for number in range(10)])
    progress.note(NAME, [told(number, query="hourly_counts") for number in range(3)])
    return path


@pytest.fixture(scope="module")
def address(log: Path) -> Iterator[str]:
    with serving(app_alone(TOKEN, "eve@host"), 0) as served:
        yield served


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[httpx.Client]:
    sent = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=address, headers=sent, timeout=60) as client:
        yield client


def test_every_pipeline_has_a_sentence_when_the_broker_is_away(client: httpx.Client) -> None:
    streams = client.get("/?format=json").json()["streams"]
    assert {each["pipeline"] for each in streams} == set(pipeline_names())
    for each in streams:
        assert each["sentence"].endswith(".")
        assert each["tone"] == "bad"
        assert "kafka was never started" in each["lag"]["error"]
        assert each["remedy"]
    page = client.get("/").text
    assert all(f'href="/pipelines/{name}"' in page for name in pipeline_names())


def test_page_has_driver_rates_restarts_and_log_when_a_stream_runs(client: httpx.Client) -> None:
    page = client.get(f"/pipelines/{NAME}?format=json").json()
    state = page["state"]
    assert state["holder"].endswith(f":{os.getpid()}")
    assert (state["token"], state["generation"]) == (1, 1)
    archive, counts = page["queries"]
    assert (archive["query"], counts["query"]) == ("archive", "hourly_counts")
    assert (archive["input_rate"], archive["seconds"], archive["state_rows"]) == (50, 1.5, 7)
    assert [part["name"] for part in archive["parts"]] == ["addBatch", "walCommit"]
    assert [(each["reason"], each["is_failure"]) for each in page["restarts"]] == [
        ("runs", False),
        ("replaced: other code was deployed", False),
        ("offsets are lost, or the topic was recreated", True),
    ]
    assert page["log"]["lines"] == ["started <img src=x onerror=\"document.title='owned'\">[31m", "password=********"]


def test_page_shows_missing_time_when_a_followed_event_stream_had_a_gap(client: httpx.Client) -> None:
    at = datetime(2026, 11, 20, 5, tzinfo=UTC)
    assert client.get("/pipelines/isp_hits?format=json").json()["event_gaps"] == []
    passed, stopped = (RefusedAt("isp_hits", f"https://example.org/{HOSTILE}", str(n), at, HOSTILE) for n in range(2))
    event_gaps.note_refused(passed)
    assert event_gaps.note_gap(passed, at + timedelta(hours=1), "eve@host") == timedelta(hours=1)
    event_gaps.note_refused(replace(stopped, from_at=at + timedelta(hours=2)))
    told = client.get("/pipelines/isp_hits?format=json").json()["event_gaps"]
    assert [(gap["from_at"], gap["until_at"], gap["accepted_by"]) for gap in told] == [
        ("2026-11-20T05:00:00Z", "2026-11-20T06:00:00Z", "eve@host"),
        ("2026-11-20T07:00:00Z", None, ""),
    ]
    page = client.get("/pipelines/isp_hits").text
    assert "nobody: start the follower with --accept-gap" in page
    assert "https://example.org/&lt;img" in page
    assert "<img" not in page
    assert "Missing of the event stream" not in client.get(f"/pipelines/{NAME}").text


def test_alerts_stand_above_the_streams_when_they_are_open(client: httpx.Client) -> None:
    assert client.get("/?format=json").json()["alerts"] == []
    assert "No alert is open." in client.get("/").text
    since = datetime(2026, 11, 20, 5, tzinfo=UTC)
    raised = Alert("task/interval__isp_hits/r 1/publish", "isp_hits", HOSTILE, "task publish", since, "read its log")
    assert alerts.raise_alert(raised)
    [shown_alert] = client.get("/?format=json").json()["alerts"]
    assert (shown_alert["pipeline"], shown_alert["todo"]) == ("isp_hits", "read its log")
    assert shown_alert["dismiss"] == "./tidemark alerts dismiss 'task/interval__isp_hits/r 1/publish' --reason \"…\""
    for place in ("/", "/pipelines/isp_hits"):
        text = client.get(place).text
        assert "Open alerts" in text
        assert "&lt;img" in text
        assert "<img" not in text
    assert "Open alerts" not in client.get(f"/pipelines/{NAME}").text
    metrics = client.get("/metrics").text
    assert 'tidemark_open_alerts{pipeline="isp_hits"} 1.0' in metrics
    assert f'tidemark_open_alerts{{pipeline="{NAME}"}} 0.0' in metrics
    assert alerts.recover(raised.key)
    assert client.get("/?format=json").json()["alerts"] == []


def test_number_of_further_alerts_is_shown_when_more_are_open_than_a_page_lists(client: httpx.Client) -> None:
    now = datetime.now(UTC)
    keys = [f"task/many/{number}" for number in range(SHOWN + 3)]
    for key in keys:
        assert alerts.raise_alert(Alert(key, "isp_hits", "it failed", "task publish", now, "read its log"))
    page = client.get("/pipelines/isp_hits").text
    assert page.count("it failed") == SHOWN
    assert "And 3 more: <code>./tidemark alerts list</code>." in page
    assert all(map(alerts.recover, keys))


def test_alerts_are_shown_when_their_pipeline_s_declaration_is_refused_or_gone(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(name: str) -> Pipeline:
        if name == "isp_hits":
            raise UsageError("it is refused")
        return load_pipeline(name)

    monkeypatch.setattr("include.pipelines.load_pipeline", refusing)
    declarations.cache_clear()
    try:
        now = datetime.now(UTC)
        refused.watch(declarations(), now)
        assert alerts.raise_alert(Alert("stream/gone", "gone", "it ended", "its DAG", now, "declare it again"))
        shown_alerts = client.get("/?format=json").json()["alerts"]
        assert {each["pipeline"] for each in shown_alerts} == {"isp_hits", "gone"}
        assert "No alert is open." not in client.get("/").text
        metrics = client.get("/metrics").text
        assert 'tidemark_open_alerts{pipeline="isp_hits"} 1.0' in metrics
        assert 'tidemark_open_alerts{pipeline="gone"} 1.0' in metrics
        assert f'tidemark_open_alerts{{pipeline="{NAME}"}} 0.0' in metrics
    finally:
        monkeypatch.undo()
        declarations.cache_clear()
    assert refused.watch(declarations(), now) == 1
    assert alerts.recover("stream/gone")


DOORS = """
from include.pipelines.spec import *

PIPELINE = Pipeline(
    name="doors", description="{}", source=KafkaTopics(subscribe=("doors",)), decoder=Json(schema="at TIMESTAMP"),
    archive=Archive(rows="rows", columns="at TIMESTAMP", event_time="at"),
)
"""


def test_pages_have_a_pipeline_when_it_is_declared_edited_and_removed_while_they_are_served(
    client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelines, "__path__", [*pipelines.__path__, str(tmp_path)])
    file = tmp_path / "doors.py"

    def described() -> str | None:
        streams = client.get("/?format=json").json()["streams"]
        return next((each["description"] for each in streams if each["pipeline"] == "doors"), None)

    assert described() is None
    file.write_text(DOORS.format("Doors"))
    assert described() == "Doors"
    assert 'tidemark_open_alerts{pipeline="doors"} 0.0' in client.get("/metrics").text
    assert client.get("/tables/doors").status_code == 200
    file.write_text(DOORS.format("All doors"))
    wait_for("the page to know it", lambda: described() == "All doors", 30)
    file.unlink()
    assert described() is None
    assert 'pipeline="doors"' not in client.get("/metrics").text
    del pipelines.doors  # type: ignore[attr-defined]


def test_texts_are_escaped_when_a_page_shows_them(client: httpx.Client) -> None:
    page = client.get(f"/pipelines/{NAME}").text
    assert "&lt;img src=x" in page
    assert "<img" not in page
    assert "canary" not in page
    assert " style=" not in page
    assert "<script>" not in page


def test_events_bring_the_page_when_it_changes(client: httpx.Client) -> None:
    with client.stream("GET", f"/pipelines/{NAME}/events") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        lines = answer.iter_lines()
        html = next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
        assert NAME in html
        progress.note(NAME, [told(900, rate=1234.5)])
        wait_for("the rate", lambda: "1,234.5/s" in next(line for line in lines if line.startswith("data: ")), 30)


def test_metrics_equal_the_page_when_both_are_read(client: httpx.Client) -> None:
    progress.note(NAME, [told(901, rate=40.0), told(901, query="no_longer_declared")])
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = [s for family in text_string_to_metric_families(answer.text) for s in family.samples]
    found = {(s.name, *sorted(s.labels.values())): s.value for s in samples}
    assert found["tidemark_ledger_up",] == 1
    assert found["tidemark_ledger_bytes",] > 1_000_000
    assert found["tidemark_stream_live", NAME] == 1
    assert found["tidemark_stream_live", "isp_hits"] == 0
    assert found["tidemark_broker_up", NAME] == 0
    assert found["tidemark_query_input_rows_per_second", "archive", NAME] == 40
    assert found["tidemark_query_part_seconds", "addBatch", "archive", NAME] == 1.25
    assert found["tidemark_stream_state", "bad", NAME] == 1
    assert found["tidemark_stream_generation", NAME] == 1
    assert {key[1] for key in found if key[0] == "tidemark_query_progress_timestamp_seconds"} == {
        "archive", "hourly_counts",
    }  # fmt: skip


def test_rates_are_marked_or_left_out_when_no_query_of_the_driver_reported_them(client: httpx.Client) -> None:
    before, of_earlier = datetime.now(UTC) - timedelta(days=1), "Of an earlier driver; nothing was reported since."
    progress.note(NAME, [told(902, query="no_longer_declared")])
    progress.note(NAME, [told(903), replace(told(904), input_rows=0, seconds=0.01)])
    place = f"/pipelines/{NAME}"
    queries = client.get(f"{place}?format=json").json()["queries"]
    assert [each["query"] for each in queries] == ["archive", "hourly_counts"]
    assert [(each["batch_id"], each["timed_batch_id"], each["seconds"]) for each in queries[:1]] == [(904, 903, 1.5)]
    page = client.get(place).text
    assert "<dt>micro-batch 904</dt>" in page
    assert "<dt>duration of micro-batch 903</dt>" in page
    assert of_earlier not in page
    progress.note(NAME, [replace(told(905, query="hourly_counts"), at=before)])
    assert client.get(place).text.count(of_earlier) == 1
    assert of_earlier in client.get(f"{place}/views/hourly_counts").text


def test_address_is_printed_once_and_a_signal_ends_it_when_the_command_runs(postgres: Home) -> None:
    process = postgres.start("monitor", "--port", "0")
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with httpx.Client(follow_redirects=True, timeout=60) as browser:
            assert browser.get(address.split("?")[0]).status_code == 401
            assert browser.get(address).status_code == 200
            assert browser.get(f"{address.split('?')[0]}metrics").status_code == 200
        process.send_signal(signal.SIGTERM)
        rest, told_also = process.communicate(timeout=30)
        assert (process.returncode, rest) == (0, "")
        assert "token" not in told_also
    finally:
        end_of(process)


def test_page_opens_and_no_token_is_printed_when_the_token_is_in_a_file(postgres: Home, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "short").write_text("short")
    postgres.run("monitor", "--token-file", str(tmp_path / "short"), expect=64)
    postgres.run("monitor", "--token-file", str(tmp_path / "gone"), expect=64)
    process = postgres.start("monitor", "--port", "0", "--token-file", str(tmp_path / "token"))
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert "token" not in address
        sent = {"Authorization": f"Bearer {TOKEN}"}
        assert httpx.get(f"{address}metrics", headers=sent, timeout=60).status_code == 200
        assert TOKEN not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    finally:
        end_of(process)


def shown(browser: Any, selector: str) -> str:
    text: str = browser.execute_script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)
    return text


def problems(browser: Any) -> list[dict[str, Any]]:
    return [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.mark.browser
def test_page_shows_strings_as_texts_when_the_stream_has_naughty_ones(browser: Any, address: str, log: Path) -> None:
    browser.get(f"{address}pipelines/{NAME}?token={TOKEN}")
    assert "token" not in browser.current_url
    problems(browser)
    wait_for("the events", lambda: "Live" in shown(browser, "#connection"), 30)
    assert len(NAUGHTY) >= 515
    for start in range(0, len(NAUGHTY), LINES // 2):
        part = [each.replace("\n", " ").replace("\r", " ") for each in NAUGHTY[start : start + LINES // 2]]
        log.write_text("\n".join([*part, f"end of part {start}\n"]), errors="replace")
        wait_for("the log", lambda s=start: f"end of part {s}" in shown(browser, "#log"), 30)
        assert browser.execute_script("return document.querySelectorAll('#log *').length") == 0
    assert browser.execute_script("return document.images.length + document.scripts.length") == 1
    progress.note(NAME, [replace(told(1000), input_rate=4321.5)])
    wait_for("the rate", lambda: "4,321.5/s" in shown(browser, "#queries"), 30)
    assert problems(browser) == []


def test_page_links_to_spark_s_own_pages_when_the_driver_serves_them(
    client: httpx.Client, lease: writers.Lease
) -> None:
    place, served = f"/pipelines/{NAME}", "http://127.0.0.1:4040"
    assert "off; drivers that start with <code>TIDEMARK_SPARK_UI=true</code> serve them" in client.get(place).text
    refused = client.get(f"{place}/spark")
    assert (refused.status_code, "TIDEMARK_SPARK_UI=true" in refused.text) == (404, True)
    writers.renew(lease, "local-1", served)
    link = f'<a href="{served}" rel="noreferrer">{served}</a>, from the driver&#39;s host only'
    wait_for("the link", lambda: link.replace("&#39;", "'") in client.get(place).text, 30)
    led = client.get(f"{place}/spark")
    assert (led.status_code, led.headers["location"]) == (303, served)
    nobody = client.get("/pipelines/isp_hits/spark")
    assert (nobody.status_code, "no driver runs" in nobody.text) == (404, True)


def test_pages_say_so_when_the_driver_runs_older_code_than_is_deployed(
    client: httpx.Client, lease: writers.Lease
) -> None:
    writers.note_code(lease, {**loaded_code(), "spark_jobs/sinks/landing.py": "0123456789ab"})
    said = "has, in spark_jobs/sinks/landing.py; "
    for place in ("/", f"/pipelines/{NAME}"):
        wait_for("the page to say it", lambda p=place: said in client.get(p).text, 30)
    state = client.get(f"/pipelines/{NAME}?format=json").json()["state"]
    assert state["new_code"].startswith(f"The driver runs other code than {socket.gethostname()} has")
    writers.note_code(lease, loaded_code())
    wait_for("the page to end it", lambda: said not in client.get("/").text, 30)


@pytest.mark.browser
@pytest.mark.parametrize("path", ["", f"pipelines/{NAME}"])
def test_page_fits_when_the_screen_is_a_telephone_s(browser: Any, address: str, path: str) -> None:
    browser.get(f"{address}{path}?token={TOKEN}")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= 375
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.browser
def test_focus_stays_where_it_is_when_the_page_updates(browser: Any, address: str, log: Path) -> None:
    browser.get(f"{address}pipelines/{NAME}?token={TOKEN}")
    wait_for("the page", lambda: shown(browser, "#log"), 30)
    browser.execute_script("document.getElementById('log').focus()")
    log.write_text("another line\n")
    wait_for("an update", lambda: "another line" in shown(browser, "#log"), 30)
    assert browser.execute_script("return document.activeElement.id") == "log"


@pytest.mark.slow
@pytest.mark.browser
def test_page_says_that_it_is_cut_off_when_the_server_is_gone(browser: Any, postgres: Home, log: Path) -> None:
    with serving(app_alone(TOKEN, "eve@host"), 0) as served:
        browser.get(f"{served}?token={TOKEN}")
        wait_for("the events", lambda: "Live" in shown(browser, "#connection"), 30)
    wait_for("the page to say it", lambda: "Cut off" in shown(browser, "#connection"), 60)
    assert "keeping" not in shown(browser, "#connection")
