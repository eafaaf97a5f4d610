"""A producer's new field is kept from its first record on: switched on, reported, and declared later."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(4)
HOUR = timedelta(hours=1)
TOPIC = "isp-hits"
PIPELINE = "include/pipelines/isp_hits.py"
KEEP = ("decoder=Json(schema=HIT)", 'decoder=Json(schema=HIT, unknown="keep")')
DECLARED = ("isp STRING, user STRING", "isp STRING, user STRING, device STRING")
NEW = (
    '"device":"d-1"',
    '"device":"d-2","n":1E400',
    '"device":"d-3","n":1.0,"n":1.00',
    '"device":"\\ud83d\\ude00 é","big":12345678901234567890123456789012345678901234567890',
    '"device":null,"deep":{"a":[1, 2 ,{"b":"}\\"{"}],"a":null}',
    '"device":"","a.b":{},"Zipcode":"1","zip\\u0020code":[ ]',
)


def bounds(hour: int) -> tuple[str, ...]:
    return ("--from", iso(START + hour * HOUR), "--to", iso(START + (hour + 1) * HOUR))


def send(home: Home, hour: int, members: tuple[str, ...]) -> dict[audit.Coordinates, str]:
    """Send a hit with each of these further members, and one without. Returns what is expected to be left of each."""
    moment: datetime = START + hour * HOUR + timedelta(minutes=30)
    hit = f'"zipcode":"94103","hittime":"{iso(moment)}","isp":"Northwind Cable","user":"u"'
    sent = {f"{{{member}, {hit}}}".encode(): f"{{{member}}}" for member in members} | {f"{{{hit}}}".encode(): ""}
    producer = home.producer()
    for value in sent:
        producer.produce(TOPIC, value, timestamp=int(moment.timestamp() * 1000))
    assert producer.flush(30) == 0
    topic = audit.read_topic(home.kafka, TOPIC)
    return {at: sent[record.value] for at, record in topic.items() if record.value in sent}


@pytest.fixture(scope="module")
def first(home: Home) -> dict[str, Any]:
    """An hour that was registered before unknown fields were kept."""
    home.run("produce", "isp_hits", "--events", "20", "--start", iso(START), "--span", "1h")
    home.run("stream", "isp_hits", "--until-caught-up")
    return home.interval("isp_hits", START)


@pytest.fixture(scope="module")
def keeping(home: Home, first: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    checkout = copy_checkout(tmp_path_factory.mktemp("keeping") / "checkout", home)
    checkout.edit(PIPELINE, *KEEP)
    return checkout


@pytest.fixture(scope="module")
def sent(home: Home, keeping: Checkout) -> dict[audit.Coordinates, str]:
    return send(home, 1, NEW)


@pytest.fixture(scope="module")
def second(keeping: Checkout, sent: dict[audit.Coordinates, str]) -> dict[str, Any]:
    refused = keeping.run("stream", "isp_hits", "--until-caught-up", expect=64).stderr
    assert "archive columns" in refused
    keeping.run("new-generation", "isp_hits", "--reason", "unknown fields are kept")
    keeping.run("stream", "isp_hits", "--until-caught-up")
    found: dict[str, Any] = keeping.json("interval", "isp_hits", *bounds(1))
    return found


def archived(verdict: dict[str, Any]) -> dict[audit.Coordinates, dict[str, Any]]:
    locations = [each["location"] for each in verdict["registered"] if each["table"] == "isp_hits"]
    rows = audit.read_parquet(locations).to_pylist()
    return {(row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]): row for row in rows}


def test_new_fields_are_registered_as_they_were_sent_and_stream_and_interval_agree(
    first: dict[str, Any], second: dict[str, Any], sent: dict[audit.Coordinates, str], keeping: Checkout
) -> None:
    assert second["code_version"] != first["code_version"]
    rows = archived(second)
    assert {at: rows[at]["unknown_fields"] or "" for at in sent} == sent
    # The stream landed them, the interval decoded the offsets again from Kafka: not a row differs.
    assert second["reconciliation"]["unexplained"] == 0
    assert not any(second["code_changes"].values())
    partition = next(each["partition"] for each in second["registered"] if each["table"] == "isp_hits")
    assert keeping.json("rebuild", "isp_hits", partition, "--json")["equal"] is True


def test_interval_tells_each_new_field_with_its_first_record_and_share(
    second: dict[str, Any], sent: dict[audit.Coordinates, str]
) -> None:
    drift = second["unknown_fields"]
    records = second["records"]["archived"]
    assert (drift["records"], drift["further_paths"]) == (len(NEW), 0)
    assert drift["share"] == round(len(NEW) / records, 6)
    by_path = {each["path"]: each for each in drift["paths"]}
    assert by_path.keys() == {"device", "n", "big", "deep", '"a.b"', "Zipcode", '"zip\\u0020code"'}
    assert (by_path["device"]["records"], by_path["n"]["records"]) == (len(NEW), 2)
    first = min(at for at, left in sent.items() if left)
    assert by_path["device"]["first"] == dict(zip(("topic", "partition", "offset"), first, strict=True))
    assert "Fields that the schema does not name" in Path(second["report"]).read_text()


def test_field_that_is_declared_later_is_read_from_both(
    home: Home, second: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkout = copy_checkout(tmp_path_factory.mktemp("declared") / "checkout", home)
    checkout.edit(PIPELINE, *KEEP)
    checkout.edit(PIPELINE, *DECLARED)
    later = send(home, 2, ('"device":"d-9"', '"device":"d-8","n":2'))
    checkout.run("new-generation", "isp_hits", "--reason", "device is declared")
    checkout.run("stream", "isp_hits", "--until-caught-up")
    verdict = checkout.json("interval", "isp_hits", *bounds(2))
    assert verdict["reconciliation"]["unexplained"] == 0
    assert [each["path"] for each in verdict["unknown_fields"]["paths"]] == ["n"]
    rows = archived(verdict)
    assert sorted((rows[at]["device"] or "", rows[at]["unknown_fields"] or "") for at in later) == [
        ("", ""),
        ("d-8", '{"n":2}'),
        ("d-9", ""),
    ]
    both = "coalesce(device, get_json_object(unknown_fields, '$.device'))"
    found = checkout.json("sql", f"SELECT {both} AS device FROM lake.isp_hits WHERE {both} <> ''", "--json")
    assert sorted(row["device"] for row in found) == ["d-1", "d-2", "d-3", "d-8", "d-9", "😀 é"]
    # What was registered before stays as it was.
    assert home.json(
        "sql",
        f"SELECT count(*) AS n FROM lake.isp_hits WHERE `interval` = '{START:%Y-%m-%dT%H}' AND unknown_fields IS NULL",
        "--json",
    ) == [{"n": 20}]
