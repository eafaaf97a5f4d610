"""isp_hits end to end: sliding windows, every sink of its views, the archive by zip code, and hostile hits."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.conftest import REPOSITORY, Home, end_of, iso, last_hours, wait_for
from tests.support import audit
from tests.support.hits import NAUGHTY, Window, archived, counts_by_zip, hit_of, told_by_topic
from tests.support.killed import was_killed
from tests.support.looked_at import those

pytestmark = pytest.mark.services

START = last_hours(3)
TOPIC = "isp-hits"
EVENTS = 1200


def good_hits(home: Home) -> dict[audit.Coordinates, dict[str, Any]]:
    found = {at: hit_of(record) for at, record in audit.read_topic(home.kafka, TOPIC).items()}
    return {at: each for at, each in found.items() if each is not None}


def counts_by_isp(rows: list[dict[str, Any]]) -> Counter[Window]:
    return Counter((each["isp"], int(each["seconds"]) // 86_400 * 86_400) for each in rows)


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


def served(home: Home, table: str, key: str) -> dict[Window, int]:
    rows = home.rows("serving", f"SELECT {key}, extract(epoch FROM window_start)::bigint, hits FROM {table}")
    return {(name, start): hits for name, start, hits in rows}


def hostile() -> list[bytes | None]:
    """Hostile messages, and each naughty string as zip code, as provider and as user."""
    moment = iso(START + timedelta(minutes=90))
    good = {"zipcode": "94103", "hittime": moment, "isp": "Northwind Cable", "user": "u"}
    messages: list[bytes | None] = [
        None,
        b"",
        b'{"devices": {}}',
        json.dumps({**good, "user": "x" * 1_100_000}).encode(),
    ]
    messages += [
        json.dumps({**good, "hittime": time}).encode() for time in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
    ]
    for text in NAUGHTY:
        messages += [json.dumps({**good, name: text}).encode() for name in ("zipcode", "isp", "user")]
    return messages


@pytest.fixture(scope="module")
def streamed(home: Home) -> Home:
    """Three hours of hits with hostile ones among them; the driver was killed between PostgreSQL and the ledger."""
    home.produce("isp_hits", EVENTS, START, "3h", bad=0.03, seed=5)
    producer = home.producer(**{"message.max.bytes": 4_000_000})
    at = int((START + timedelta(minutes=90)).timestamp() * 1000)
    for number, value in enumerate(hostile()):
        producer.produce(TOPIC, value, None if number % 2 else b"\xff", timestamp=at)
        producer.poll(0)
    assert producer.flush(30) == 0
    killed = home.run(
        "stream", "isp_hits", "--until-caught-up", expect=None,
        TIDEMARK_CRASH_AT="jdbc_committed:2", TIDEMARK_MAX_OFFSETS_PER_TRIGGER="2000",
    )  # fmt: skip
    assert was_killed(killed), killed.stderr[-2000:]
    again = home.run("stream", "isp_hits", "--until-caught-up")
    assert "isp_hits.by_isp, version" in again.stderr
    return home


@pytest.fixture(scope="module")
def verdict(streamed: Home) -> dict[str, Any]:
    return streamed.interval("isp_hits", START + timedelta(hours=1))


def test_every_hit_has_one_fate_and_lies_by_date_and_zip_code_when_it_was_archived(
    streamed: Home, verdict: dict[str, Any]
) -> None:
    assert verdict["reconciliation"]["unexplained"] == 0
    # Windows that reach into other hours, and the day's, hold rows of other intervals too.
    assert {d["class"] for d in verdict["differences"]} <= {"pending"}
    assert verdict["reconciliation"]["matched"] > 0
    records = verdict["records"]
    assert (
        records["in_ranges"]
        == records["archived"] + records["quarantined"]
        == sum(r["until_offset"] - r["from_offset"] for r in verdict["ranges"])
    )
    inside = audit.in_ranges(audit.read_topic(streamed.kafka, TOPIC), verdict["ranges"])
    good = {at: each for at, each in good_hits(streamed).items() if at in inside}
    archive = [r for r in verdict["registered"] if r["table"] == "isp_hits"]
    table = audit.read_parquet([r["location"] for r in archive])
    # A naughty zip code may be harmless as a folder's name (`1`, `NaN`): those are archived under it.
    extra = {at for at in audit.coordinates_of(table) if at not in good}
    assert {at for at in good if (*at, 0) not in audit.identities(table)} == set()
    texts = {json.loads(inside[at].value or b"")["zipcode"] for at in extra}
    assert all(text in NAUGHTY and text.isascii() and "/" not in text for text in texts)
    assert max(audit.identities(table).values()) == 1
    for each in archive:
        date, zip_code, interval = (part.partition("=")[2] for part in each["partition"].split("/"))
        rows = audit.read_parquet([each["location"]]).to_pylist()
        assert {row["zipcode"] for row in rows} == {zip_code}
        assert {row["hittime"].strftime("%Y-%m-%d") for row in rows} == {date}
        assert each["partition"].split("/")[1].startswith("zip=")
        assert interval == (START + timedelta(hours=1)).strftime("%Y-%m-%dT%H")
        assert Path(urlsplit(each["location"]).path).is_dir()


def test_compacted_topics_hold_the_counts_of_all_windows_when_the_stream_has_caught_up(
    streamed: Home, verdict: dict[str, Any]
) -> None:
    # The ledger decides: beside committed files there are those that the killed driver wrote last.
    rows = archived(streamed, "isp_hits")
    counted = [{**row, "seconds": row["hittime"].replace(tzinfo=UTC).timestamp()} for row in rows]
    for topic, key, expected in (
        ("isp-hits-by-zip", "zipcode", counts_by_zip(counted)),
        ("isp-hits-by-isp", "isp", counts_by_isp(counted)),
    ):
        assert told_by_topic(streamed.kafka, topic, key) == expected


@pytest.mark.slow
def test_largest_zip_codes_are_shown_though_no_report_names_them(streamed: Home, verdict: dict[str, Any]) -> None:
    rows = archived(streamed, "isp_hits")
    counts = counts_by_zip([{**row, "seconds": row["hittime"].replace(tzinfo=UTC).timestamp()} for row in rows])
    found = streamed.json("top", "isp_hits", "--once", "--json", "--since", "6h", "--windows", "24")
    assert (found["by"], found["measure"], found["late"], len(found["windows"])) == (["zipcode"], "hits", 0, 24)
    for window in found["windows"]:
        inside = {zip_code: hits for (zip_code, start), hits in counts.items() if start == seconds(window["from"])}
        assert (window["total"], window["keys"]) == (sum(inside.values()), len(inside))
        assert [hits for _, hits in window["rows"]] == sorted(inside.values(), reverse=True)[:10]


def test_tables_in_postgresql_hold_each_key_once_when_a_driver_was_killed(
    streamed: Home, verdict: dict[str, Any]
) -> None:
    for table, topic, key in (
        ("isp_hits_by_zip", "isp-hits-by-zip", "zipcode"),
        ("isp_hits_by_isp", "isp-hits-by-isp", "isp"),
    ):
        told = told_by_topic(streamed.kafka, topic, key)
        names = {name: name.replace("\0", "\N{SYMBOL FOR NULL}") for name, _ in told}
        assert served(streamed, table, key) == {(names[name], start): count for (name, start), count in told.items()}
    versions = dict(streamed.rows("serving", "SELECT table_name, version FROM tidemark_versions"))
    views = ("by_zip", "by_isp", "zip_totals", "isp_totals")
    assert set(versions) == {f"isp_hits_{view}" for view in views}


def test_totals_hold_all_hits_since_the_beginning_when_a_view_has_no_window(
    streamed: Home, verdict: dict[str, Any]
) -> None:
    rows = archived(streamed, "isp_hits")
    for view, key in (("zip_totals", "zipcode"), ("isp_totals", "isp")):
        expected = Counter(row[key] for row in rows)
        told = audit.last_values(streamed.kafka, f"isp-hits-{view.replace('_', '-')}")
        assert {json.loads(text)[key]: value["hits"] for text, value in told.items()} == expected
        answers = streamed.rows("serving", f"SELECT {key}, hits, state FROM live.isp_hits_{view}")
        symbols = {name.replace("\0", "\N{SYMBOL FOR NULL}"): count for name, count in expected.items()}
        assert {name: hits for name, hits, _ in answers} == symbols
        # The archive begins before this interval: nothing is proved yet.
        assert {state for _, _, state in answers} <= {"live", "both"}
        built = next(each for each in verdict["registered"] if each["table"] == f"isp_hits_{view}")
        assert 0 < audit.read_parquet([built["location"]])["hits"].to_pandas().sum() < sum(expected.values())


def test_declared_topic_is_used_when_a_row_also_names_one(streamed: Home, verdict: dict[str, Any]) -> None:
    final = told_by_topic(streamed.kafka, "isp-hits-by-zip", "zipcode")
    told: dict[Window, int] = {}
    for region, first_digits in (("isp-hits-east", "01234"), ("isp-hits-west", "56789")):
        for record in audit.read_topic(streamed.kafka, region).values():
            value = json.loads(record.value or b"")
            assert value["zipcode"][0] in first_digits or not value["zipcode"][0].isdigit()
            at = (value["zipcode"], seconds(value["window_start"]))
            told[at] = max(told.get(at, 0), value["hits"])
    assert told == final
    changes = audit.read_topic(streamed.kafka, "isp-hits-changes").values()
    assert {json.loads(r.value or b"").keys() == {"hits", "version"} for r in changes} == {True}
    assert {(record.key or b"").decode() for record in changes} == set(
        audit.last_values(streamed.kafka, "isp-hits-by-zip")
    )


@pytest.mark.slow
def test_shell_shows_views_in_memory_the_live_archive_and_the_registered_table(
    streamed: Home, verdict: dict[str, Any]
) -> None:
    statements = (
        "SELECT sum(hits) AS n FROM by_zip; SELECT sum(hits) AS n FROM by_isp; "
        "SELECT count(*) AS n FROM isp_hits_live; SELECT count(*) AS n FROM lake.isp_hits; "
        "SELECT sum(hits) AS n FROM live.isp_hits_by_isp WHERE state = 'both'"
    )
    done = subprocess.run(
        streamed.command("shell", "isp_hits", "--json"), input=statements, env=streamed.environment(),
        capture_output=True, text=True, cwd=REPOSITORY, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    decoder, text, found = json.JSONDecoder(), done.stdout, []
    while text.strip():
        rows, end = decoder.raw_decode(text.lstrip())
        found.append(rows[0]["n"])
        text = text.lstrip()[end:]
    by_zip, by_isp, live, registered, answered = found
    # Each hit lies in two of the windows that overlap.
    assert (by_zip, by_isp) == (2 * live, live)
    # Both layers have the day, and no hit counts twice.
    assert 0 < int(answered) <= live
    assert registered == sum(r["rows"] for r in verdict["registered"] if r["table"] == "isp_hits")
    assert 0 < registered < live


def test_window_is_proved_in_both_layers_answer_when_an_interval_covers_it(
    streamed: Home, verdict: dict[str, Any]
) -> None:
    answers = streamed.json(
        "sql", "--json", "SELECT zipcode, window_start, hits, state, proved_hits, live_hits FROM live.isp_hits_by_zip"
    )
    told = streamed.rows(
        "serving", "SELECT zipcode, window_start, hits, state, proved_hits, live_hits FROM live.isp_hits_by_zip"
    )
    assert {(each["zipcode"], each["hits"], each["state"]) for each in answers} == {(r[0], r[2], r[3]) for r in told}
    begin, end = (START + timedelta(hours=hours) for hours in (1, 2))
    window, hostile_at = timedelta(minutes=10), START + timedelta(minutes=90)
    # The hostile ones were sent last: the stream has them, this interval has not.
    inside = [r for r in told if begin <= r[1] and r[1] + window <= end and not r[1] <= hostile_at < r[1] + window]
    assert inside
    assert {row[3] for row in inside} == {"proved"}
    assert all(row[2] == row[4] == row[5] for row in inside)
    assert {row[3] for row in told if row[1] + window <= begin or row[1] >= end} == {"live"}
    assert "proved" not in {row[3] for row in told if row[1] < begin < row[1] + window}


@pytest.mark.slow
def test_program_in_python_finds_live_tables_the_catalog_and_the_ledger(
    streamed: Home, verdict: dict[str, Any]
) -> None:
    program = """
live = spark.table("isp_hits_live").count()
print(live, spark.table("lake.isp_hits").count(), spark.table("by_isp").groupBy().sum("hits").first()[0])
micro_batches = ledger("SELECT sum(rows) AS rows FROM landing_files WHERE fate = 'archived'")
print(int(micro_batches["rows"][0]), pipeline.name)
"""
    done = subprocess.run(
        streamed.command("shell", "isp_hits", "--python"), input=program, env=streamed.environment(),
        capture_output=True, text=True, cwd=REPOSITORY, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (live, registered, counted), (landed, name) = (line.split() for line in done.stdout.splitlines())
    assert live == counted == landed == str(len(archived(streamed, "isp_hits")))
    assert int(registered) == sum(r["rows"] for r in verdict["registered"] if r["table"] == "isp_hits")
    assert name == "isp_hits"


@pytest.mark.slow
def test_stream_ends_with_exit_code_6_when_the_tables_database_is_gone_and_converges_when_it_is_back(
    streamed: Home, verdict: dict[str, Any]
) -> None:
    # After all others: nothing of it is late.
    streamed.produce("isp_hits", 500, START + timedelta(hours=3), "2m", seed=9)
    paused = streamed.start("stream", "isp_hits", "--until-caught-up", TIDEMARK_PAUSE_AT="jdbc_staged")
    try:
        driver = _driver_that_stopped_itself(paused)
        psutil.Process(streamed.process_id("postgres")).kill()
        driver.resume()
        _, said = paused.communicate(timeout=120)
    finally:
        end_of(paused)
    assert paused.returncode == 6, said[-2000:]
    assert "PostgreSQL" in said
    streamed.run("up")
    streamed.run("stream", "isp_hits", "--until-caught-up")
    test_tables_in_postgresql_hold_each_key_once_when_a_driver_was_killed(streamed, verdict)
    test_compacted_topics_hold_the_counts_of_all_windows_when_the_stream_has_caught_up(streamed, verdict)


def _driver_that_stopped_itself(process: subprocess.Popen[str]) -> psutil.Process:
    """Return the stream's driver once it waits at its crash point."""

    def look() -> psutil.Process | None:
        assert process.poll() is None, "the stream ended before it stopped itself"
        below = psutil.Process(process.pid).children(recursive=True)
        return next(iter(those(below, lambda each: bool(each.status() == psutil.STATUS_STOPPED))), None)

    found: psutil.Process = wait_for("the stream to stop itself", look, 180)
    return found
