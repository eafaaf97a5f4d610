"""gps_positions whose decoder fails fast: one broken record ends the stream, and nothing of it is kept."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import psycopg2
import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

GOOD, BROKEN = last_hours(3), last_hours(2)
"""The hour in which every record is good, and the one with a broken record."""
BESIDE = 200
DECODER = 'Avro(subject="gps-value", schema=VERSIONS[-1]'
END = "nothing of its micro-batch was committed"


@pytest.fixture(scope="module")
def fast(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Code that declares FAILFAST, and an hour of good positions."""
    home.run("up", "registry")
    checkout = copy_checkout(tmp_path_factory.mktemp("fast") / "checkout", home)
    checkout.edit("include/pipelines/gps_positions.py", DECODER, f'{DECODER}, mode="FAILFAST"')
    produce(home, GOOD, seed=1)
    return checkout


@pytest.fixture(scope="module")
def passed(fast: Checkout) -> dict[str, Any]:
    """The verdict of the good hour, of which stream and interval were of that code."""
    fast.run("stream", "gps_positions", "--until-caught-up")
    verdict: dict[str, Any] = fast.json("interval", "gps_positions", *bounds(GOOD))
    return verdict


@pytest.fixture(scope="module")
def broken(home: Home, passed: dict[str, Any]) -> str:
    """Where the broken record lies, among good ones: a good one without its last byte."""
    produce(home, BROKEN, seed=2)
    value = next(r.value for r in audit.read_topic(home.kafka, "gps").values() if r.value)
    producer, at = home.producer(), []
    moment = int((BROKEN + timedelta(minutes=30)).timestamp() * 1000)
    producer.produce("gps", value[:-1], b"9", partition=1, timestamp=moment, on_delivery=lambda _, m: at.append(m))
    assert producer.flush(20) == 0
    produce(home, BROKEN + timedelta(minutes=31), seed=3)
    return f"gps-1 offset {at[0].offset()}: truncated"


def produce(home: Home, start: datetime, seed: int) -> None:
    home.produce("gps_positions", BESIDE, start, "25m", seed=seed)


def bounds(start: datetime) -> tuple[str, ...]:
    return ("--from", iso(start), "--to", iso(start + timedelta(hours=1)))


def kept(home: Home) -> dict[str, list[tuple[Any, ...]]]:
    """Return everything that the ledger lists as committed and registered, and the quarantine's files."""
    queries = {
        "positions": "SELECT query, topic_partition, next_offset FROM positions ORDER BY 1, 2",
        "files": "SELECT fate, path FROM landing_files ORDER BY 2, 1",
        "revisions": "SELECT table_name, id FROM revisions WHERE state = 'registered' ORDER BY 1, 2",
    }
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        found = {}
        for name, query in queries.items():
            cursor.execute(query)
            found[name] = cursor.fetchall()
    quarantine = sorted((home.lake / "quarantine" / "gps_positions").rglob("*.parquet"))
    return {**found, "quarantine": [(str(path),) for path in quarantine]}


def test_good_records_pass_through_stream_and_interval(home: Home, passed: dict[str, Any]) -> None:
    assert passed["reconciliation"]["unexplained"] == 0
    assert {name: passed["records"][name] for name in ("archived", "quarantined")} == {
        "archived": BESIDE,
        "quarantined": 0,
    }
    rows = audit.read_parquet(r["location"] for r in passed["registered"] if r["table"] == "gps_positions")
    assert audit.identities(rows).total() == BESIDE


def test_stream_ends_with_2_and_names_the_record_when_one_is_broken(home: Home, fast: Checkout, broken: str) -> None:
    before = kept(home)
    for _ in range(2):
        said = fast.run("stream", "gps_positions", "--until-caught-up", expect=2).stderr
        assert broken in said
        assert END in said
        assert "declare mode PERMISSIVE" in said
    after = kept(home)
    # The speed view commits its own micro-batches; what lands is the archive's alone.
    assert [row for row in after["positions"] if row[0] == "archive"] == [
        row for row in before["positions"] if row[0] == "archive"
    ]
    assert {**after, "positions": []} == {**before, "positions": []}


def test_report_from_kafka_ends_with_2_when_a_record_of_its_ranges_is_broken(
    home: Home, fast: Checkout, broken: str
) -> None:
    offset = int(broken.split()[2].rstrip(":"))
    good, bad = f"gps:1:{offset - 20}-{offset}", f"gps:1:{offset - 20}-{offset + 1}"
    fast.run("report", "gps_positions", "--ranges", good, "--json")
    assert broken in fast.run("report", "gps_positions", "--ranges", bad, "--json", expect=2).stderr
