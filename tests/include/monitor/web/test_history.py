"""Intervals, tables and quarantine on the web pages: over a real ledger and lake, and in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select, update

from include import lake, quarantine
from include.doctor.watch import doctor_watch
from include.errors import UsageError
from include.ledger import quarantine as ledger_quarantine
from include.ledger.database import session
from include.ledger.intervals import attempts
from include.ledger.intervals.findings import ExpectationResult
from include.ledger.models import Build, ExpectationRow, IntervalRange, IntervalRow, MicroBatchRange, QuarantineCount
from include.ledger.quarantine import RecordKey
from include.ledger.validation import approvals
from include.monitor.history.remedies import run_command
from include.monitor.live_page import serving
from include.monitor.streams import page as streams
from include.monitor.web.alone import app_alone
from include.offsets import OffsetRange
from include.pipelines import Declarations, load_pipeline
from include.times import format_time
from tests.conftest import Home, last_hours, wait_for
from tests.support.browser import COLOURS, show_in, telephone, violations
from tests.support.committed import commit_recreated
from tests.support.corpora import NAUGHTY
from tests.support.erased_records import being_erased
from tests.support.pages_world import PER_HOUR, BadRecord, World

pytestmark = pytest.mark.services

TOKEN = "t" * 43
NAME = "isp_hits"
START = last_hours(8)
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b[31m\u202e\x07"
TO_BE_DISCARDED = 1


@pytest.fixture(scope="module")
def world(postgres: Home) -> World:
    """Hours 0 to 2 registered, 3 rejected by its checkpoint, 4 never built, 5 under way; the later ones due."""
    made = World(load_pipeline(NAME), START)
    headers = [("header", text.encode("utf-8", "surrogatepass")) for text in NAUGHTY]
    bad = [
        BadRecord(HOSTILE.encode() + bytes(range(256)), headers=headers, detail=HOSTILE),
        BadRecord(b"to be discarded", reason="missing_field"),
        BadRecord(None, key=None, reason="missing_field", detail="no value"),
    ]
    for hour in range(6):
        made.stream(bad if hour == 0 else ())
    made.run(0, bad=len(bad), late=2)
    made.run(1, columns={NAME: {"device_id": "string", "battery": "int", "last_event": "struct<" + 9 * "a:string,"}})
    now = {"device_id": "string", "battery": "bigint", "last_event": "struct<" + 8 * "a:string,", "room": "string"}
    made.run(2, code="v2", columns={NAME: now, made.pipeline.tables[1]: {"count": "bigint"}})
    made.run(3, passed=False)
    attempts.begin_attempt(made.pin(5), run_by="airflow test", code_version="v2", source="kafka")
    return made


@pytest.fixture(scope="module")
def address(world: World) -> Iterator[str]:
    # Discard the look of an earlier module at another lake.
    doctor_watch.cache_clear()
    with serving(app_alone(TOKEN, "eve@host"), 0) as served:
        yield served.rstrip("/")


@pytest.fixture
def client(address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=address, timeout=60, follow_redirects=True) as client:
        client.get("/", params={"token": TOKEN})
        yield client


def label(world: World, hour: int) -> str:
    return world.interval(hour).label


def record_at(world: World, offset: int) -> dict[str, Any]:
    return {"topic": world.topic, "partition": 0, "offset": offset}


def test_failures_come_first_when_the_calendar_shows_every_state(client: httpx.Client, world: World) -> None:
    data = client.get("/intervals?format=json").json()
    strip = next(each for each in data["strips"] if each["table"] == NAME)
    cells = {cell["label"]: cell for day in strip["days"] for cell in day["cells"]}
    states = [cells[label(world, hour)]["state"] for hour in range(7)]
    assert states == ["registered", "registered", "registered", "failed", "missing", "pinned", "due"]
    assert (cells[label(world, 0)]["late"], cells[label(world, 1)]["late"]) == (2, 0)
    assert cells[label(world, 1)]["rows"] == PER_HOUR
    # One more hour is due when the clock has passed another since the world was made.
    assert [each["state"] for each in data["attention"]][:4] == ["failed", "missing", "due", "due"]
    assert {each["state"] for each in data["attention"][4:]} <= {"due"}
    failed = data["attention"][0]["advice"]
    assert "validation failed" in failed["meaning"]
    assert failed["command"].startswith(f"./tidemark interval {NAME} --from ")
    assert data["strips"][0]["pipeline"] == NAME


def test_interval_links_to_file_range_and_record_when_it_is_opened(client: httpx.Client, world: World) -> None:
    place = f"/intervals/{NAME}/{label(world, 1)}"
    found = client.get(f"{place}?format=json").json()
    assert (found["state"], found["advice"], found["before"]) == ("registered", None, label(world, 0))
    (revision,) = found["tables"][NAME]
    named = {"table": NAME, "partition": revision["partition"], "revision": revision["revision"]}
    file = client.get(f"{place}/file", params={**named, "name": "part-0.parquet", "format": "json"}).json()
    assert file["is_there"]
    assert [each["from_offset"] for each in file["ranges"]] == [PER_HOUR]
    offsets = client.get(f"{place}/range", params={"topic": world.topic, "partition": 0, "format": "json"}).json()
    assert [(each["from_offset"], each["until_offset"]) for each in offsets["batches"]] == [(PER_HOUR, 2 * PER_HOUR)]
    record = client.get(f"{place}/record", params={**record_at(world, PER_HOUR + 3), "format": "json"}).json()
    assert record["fate"] == "archived"
    assert record["rows"][0]["words"] == f"row of offset {PER_HOUR + 3}"
    other = f"/intervals/{NAME}/{label(world, 0)}/record"
    bad = client.get(other, params={**record_at(world, 0), "format": "json"}).json()
    assert (bad["fate"], bad["quarantined"]["reason"]) == ("quarantined", "malformed_json")
    assert client.get(f"{place}/record", params=record_at(world, 0)).status_code == 404
    for wrong in (f"/intervals/{NAME}/2020-01-01T00", f"/intervals/{NAME}/nonsense", f"{place}/file?table=x"):
        assert client.get(wrong).status_code in (404, 422)


def test_record_s_rows_are_found_without_reading_the_rest_of_their_file(
    client: httpx.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pq.ParquetFile, "read")
    at = {**record_at(world, PER_HOUR + 3), "format": "json"}
    record = client.get(f"/intervals/{NAME}/{label(world, 1)}/record", params=at).json()
    assert [row["words"] for row in record["rows"]] == [f"row of offset {PER_HOUR + 3}"]


def test_missing_file_is_built_by_its_interval_only_when_its_revision_is_registered(
    client: httpx.Client, world: World
) -> None:
    for hour, command in ((2, run_command(NAME, world.interval(2))), (3, "")):
        place = f"/intervals/{NAME}/{label(world, hour)}"
        (revision,) = client.get(f"{place}?format=json").json()["tables"][NAME]
        named = {"table": NAME, "partition": revision["partition"], "revision": revision["revision"]}
        at = {**named, "name": "part-0.parquet"}
        file = Path(lake.filesystem(f"{revision['location']}/part-0.parquet")[1])
        content = file.read_bytes()
        file.unlink()
        try:
            shown = client.get(f"{place}/file", params=at).text
        finally:
            file.write_bytes(content)
        assert "The file is missing" in shown
        # It builds for comparison, and throws away what it built.
        assert "tidemark rebuild" not in shown
        assert ("builds it again" in shown, command in shown) == (bool(command), True)


def test_findings_stand_on_the_pages_with_what_to_do_when_doctor_has_some(client: httpx.Client, world: World) -> None:
    place = f"/intervals/{NAME}/{label(world, 1)}"

    def looked() -> Any:
        look = client.get(f"{place}?format=json").json()["doctor"]
        return look if look["looked_at"] or look["error"] else None

    # The world's files do not have the noted sizes, and they are not in the catalog.
    look = wait_for("the doctor's first look", looked)
    assert look["error"] == ""
    kinds = {each["kind"] for each in look["found"]}
    assert kinds >= {"wrong size", "revision not in the catalog"}
    assert {each["interval"] for each in look["found"]} == {label(world, 1)}
    page = client.get(place).text
    assert "readers of the catalog do not see rows that are validated and registered" in page
    assert f"./tidemark interval {NAME} --from {format_time(world.interval(1).from_time)}" in page
    assert "the DAG <code>decide</code>" in page
    of_stream = client.get(f"/pipelines/{NAME}?format=json").json()["doctor"]["found"]
    assert {label(world, hour) for hour in range(3)} <= {each["interval"] for each in of_stream}
    assert f'<a href="{place}">' in client.get(f"/pipelines/{NAME}").text
    assert "disagreements of ledger, catalog and files" in client.get("/intervals").text


def test_meaning_is_shown_and_the_verdict_served_when_an_interval_failed(client: httpx.Client, world: World) -> None:
    place = f"/intervals/{NAME}/{label(world, 3)}"
    page = client.get(place).text
    assert "exit code 2: validation failed, nothing was registered" in page
    assert "What to do: read which expectation failed" in page
    assert "<td>expect_column_proportion_of_non_null_values_to_be_between</td><td>user</td><td>0.5</td>" in page
    assert client.get(f"{place}/verdict").json()["validation"]["success"] is False
    assert client.get(f"{place}/report").status_code == 404
    assert f'{place}/report"' not in page
    report = lake.uri("reports", NAME, f"{label(world, 3)}.html")
    lake.write_text(report, "<p>a report</p>")
    try:
        assert f'{place}/report"' in client.get(place).text
        assert client.get(f"{place}/report").text == "<p>a report</p>"
    finally:
        lake.delete_file(report)


def test_fields_that_the_schema_does_not_name_are_listed_when_the_verdict_has_some(
    client: httpx.Client, world: World
) -> None:
    place = f"/intervals/{NAME}/{label(world, 1)}"
    assert "Fields that the schema does not name" not in client.get(place).text
    first = {"topic": world.topic, "partition": 0, "offset": PER_HOUR + 3}
    paths = [{"path": "at.<floor>", "records": 4, "share": 0.4, "first": first}]
    with session() as ledger:
        of_hour = (IntervalRow.pipeline == NAME, IntervalRow.from_time == world.interval(1).from_time)
        before = ledger.scalar(select(IntervalRow.verdict).where(*of_hour))
        noted = {**(before or {}), "unknown_fields": {"paths": paths, "further_paths": 7}}
        ledger.execute(update(IntervalRow).where(*of_hour).values(verdict=noted))
    try:
        page = unescape(client.get(place).text)
    finally:
        with session() as ledger:
            ledger.execute(update(IntervalRow).where(*of_hour).values(verdict=before))
    assert '<td>at.<floor></td><td class="n">4</td><td class="n">40.0 %</td>' in page
    assert f"offset={PER_HOUR + 3}" in page
    assert "7 more paths" in page


def test_counts_stay_when_a_file_of_the_quarantine_is_missing(client: httpx.Client, world: World) -> None:
    place = f"quarantine/{NAME}/0.parquet"
    file = Path(lake.filesystem(lake.uri(place))[1])
    content = file.read_bytes()
    file.unlink()
    try:
        page, data = client.get(f"/quarantine/{NAME}"), client.get(f"/quarantine/{NAME}?format=json").json()
        whole = client.get(f"/quarantine/{NAME}/record", params=record_at(world, 0))
        file.write_bytes(content[: len(content) // 2])
        damaged = client.get(f"/quarantine/{NAME}")
        interval = f"/intervals/{NAME}/{label(world, 0)}"
        offsets = client.get(f"{interval}/range", params={"topic": world.topic, "partition": 0})
        bad, good = (client.get(f"{interval}/record", params=record_at(world, offset)) for offset in (0, 5))
    finally:
        file.write_bytes(content)
    assert {each.status_code for each in (page, damaged, offsets, bad, good)} == {200}
    assert f'<td class="n">0</td><td class="n">{PER_HOUR}</td><td class="n">{PER_HOUR - 3}</td>' in offsets.text
    assert "archived or quarantined" in bad.text
    assert "row of offset 5" in good.text
    assert {each["reason"] for each in data["totals"]} == {"malformed_json", "missing_field"}
    assert data["records"] == []
    for text in (page.text, whole.text, damaged.text, offsets.text, bad.text):
        assert place in text
        assert "./tidemark doctor" in text
    assert whole.status_code == 500


def test_calendar_is_refused_when_its_pipeline_is_not_declared(client: httpx.Client, world: World) -> None:
    assert client.get("/intervals?pipeline=nope").status_code == 404
    strips = client.get(f"/intervals?pipeline={NAME}&format=json").json()["strips"]
    assert {each["pipeline"] for each in strips} == {NAME}


def test_tables_are_named_in_a_line_when_nothing_of_them_is_pinned(client: httpx.Client, world: World) -> None:
    page = client.get("/intervals").text
    assert f'id="strip-{NAME}"' in page
    assert 'id="strip-nest_cameras"' not in page
    assert '<a href="/tables/nest_cameras">nest_cameras</a>' in page.partition("Nothing pinned yet: ")[2]


def test_nothing_is_claimed_when_no_pipeline_can_be_shown(
    client: httpx.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = UsageError("include/pipelines/broken.py: <invalid> syntax", remedy="correct it")
    found = Declarations((), {"broken": refused})
    monkeypatch.setattr("include.monitor.web.rights.declarations", lambda: found)
    assert "no interval failed" not in client.get("/intervals").text
    page = client.get("/").text
    assert "<title>(1) Streams" in page
    assert "include/pipelines/broken.py: &lt;invalid&gt; syntax" in page
    assert "What to do: correct it" in page
    monkeypatch.setattr("include.monitor.web.rights.declarations", lambda: Declarations((), {}))
    monkeypatch.setattr("include.monitor.streams.page.pipeline_names", lambda: ())
    assert "No pipeline is declared" in client.get("/").text


def test_streams_say_how_many_intervals_need_attention(
    client: httpx.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("include.monitor.streams.page._attention", type(streams._attention)())
    count = client.get("/?format=json").json()["intervals"]
    calendar = client.get("/intervals?format=json").json()
    assert count == len(calendar["attention"]) + calendar["attention_left_out"] - calendar["on_their_way"] > 2
    assert f'<a href="/intervals">{count} intervals</a> need attention' in client.get("/").text


def test_table_leads_with_its_first_hole(client: httpx.Client, world: World) -> None:
    page = client.get(f"/tables/{NAME}").text
    assert f"Complete until {format_time(world.interval(3).from_time)}" in page
    assert f'<a href="/intervals/{NAME}/{label(world, 3)}">{label(world, 3)}</a> (failed)' in page


def test_pages_lead_on_to_each_other(client: httpx.Client, world: World) -> None:
    stream = client.get(f"/pipelines/{NAME}").text
    for href in (f"/intervals?pipeline={NAME}", f"/tables/{NAME}", f"/quarantine/{NAME}?reason=missing_field"):
        assert f'href="{href}"' in stream, href
    quarantine = client.get(f"/quarantine/{NAME}").text
    assert f'<a href="/">Streams</a> › <a href="/pipelines/{NAME}">{NAME}</a>' in quarantine
    ids = re.findall(r' id="([^"]*)"', quarantine)
    assert len(ids) == len(set(ids))
    table = client.get(f"/tables/{NAME}?days=7").text
    assert 'name="days" min="1" max="92" value="7"' in table
    assert '<rect class="quarantined"' in table
    assert "data-age" in table


def test_command_is_named_until_somebody_decides_when_an_interval_waits(client: httpx.Client, world: World) -> None:
    place = f"/intervals/{NAME}/{label(world, 3)}?format=json"
    with session() as ledger:
        build = ledger.scalar(
            select(Build.id).join(IntervalRow).where(IntervalRow.from_time == world.interval(3).from_time)
        )
    assert build is not None
    warned = ExpectationResult(NAME, "expect_rows", "", "50 to 294 rows", False, "7", 0, severity="warn")
    question = approvals.ask(build, "suite", (warned,)).id
    advice = client.get(place).json()["advice"]
    assert "waits for somebody's approval" in advice["meaning"]
    assert advice["command"].startswith(f"./tidemark approve {NAME} --from ")
    assert f"--question {question} " in advice["command"]
    calendar = client.get("/intervals?format=json").json()
    assert calendar["attention"][0]["advice"] == advice
    approvals.decide(question, approved=False, by="ada", reason="rows are missing")
    assert "exit code 2" in client.get(place).json()["advice"]["meaning"]


def test_trend_holds_rows_expectations_and_changes_when_a_table_has_some(client: httpx.Client, world: World) -> None:
    data = client.get(f"/tables/{NAME}?format=json").json()
    assert [point["rows"] for point in data["points"]] == [PER_HOUR - 3, PER_HOUR, PER_HOUR, None]
    assert [point["failed_expectations"] for point in data["points"]] == [0, 0, 0, 1]
    trends = {each["key"]: each for each in data["trends"]}
    assert [(mark["place"], mark["words"].split(": ", 1)[1]) for mark in trends["rows"]["marks"]] == [
        (2, "code v1 became v2"),
        (2, "column battery: int became bigint; column last_event has another type; column room is new"),
    ]
    counts = client.get(f"/tables/{world.pipeline.tables[1]}?format=json").json()
    # The earlier build has no values.
    assert [mark["place"] for each in counts["trends"] if each["key"] == "rows" for mark in each["marks"]] == [2]
    assert trends["unexplained"]["series"][0]["values"] == [0, 0, 0, 0]
    (expectation,) = data["expectations"]
    assert (expectation["judged"], expectation["met"], expectation["trend"]["bounds"]) == (4, 3, [0.9])
    assert expectation["trend"]["series"][0]["values"][-1] == 0.5
    page = client.get(f"/tables/{NAME}").text
    assert "75.0 %" in page
    assert "column room is new" in page
    assert client.get("/tables/nothing").status_code == 404
    assert client.get(f"/tables/lake.{NAME}?format=json").json()["points"] == data["points"]


def test_erased_offsets_have_a_column_when_there_are_any(client: httpx.Client, world: World) -> None:
    place = f"/intervals/{NAME}/{label(world, 1)}"
    pages = (f"/tables/{NAME}", place, f"{place}/range?topic={world.topic}&partition=0")
    assert not [page for page in pages if "Erased" in client.get(page).text]
    erase(3, world.range(1))
    try:
        assert not [page for page in pages if "Erased" not in client.get(page).text]
        data = client.get(f"/tables/{NAME}?format=json").json()
        (stack,) = (each for each in data["trends"] if each["key"] == "fates")
        assert stack["series"][-1] == {"name": "erased", "values": [0, 3, 0, 0], "colour": "erased"}
    finally:
        erase(0, world.range(1))


def test_erased_record_s_rows_are_not_shown_when_its_interval_is_not_built_again_yet(
    client: httpx.Client, world: World
) -> None:
    at, place = record_at(world, PER_HOUR + 3), f"/intervals/{NAME}/{label(world, 1)}/record"
    with being_erased(NAME, RecordKey(world.topic, world.range(1).topic_id, 0, PER_HOUR + 3)):
        shown = client.get(place, params={**at, "format": "json"}).json()
        assert (shown["fate"], shown["rows"], shown["file"]) == ("erased", [], "")
        assert f"row of offset {PER_HOUR + 3}" not in client.get(place, params=at).text


def erase(count: int, offsets: OffsetRange) -> None:
    """Count so many records of the range as erased, as an erasure leaves them."""
    with session() as ledger:
        for table in (IntervalRange, MicroBatchRange):
            of_range = (table.topic == offsets.topic_partition.topic, table.from_offset == offsets.from_offset)
            ledger.execute(update(table).where(*of_range).values(erased=count, archived=PER_HOUR - count))


def test_observed_value_is_kept_when_an_expectation_passed(world: World) -> None:
    with session() as ledger:
        rows = ledger.scalars(select(ExpectationRow).where(ExpectationRow.table_name == NAME)).all()
    assert sorted((row.success, row.value, row.low) for row in rows) == [
        (False, 0.5, 0.9), (True, 0.95, 0.9), (True, 0.96, 0.9), (True, 0.97, 0.9)
    ]  # fmt: skip


def test_quarantine_is_counted_by_reason_when_a_micro_batch_commits(client: httpx.Client, world: World) -> None:
    with session() as ledger:
        rows = ledger.scalars(select(QuarantineCount).where(QuarantineCount.pipeline == NAME)).all()
    assert {(row.reason, row.records) for row in rows} == {("malformed_json", 1), ("missing_field", 2)}
    data = client.get(f"/quarantine/{NAME}?format=json").json()
    assert {each["reason"]: each["records"] for each in data["totals"]} == {"malformed_json": 1, "missing_field": 2}
    assert [each["kafka_offset"] for each in data["records"]] == [0, 1, 2]
    only = client.get(f"/quarantine/{NAME}", params={"reason": "malformed_json", "format": "json"}).json()
    assert [each["kafka_offset"] for each in only["records"]] == [0]


def test_record_is_shown_and_downloaded_whole_when_it_is_in_quarantine(client: httpx.Client, world: World) -> None:
    value = HOSTILE.encode() + bytes(range(256))
    data = client.get(f"/quarantine/{NAME}/record", params={**record_at(world, 0), "format": "json"}).json()
    assert data["value"]["size"] == len(value)
    assert bytes.fromhex("".join(line[1] for line in data["value"]["lines"])) == value
    assert "\\x1b" in data["value"]["text"]
    assert "\\u202e" in data["value"]["text"]
    download = client.get(f"/quarantine/{NAME}/download", params=record_at(world, 0))
    assert download.content == value
    assert download.headers["content-type"] == "application/octet-stream"
    assert download.headers["content-disposition"].startswith("attachment")
    assert client.get(f"/quarantine/{NAME}/download", params=record_at(world, 2)).status_code == 404
    assert client.get(f"/quarantine/{NAME}/record", params=record_at(world, 5)).status_code == 404


def test_fields_are_named_when_a_record_is_of_the_wrong_type(
    client: httpx.Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = quarantine.find(NAME, world.tp, 0)
    wrong = {**raw, "reason": "wrong_type", "value": b'{"hittime": "<b>noon", "zipcode": 10001}'}
    monkeypatch.setattr(quarantine, "find", lambda *_: wrong)
    page = client.get(f"/quarantine/{NAME}/record", params=record_at(world, 0)).text
    assert "<li>hittime is text, &#34;&lt;b&gt;noon&#34;, and TIMESTAMP is declared</li>" in page


class Structure(HTMLParser):
    """The elements and attribute names of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def test_string_stays_text_when_it_is_naughty(client: httpx.Client, world: World) -> None:
    page = client.get(f"/quarantine/{NAME}/record", params=record_at(world, 0)).text
    tags = [tag for tag, _ in Structure(page).found]
    assert (tags.count("script"), tags.count("img"), tags.count("iframe"), tags.count("svg")) == (1, 0, 0, 0)
    assert not any(name.startswith("on") for _, names in Structure(page).found for name in names)
    assert re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page) is None
    data = client.get(f"/quarantine/{NAME}/record", params={**record_at(world, 0), "format": "json"}).json()
    assert len(data["headers"]) == len(NAUGHTY)


@pytest.mark.parametrize("decision", ["discard", "replay"])
def test_decision_is_refused_when_its_form_is_not_of_this_site(
    client: httpx.Client, world: World, decision: str
) -> None:
    place = f"/quarantine/{NAME}/{decision}"
    form = {**{name: str(value) for name, value in record_at(world, 2).items()}, "why": "a test"}
    client.get(f"/quarantine/{NAME}")
    assert client.post(place, data=form).status_code == 422
    assert client.post(place, data={**form, "form": "another"}).status_code == 403
    token = client.cookies["tidemark_form"]
    other = {"Origin": "http://evil.example"}
    assert client.post(place, data={**form, "form": token}, headers=other).status_code == 403
    assert decision == "replay" or client.post(place, data={**form, "form": token, "why": " "}).status_code == 422
    everything = {"why": "a test", "form": token}
    assert client.post(place, data=everything).status_code == 422
    for negative in ({"offset": "-1"}, {"partition": "-1"}):
        assert client.post(place, data={**form, **negative, "form": token}).status_code == 422
    assert client.get(place, params=form).status_code == 405
    decided = ledger_quarantine.decisions(NAME)
    assert {each.offset for each in decided.discards} <= {TO_BE_DISCARDED}
    assert (decided.replays, decided.failures) == ({}, {})


def test_page_acts_on_the_record_it_shows_when_its_topic_was_recreated(client: httpx.Client) -> None:
    name = "wiki_changes"
    commit_recreated(name)
    listed = client.get(f"/quarantine/{name}").text
    links = {unescape(each) for each in re.findall(r'href="([^"]*/record\?[^"]*offset=5[^"]*)"', listed)}
    assert len(links) == 2
    pages = {link: client.get(link).text for link in links}
    assert {unescape(re.findall(r"<pre[^>]*>([^<]*)</pre>", page)[0]) for page in pages.values()} == {"older", "newer"}
    (newer,) = [page for page in pages.values() if ">newer</pre>" in page]
    download = unescape(re.findall(r'href="([^"]*/download\?[^"]*part=value[^"]*)"', newer)[0])
    assert client.get(download).content == b"newer"
    form = next(each for each in re.findall(r"<form.*?</form>", newer, re.DOTALL) if "/discard" in each)
    hidden = {key: unescape(value) for key, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)}
    shown = client.post(f"/quarantine/{name}/discard", data={**hidden, "why": "a test"})
    assert ">newer</pre>" in shown.text
    assert [each.topic_id for each in ledger_quarantine.decisions(name).discards] == ["newer"]


def test_discard_of_a_reason_counts_all_of_it_and_says_what_it_did_when_its_records_are_old(
    client: httpx.Client,
) -> None:
    name, old = "gps_positions", World(load_pipeline("gps_positions"), START)
    old.stream([BadRecord(b"older"), BadRecord(b"newer")])
    offsets = {"topic": old.topic, "partition": "0", "offset": "0"}
    with session() as ledger:
        ledger.execute(
            update(QuarantineCount)
            .where(QuarantineCount.pipeline == name)
            .values(hour=QuarantineCount.hour - timedelta(days=40))
        )
    page = client.get(f"/quarantine/{name}").text
    assert "Decide about all, whenever they came" in page
    assert '<td class="n">0</td><td class="n">2</td>' in page
    form = {"form": client.cookies["tidemark_form"], "why": "a test"}
    assert "discarded</strong>" in client.post(f"/quarantine/{name}/discard", data={**form, **offsets}).text
    done = client.post(f"/quarantine/{name}/discard", data={**form, "code": "malformed_json"})
    said = "1 record with the reason malformed_json discarded; 1 had been replayed or discarded before."
    assert said in done.text


def texts(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    return list(browser.execute_script(script, selector))


def follow(browser: Any, selector: str) -> None:
    """Click the first element of a selector and wait for another page."""
    before = browser.current_url
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)
    wait_for("another page", lambda: browser.current_url != before, 30)


def complaints(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def page(browser: Any, address: str) -> Any:
    browser.get(f"{address}/?token={TOKEN}")
    complaints(browser)
    return browser


def every_page(world: World) -> list[str]:
    interval = f"/intervals/{NAME}/{label(world, 0)}"
    at = f"topic={world.topic}&partition=0"
    revision = f"table={NAME}&partition=date%3D{START:%Y-%m-%d}%2Finterval%3D{label(world, 0)}&revision=r1"
    return [
        "/intervals",
        interval,
        f"/intervals/{NAME}/{label(world, 3)}",
        f"{interval}/file?{revision}&name=part-0.parquet",
        f"{interval}/range?{at}",
        f"{interval}/record?{at}&offset=0",
        f"{interval}/record?{at}&offset=5",
        f"/tables/{NAME}",
        f"/quarantine/{NAME}",
        f"/quarantine/{NAME}/record?{at}&offset=0",
    ]


@pytest.mark.browser
def test_click_path_leads_to_a_record_and_back_when_it_begins_at_the_calendar(
    page: Any, address: str, world: World
) -> None:
    page.get(f"{address}/intervals")
    follow(page, f"#strip-{NAME} ~ .days a[href$='{label(world, 0)}']")
    assert page.current_url.endswith(f"/intervals/{NAME}/{label(world, 0)}")
    follow(page, "a[href*='/file?']")
    assert texts(page, "h1") == ["part-0.parquet"]
    follow(page, "a[href*='/range?']")
    follow(page, "form button")
    assert "quarantined" in texts(page, ".lead")[0]
    follow(page, "a[href*='/quarantine/']")
    assert texts(page, "h1") == [f"{world.topic}-0 offset 0"]
    assert "owned" not in page.title
    for _ in range(3):
        page.back()
    assert texts(page, "h1") == ["part-0.parquet"]
    follow(page, ".crumbs a:nth-of-type(2)")
    assert page.current_url.endswith(label(world, 0))
    assert complaints(page) == []


@pytest.mark.browser
def test_record_is_discarded_as_by_the_command_when_the_button_is_pressed(
    page: Any, address: str, world: World
) -> None:
    page.get(f"{address}/quarantine/{NAME}/record?topic={world.topic}&partition=0&offset={TO_BE_DISCARDED}")
    page.execute_script("document.querySelector('input[name=why]').value = 'a <b>test</b>'")
    page.execute_script("document.querySelector('form[action$=discard] button').click()")
    wait_for("the decision", lambda: texts(page, ".state strong") == ["discarded"], 30)
    assert "a <b>test</b>" in texts(page, ".state")[0]
    (note,) = ledger_quarantine.decisions(NAME).discards.values()
    assert (note.noted_by, note.reason) == ("eve@host", "a <b>test</b>")
    assert complaints(page) == []


@pytest.mark.browser
def test_no_page_complains_or_is_too_wide_when_the_screen_is_a_telephone_s(
    page: Any, address: str, world: World
) -> None:
    with telephone(page):
        for path in every_page(world):
            page.get(address + path)
            assert texts(page, "h1") != [], path
            wide = page.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= 375, f"{path}: {wide}"
            assert "owned" not in page.title
            assert complaints(page) == [], path


@pytest.mark.browser
def test_pages_are_accessible_when_axe_checks_them(page: Any, address: str, world: World) -> None:
    for path in every_page(world):
        show_in(page, "light")
        page.get(address + path)
        assert violations(page) == [], path
        show_in(page, "dark")
        assert violations(page, COLOURS) == [], path


@pytest.mark.slow
@pytest.mark.browser
def test_dark_pages_are_accessible_when_axe_checks_all_of_them(page: Any, address: str, world: World) -> None:
    show_in(page, "dark")
    for path in every_page(world):
        page.get(address + path)
        assert violations(page) == [], path


@pytest.mark.browser
def test_calendar_is_reached_and_moved_in_when_only_the_keyboard_is_used(page: Any, address: str, world: World) -> None:
    from selenium.webdriver.common.keys import Keys

    page.get(f"{address}/intervals")
    stops = page.execute_script(
        "return [...document.querySelectorAll('.strip')].filter((e) => e.querySelector('.days a')).map("
        "(e) => e.querySelectorAll('.days a[tabindex=\"0\"]').length)"
    )
    assert set(stops) == {1}
    page.execute_script("document.querySelector(\"#strip-isp_hits ~ .days a[tabindex='0']\").focus()")
    first = page.switch_to.active_element
    row = page.execute_script("return [...arguments[0].parentElement.querySelectorAll('a')].length", first)
    moves = Keys.ARROW_RIGHT if row > 1 else Keys.ARROW_DOWN
    first.send_keys(moves)
    now = page.switch_to.active_element
    assert now.get_attribute("title") != first.get_attribute("title")
    page.execute_script("arguments[0].focus()", first)
    squares = [each.get_attribute("title") for each in page.find_elements("css selector", "#strip-isp_hits ~ .days a")]
    reached = [first.get_attribute("title")]
    for _ in squares[1:]:
        page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        reached.append(page.switch_to.active_element.get_attribute("title"))
    assert reached == squares, "a square cannot be reached"
    # An hour that was never pinned has no page.
    for _ in squares:
        if f"/intervals/{NAME}/" not in page.switch_to.active_element.get_attribute("href"):
            page.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    now = page.switch_to.active_element
    before = page.current_url
    now.send_keys(Keys.ENTER)
    wait_for("the interval", lambda: page.current_url != before, 30)
    assert f"/intervals/{NAME}/" in page.current_url
