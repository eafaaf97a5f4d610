"""A person on call works in Airflow's pages: form, approval, streams that move, outages, calendar, trend, replay."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.conftest import Home, end_of, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_runs import state_once_ended, wait_for_success
from tests.support.airflow_ui import PAGES, AirflowUi, api_of, ui_of
from tests.support.browser import show_in, telephone, violations
from tests.support.busier import busier_before
from tests.support.canaries import Canaries, canaries, dump_of, files_of
from tests.support.receivers import Received, listening

pytestmark = [
    pytest.mark.services,
    pytest.mark.airflow,
    pytest.mark.browser,
    pytest.mark.own_drivers,
    pytest.mark.slow,
]

NAME = "nest_cameras"
STREAM, INTERVAL = f"stream__{NAME}", f"interval__{NAME}"
START = last_hours(3)
HOUR = START + timedelta(hours=1)
LABEL = f"{HOUR:%Y-%m-%dT%H}"
EVENTS = 3000
READ = ["/", f"/pipelines/{NAME}", "/intervals", f"/intervals/{NAME}/{LABEL}", f"/tables/{NAME}", f"/quarantine/{NAME}"]
"""Pages that every person on call reads."""

TakePicture = Callable[[Any, str], bytes]


def registered(home: Home) -> set[tuple[Any, ...]]:
    return set(home.ledger("SELECT table_name, table_partition FROM revisions WHERE state = 'registered'"))


def committed(home: Home) -> int:
    return int(home.ledger("SELECT coalesce(sum(next_offset), 0) FROM positions WHERE query = 'archive'")[0][0])


@pytest.fixture(scope="module")
def received() -> Iterator[Received]:
    """Receivers of mails, alerts and lineage."""
    with listening() as made:
        yield made


@pytest.fixture(scope="module")
def secrets(received: Received, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Canaries]:
    """A canary in each secret setting; all processes meanwhile are watched."""
    with canaries(tmp_path_factory.mktemp("secrets"), received) as made:
        yield made


@pytest.fixture(scope="module")
def airflow(home: Home, secrets: Canaries) -> Iterator[AirflowApi]:
    """Airflow with a stream that has caught up; DAGs of intervals take what a form asks for."""
    # A driver's event log holds its whole configuration.
    events = home.path / "logs" / "events"
    events.mkdir(parents=True)
    noted = {"enabled": "true", "compress": "false", "dir": events.as_uri()}
    options = " ".join(f"-Dspark.eventLog.{name}={value}" for name, value in noted.items())
    extra = {"TIDEMARK_ARCHIVE_WAIT": "10m", "TIDEMARK_UNUSUAL": "warn", "TIDEMARK_JVM_OPTIONS": options}
    home.run("up", "airflow", **extra, **secrets.settings)
    secrets.made_by(home)
    api = api_of(home)
    wait_for("the DAGs", lambda: {STREAM, INTERVAL, "decide"} <= api.dag_ids(), 120)
    home.run("produce", NAME, "--events", str(EVENTS), "--bad-fraction", "0.02", "--start", iso(START), "--span", "2h")
    api.set_paused(STREAM, False)
    wait_for("the stream to catch up", lambda: committed(home) == EVENTS)
    yield api
    api.set_paused(STREAM, True)
    home.run("stream", NAME, "--stop", expect=None)
    wait_for("the driver to end", lambda: home.ledger("SELECT holder FROM writers") == [("",)], 120)


@pytest.fixture
def ui(home: Home, airflow: AirflowApi, browser: Any) -> Iterator[AirflowUi]:
    """A person who has logged in; whatever they did, no page has complained."""
    made = ui_of(home, browser)
    made.log_in(PAGES)
    yield made
    assert made.complaints() == []


def seconds_of(text: str) -> float:
    """The seconds of a duration in words, `1 min 3 s`."""
    units = {"h": 3600, "min": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (h|min|s)\b", text))


def lag(ui: AirflowUi) -> float:
    return seconds_of(ui.text("#lag-seconds"))


def new_run(api: AirflowApi, dag: str, known: set[str]) -> str:
    [run] = wait_for("the run", lambda: {each["dag_run_id"] for each in api.runs(dag)} - known, 60)
    return str(run)


def runs(api: AirflowApi, dag: str) -> set[str]:
    return {each["dag_run_id"] for each in api.runs(dag)}


def test_rates_move_by_themselves_while_events_flow(home: Home, ui: AirflowUi, take_picture: TakePicture) -> None:
    producer = home.start("produce", NAME, "--events", "9000", "--rate", "60", "--start", iso(START), "--span", "2h")
    try:
        with ui.pages(f"/pipelines/{NAME}"):
            ui.wait("the events", "document.querySelector('#connection').innerText.startsWith('Live')")
            loaded = ui.browser.execute_script("return performance.timeOrigin")
            seen: dict[str, None] = {}

            def rates() -> int:
                seen[ui.text("#query-1 dd")] = None
                return len([each for each in seen if each not in ("", "0/s")]) >= 3

            wait_for("the rates to move", rates, 120)
            assert ui.browser.execute_script("return performance.timeOrigin") == loaded
            assert ui.text("#sentence").startswith("Keeping up")
            take_picture(ui.browser, "stream")
    finally:
        end_of(producer)
    wait_for("the stream to catch up", lambda: not any(each["lag"] for each in home.json("lag", NAME, "--json")))


def test_seconds_behind_rise_when_driver_and_broker_are_killed_and_end_when_they_are_back(
    home: Home, airflow: AirflowApi, ui: AirflowUi
) -> None:
    airflow.set_paused(STREAM, True)
    [(holder,)] = home.ledger("SELECT holder FROM writers")
    os.kill(int(holder.split(":")[1]), signal.SIGKILL)
    home.run("produce", NAME, "--events", "50", "--start", iso(START), "--span", "2h")
    with ui.pages(f"/pipelines/{NAME}"):
        wait_for("the page to say it", lambda: ui.text("#sentence").startswith("No driver runs"), 60)
        # It says so while something waits.
        wait_for("what to do", lambda: "unpause the DAG" in ui.text("#now"), 60)
        first = wait_for("seconds", lambda: lag(ui), 60)
        second = wait_for("more seconds", lambda: (now := lag(ui)) > first + 2 and now, 60)
        os.kill(home.process_id("kafka"), signal.SIGKILL)
        wait_for("the page to say it", lambda: ui.text("#sentence").startswith("Kafka cannot be seen"), 90)
        third = wait_for("seconds of the outage", lambda: (now := lag(ui)) > second + 2 and now, 60)
        wait_for("more of them", lambda: lag(ui) > third + 2, 60)
        assert "./tidemark up kafka" in ui.text("#now")
        home.run("up", "kafka")
        airflow.set_paused(STREAM, False)
        wait_for("the stream", lambda: ui.text("#sentence").startswith("Keeping up, nothing waits"), 240)
        assert "killed" in ui.text("#restarts")


def test_interval_of_the_form_is_in_grid_calendar_and_trend(
    airflow: AirflowApi, ui: AirflowUi, take_picture: TakePicture
) -> None:
    airflow.set_paused(INTERVAL, False)
    known = runs(airflow, INTERVAL)
    ui.open_form(INTERVAL)
    ui.open_section("Which interval")
    ui.fill_time("From", HOUR)
    ui.fill_time("To", HOUR + timedelta(hours=1))
    take_picture(ui.browser, "form")
    ui.submit()
    run = wait_for(
        "the run",
        lambda: next((each["dag_run_id"] for each in airflow.runs(INTERVAL) if each["conf"].get("from")), None),
        60,
    )
    assert run not in known
    wait_for_success(airflow, INTERVAL, run, 600)
    ui.open_grid(INTERVAL)
    cell = f"[data-testid='grid-{run}-publish'] [data-testid=task-state-badge]"
    ui.wait("the grid", f"document.querySelector({cell!r})")
    take_picture(ui.browser, "airflow")
    with ui.pages("/intervals") as page:
        assert NAME in ui.text("main")
        take_picture(page, "intervals")
        page.execute_script(f"document.querySelector('#strip-{NAME} ~ .days a.registered[href$=\"{LABEL}\"]').click()")
        ui.wait("the interval", f"location.pathname.endsWith('{LABEL}')")
        assert "registered" in ui.text("main")
    with ui.pages(f"/tables/{NAME}") as page:
        assert page.execute_script("return document.querySelectorAll('main svg').length") > 3
        assert "Rows per interval" in ui.text("main")


def test_replay_of_quarantine_is_begun_by_its_button_and_told_when_it_ends(home: Home, ui: AirflowUi) -> None:
    with ui.pages(f"/quarantine/{NAME}") as page:
        [reason] = home.ledger(
            "SELECT reason FROM quarantine_counts GROUP BY reason ORDER BY sum(records) DESC LIMIT 1"
        )[0]
        page.execute_script(
            "[...document.querySelectorAll('form[action$=replay] button')].find("
            "(b) => b.innerText.endsWith(arguments[0])).click()",
            reason,
        )
        ui.wait("the replay", "document.querySelector('[role=status]')")

        def told() -> str:
            page.refresh()
            page.switch_to.default_content()
            with ui.pages(f"/quarantine/{NAME}"):
                return ui.text(".state.good")

        assert "by airflow:admin ended" in wait_for("its end", told, 300)


def test_decision_is_taken_by_form_and_required_action(home: Home, airflow: AirflowApi, ui: AirflowUi) -> None:
    airflow.set_paused("decide", False)
    code = "trailing_content"
    ui.open_form("decide")
    ui.fill("Decision", "discard")
    ui.fill("Pipeline", NAME)
    ui.open_section("Record in quarantine")
    ui.fill("Reason code", code)
    known = runs(airflow, "decide")
    ui.submit()
    run = new_run(airflow, "decide", known)
    wait_for("the question", lambda: airflow.tasks("decide", run).get("approve") == "awaiting_input", 120)
    # A test answers before the process that asked has ended, unlike a person, and Airflow then asks once more.
    told = f"Received executor event with state success.*task_id='approve', run_id='{re.escape(run)}'"
    log = home.path / "logs" / "airflow.log"
    wait_for("the process that asked to end", lambda: re.search(told, log.read_text()), 60)
    asked = ui.open_question("decide", run, "approve")
    assert f"discard from quarantine of {NAME}?" in asked
    # A line each, not one long one.
    lines = [line for line in asked.splitlines() if line.startswith(("chosen:", "reason ", "record:"))]
    assert len(lines) >= 3
    ui.answer("Approve", "looked at in the browser")
    wait_for_success(airflow, "decide", run, 120)
    listed = json.loads(home.run("quarantine", "list", NAME, "--json").stdout)
    records = [each for each in listed if each["reason"] == code]
    assert records
    assert {each["state"] for each in records} == {"discarded"}


def test_interval_that_only_warns_is_refused_and_then_approved_by_a_person(
    home: Home, airflow: AirflowApi, ui: AirflowUi, take_picture: TakePicture
) -> None:
    wait_for(
        "other runs", lambda: all(state_once_ended(airflow, INTERVAL, each) for each in runs(airflow, INTERVAL)), 600
    )
    before = registered(home)
    airflow.set_paused(INTERVAL, False)

    def asked() -> str:
        run = airflow.trigger(INTERVAL, **{"from": iso(START), "to": iso(HOUR)})
        wait_for("it to ask", lambda: airflow.tasks(INTERVAL, run).get("publish") == "deferred", 600)
        return run

    # Nothing lies between these and the interval, so that it has far fewer rows than usual: a warning, and no more.
    with busier_before(home, NAME, START):
        with_busier = registered(home)
        run = asked()
        said = ui.open_question(INTERVAL, run, "publish")
        assert f"{NAME} {START:%Y-%m-%dT%H}" in said
        assert "Refusing leaves the catalog as it was" in said
        take_picture(ui.browser, "approval")
        ui.answer("Refuse", "too few for this hour")
        assert wait_for("its end", lambda: state_once_ended(airflow, INTERVAL, run), 300) == "failed"
        assert registered(home) == with_busier
        run = asked()
        ui.open_question(INTERVAL, run, "publish")
        ui.answer("Approve", "a quiet hour")
        wait_for_success(airflow, INTERVAL, run, 600)
    assert {table for table, _ in registered(home) - before} == {NAME, f"{NAME}_hourly_counts"}
    assert before <= registered(home)
    decided = home.ledger("SELECT approved, decided_by, reason FROM approvals WHERE approved IS NOT NULL ORDER BY id")
    assert decided == [(False, "airflow admin", "too few for this hour"), (True, "airflow admin", "a quiet hour")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_by_axe_in_airflows_frame(ui: AirflowUi, scheme: str) -> None:
    show_in(ui.browser, scheme)
    try:
        for path in READ:
            with ui.pages(path) as page:
                assert violations(page) == [], path
    finally:
        show_in(ui.browser, "light")


@pytest.mark.parametrize("path", READ)
def test_keyboard_reaches_everything_in_the_frame(ui: AirflowUi, path: str) -> None:
    named = "(e) => e.id || e.getAttribute('href') || e.getAttribute('aria-label') || e.innerText || e.name"
    reachable = (
        "return [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex]')].filter("
        f"(e) => e.tabIndex >= 0 && e.type !== 'hidden' && e.checkVisibility()).map({named})"
    )
    with ui.pages(path) as page:
        wanted = set(page.execute_script(reachable))
        page.execute_script("document.querySelector('a.skip').focus()")
        reached = set()
        for _ in range(3 * len(wanted) + 20):
            focused = page.switch_to.active_element
            reached.add(page.execute_script(f"return ({named})(arguments[0])", focused))
            if reached >= wanted:
                break
            focused.send_keys(Keys.TAB)
        assert wanted - reached == set()


def test_pages_fit_a_telephone_in_airflows_frame(ui: AirflowUi) -> None:
    with telephone(ui.browser):
        for path in READ:
            with ui.pages(path) as page:
                wide, room = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
                assert wide <= room <= 375, path


def test_dag_shows_its_docs_with_the_picture(ui: AirflowUi) -> None:
    ui.open_grid(INTERVAL)
    ui.click(ui.find("[data-testid=markdown-button]"))
    ui.wait("the picture", "document.querySelector('[role=dialog] img')?.naturalWidth > 100")
    # The page has another, invisible dialog.
    assert "pin_ranges" in ui.text("[role=dialog]:has(img)")


def test_what_was_landed_meanwhile_is_there_once(home: Home, ui: AirflowUi) -> None:
    files = home.ledger("SELECT path FROM landing_files WHERE fate = 'archived'")
    landed = audit.read_files(home.lake / path for (path,) in files)
    assert set(audit.identities(landed).values()) == {1}


def test_no_secret_is_in_arguments_logs_databases_pages_metrics_or_what_was_sent(
    home: Home, airflow: AirflowApi, ui: AirflowUi, secrets: Canaries, received: Received
) -> None:
    assert len(secrets.values) == 13
    assert any("spark_jobs/stream.py" in line for line in secrets.arguments)
    assert [line for line in secrets.arguments if secrets.told_by(line)] == []
    read = dict(files_of(home))
    assert any("task_id=publish" in path for path in read)
    assert any(path.startswith("logs/streams/") for path in read)
    assert len({path for path in read if path.startswith("logs/events/")}) >= 3
    assert {path: told for path, text in read.items() if (told := secrets.told_by(text))} == {}
    for database, table in (("airflow", "rendered_task_instance_fields"), ("ledger", "stream_launches")):
        dumped = dump_of(home, database)
        assert f"COPY public.{table}" in dumped
        assert secrets.told_by(dumped) == [], database
    for path in (*READ, "/metrics", *(f"{each}?format=json" for each in READ)):
        ui.browser.get(f"{ui.address}/tidemark{path}")
        assert secrets.told_by(ui.browser.page_source) == [], path
    # The secrets were used: the receivers got the interval's events, at the address and with the key of the settings.
    assert received.posts
    assert {(user, password) for user, password, _ in received.logins} == {("eve", secrets.values["mail"])}
    assert {mail["To"] for mail in received.mails} == {"operators@example.org"}
    assert {f"Bearer {secrets.values['lineage']}"} <= set(received.authorizations)
    assert secrets.told_by(json.dumps(received.posts) + "".join(map(str, received.mails))) == []
