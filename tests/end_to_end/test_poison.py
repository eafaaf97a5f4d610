"""Records that make decoding throw: the stream lives, exactly they are in quarantine, and mended code replays them."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta

import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
MARKER = "cam-throws"
THROWING = """F.transform(
        F.map_values(message["devices"]["cameras"]),
        lambda camera: camera.withField(
            "device_id",
            F.when(camera["device_id"] == "cam-throws", F.raise_error(F.lit("this camera is not \\x1b[31mknown: "
            "Connection refused, data may have been lost, No space left on device")))
            .otherwise(camera["device_id"]),
        ),
    )"""


def produce_marked(home: Home, template: bytes, moment: datetime, partitions: list[int]) -> None:
    producer = home.producer()
    value = json.loads(template)
    camera = next(iter(value["devices"]["cameras"].values()))
    camera["device_id"] = MARKER
    for partition in partitions:
        milliseconds = int(moment.timestamp() * 1000)
        producer.produce("nest-logs", json.dumps(value).encode(), b"k", partition=partition, timestamp=milliseconds)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def throwing(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """Code whose transform throws on one camera, and two records of that camera among two thousand."""
    checkout = copy_checkout(tmp_path_factory.mktemp("throwing") / "checkout", home)
    checkout.edit("spark_jobs/transforms/nest_cameras.py", 'F.map_values(message["devices"]["cameras"])', THROWING)
    home.produce("nest_cameras", 999, START, "25m")
    good = next(r for r in audit.read_topic(home.kafka, "nest-logs").values() if audit.cameras(r.value))
    assert good.value
    produce_marked(home, good.value, START + timedelta(minutes=26), [1, 3])
    home.produce("nest_cameras", 999, START + timedelta(minutes=30), "25m", seed=2)
    return checkout


def marked(records: dict[audit.Coordinates, audit.Record]) -> set[audit.Coordinates]:
    return {c for c, record in records.items() if record.value and MARKER.encode() in record.value}


def test_stream_lives_and_quarantines_exactly_the_records_that_throw(home: Home, throwing: Checkout) -> None:
    said = throwing.run("stream", "nest_cameras", "--until-caught-up").stderr
    records = audit.read_topic(home.kafka, "nest-logs")
    poison = marked(records)
    assert len(poison) == 2
    assert len(records) == 2000
    table = audit.read_parquet([str(home.lake / "quarantine" / "nest_cameras")])
    assert audit.coordinates_of(table) == Counter(poison)
    for row in table.to_pylist():
        record = records[row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]]
        assert (row["reason"], row["key"], row["value"]) == ("poison", record.key, record.value)
        assert "this camera is not" in row["detail"]
        assert row["detail"].isprintable()
    assert "is quarantined because it throws" in said
    assert "tidemark: nest_cameras.hourly_counts: starts again" in said
    diverted = home.ledger("SELECT topic, topic_partition, record_offset FROM diverted_records")
    assert set(diverted) == poison
    assert home.ledger("SELECT failures FROM batch_failures") == [(3,)]

    verdict = throwing.json("interval", "nest_cameras", "--from", iso(START), "--to", iso(START + timedelta(hours=1)))
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["reconciliation"]["pending"] == 0
    assert verdict["records"]["quarantined"] == 2
    locations = [r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras"]
    rows = audit.expected({c: r for c, r in records.items() if c not in poison}).rows
    assert audit.identities(audit.read_parquet(locations)) == Counter(rows.keys())


def test_record_that_throws_stays_in_quarantine_when_replayed_by_the_code_it_throws_in(
    home: Home, throwing: Checkout
) -> None:
    found = throwing.json("quarantine", "replay", "nest_cameras", "--reason", "poison")
    assert (found["selected"], found["replayed"], found["still_failing"]) == (2, 0, 2)


def test_record_that_threw_is_delivered_when_mended_code_replays_it(home: Home, throwing: Checkout) -> None:
    home.produce("nest_cameras", 100, START + timedelta(hours=1), "50m", seed=3)
    # The corrected function is another query than the one that made the view's checkpoint.
    home.run("stream", "nest_cameras", "--until-caught-up", expect=64)
    home.run("new-generation", "nest_cameras", "--reason", "the transform was mended")
    home.run("stream", "nest_cameras", "--until-caught-up")
    found = home.json("quarantine", "replay", "nest_cameras")
    assert (found["selected"], found["replayed"], found["still_failing"]) == (2, 2, 0)
    verdict = home.interval("nest_cameras", START + timedelta(hours=1))
    assert verdict["records"]["replayed"] == 2
    assert verdict["reconciliation"]["unexplained"] == 0
    # Landed by the throwing code, read by the corrected one: the same rows, and the records that threw stay in
    # quarantine.
    again = home.interval("nest_cameras", START)
    assert again["reconciliation"]["unexplained"] == 0
    assert again["records"]["quarantined"] == 2
    assert again["code_changes"] == {"added": 0, "removed": 0, "changed": 0}
    locations = [r["location"] for v in (verdict, again) for r in v["registered"] if r["table"] == "nest_cameras"]
    rows = audit.expected(audit.read_topic(home.kafka, "nest-logs")).rows
    assert audit.identities(audit.read_parquet(locations)) == Counter(rows.keys())


def test_stream_says_in_one_line_that_it_cannot_write_and_blames_no_record(home: Home, throwing: Checkout) -> None:
    home.produce("nest_cameras", 50, START + timedelta(hours=2), "10m", seed=4)
    landing, aside = home.lake / "landing" / "nest_cameras", home.lake / "landing" / "aside"
    landing.rename(aside)
    landing.write_text("in the way")
    try:
        refused = home.run("stream", "nest_cameras", "--until-caught-up", expect=1)
    finally:
        landing.unlink()
        aside.rename(landing)
    line = refused.stderr.splitlines()[-1]
    assert line.startswith("tidemark: nest_cameras: ")
    assert "could not be written, though all its records decode" in line
    assert "nothing was committed" in line
    assert len(home.ledger("SELECT * FROM diverted_records")) == 2
    home.run("stream", "nest_cameras", "--until-caught-up")
    assert len(home.ledger("SELECT * FROM diverted_records")) == 2
    reached = home.ledger("SELECT sum(next_offset) FROM positions WHERE query = 'archive'")
    assert reached == [(len(audit.read_topic(home.kafka, "nest-logs")),)]
