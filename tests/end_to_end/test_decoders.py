"""Each kind of decoder from Kafka through stream and interval: text, CSV, the user's own in Python and in Java.

The same readings of meters, each kind in its own form, by a pipeline of its own in a copy of the checkout.
"""

from __future__ import annotations

import json
import struct
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from include.spark.compiled_jars import compile_java
from tests.conftest import REPOSITORY, Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(2)
BOUNDS = ("--from", iso(START), "--to", iso(START + timedelta(hours=1)))
READINGS = [(device, device / 4, unit) for device in range(1, 201) for unit in ("kWh", "m³")]

Reading = tuple[int, float, str]


def wire(device: int, reading: float, unit: bytes) -> bytes:
    return struct.pack(">IdB", device, reading, len(unit)) + unit


def in_binary(reading: Reading) -> bytes:
    return wire(reading[0], reading[1], reading[2].encode())


BAD_BINARY = {b"short": "undecodable", wire(1, 1.0, b"\xff"): "undecodable", wire(0, 1.0, b"kWh"): "undecodable"}
METER = "device BIGINT, reading DOUBLE, unit STRING"
FIELDS = 'message["device"], message["reading"], message["unit"]'

KINDS: dict[str, tuple[str, str, Any, dict[bytes, str]]] = {
    "text": (
        "Text(max_bytes=40)",
        'F.split(message["text"], " ")[0].try_cast("BIGINT"), F.split(message["text"], " ")[1].try_cast("DOUBLE"), '
        'F.split(message["text"], " ")[2]',
        lambda each: f"{each[0]} {each[1]} {each[2]}".encode(),
        {b"\xff": "not_utf8", b"x" * 41: "too_large", b"seven 1 kWh": "required_missing"},
    ),
    "csv": (
        f'Csv(schema="{METER}")',
        FIELDS,
        lambda each: f'{each[0]},{each[1]},"{each[2]}"'.encode(),
        {b"1,2": "malformed_csv", b"one,2.0,kWh": "malformed_csv", b"1,2.0,a\n2,2.0,b": "trailing_content"},
    ),
    "python": (
        f'UserDefined("tests.support.own_decoders:meter", schema="{METER}")', FIELDS, in_binary, BAD_BINARY,
    ),
    "vectorised": (
        f'UserDefined("tests.support.own_decoders:meters", schema="{METER}", vectorised=True)',
        FIELDS, in_binary, BAD_BINARY,
    ),
    "java": (
        f'KafkaDeserializer(Path(__file__).with_name("meters.jar"), "com.example.MeterDeserializer", schema="{METER}", '
        'config={"meter.topics": "meters-"})',
        FIELDS, in_binary, BAD_BINARY,
    ),
}  # fmt: skip

DECLARATION = '''"""Readings of meters."""

from pathlib import Path

from include.pipelines.spec import *

PIPELINE = Pipeline(
    name="{name}",
    description="Readings of meters",
    source=KafkaTopics(subscribe=("meters-{kind}",)),
    decoder={decoder},
    archive=Archive(
        rows="readings",
        takes_record=True,
        columns="device BIGINT, reading DOUBLE, unit STRING, read_at TIMESTAMP",
        event_time="read_at",
        rules=(Required("device"),),
    ),
    views=(
        AdditiveView(
            name="by_unit",
            rows="all_readings",
            aggregate="readings_by_unit",
            key=("unit", "window"),
            measures=("readings",),
            columns="unit STRING, window STRUCT<start: TIMESTAMP, end: TIMESTAMP>, readings BIGINT",
            window="window",
            windows=TimeWindow("1h"),
            speed=CompactedTopic("meters-{kind}-by-unit", watermark="1h"),
        ),
    ),
)
'''

TRANSFORMS = '''"""Readings of meters."""

from pyspark.sql import functions as F


def readings(message, record):
    """The reading of a message."""
    names = ("device", "reading", "unit", "read_at")
    values = ({fields}, record["timestamp"])
    return F.struct(*(value.alias(name) for name, value in zip(names, values)))


def all_readings(archive, references):
    """All of them."""
    return archive


def readings_by_unit(readings, window):
    """Readings per unit and window."""
    return readings.groupBy("unit", window).agg(F.count(F.lit(1)).alias("readings"))
'''

SUITE = '''"""Expectations of readings."""

from great_expectations import expectations as gxe

SUITES = {{
    "{name}": [gxe.ExpectColumnValuesToNotBeNull(column="device")],
    "{name}_by_unit": [gxe.ExpectColumnValuesToBeBetween(column="readings", min_value=1)],
}}
'''


def write_pipeline(checkout: Checkout, kind: str, decoder: str, fields: str) -> None:
    """The files of a pipeline whose name ends in `kind`."""
    facts = {"name": f"meters_{kind}", "kind": kind, "decoder": decoder, "fields": fields}
    for folder, text in (
        ("include/pipelines", DECLARATION), ("spark_jobs/transforms", TRANSFORMS), ("expectations", SUITE),
    ):  # fmt: skip
        (checkout.path / folder / f"meters_{kind}.py").write_text(text.format(**facts))


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    made = copy_checkout(tmp_path_factory.mktemp("decoders") / "checkout", home)
    for kind, (decoder, fields, _, _) in KINDS.items():
        write_pipeline(made, kind, decoder, fields)
    decoders = made.path / "tests" / "support"
    decoders.mkdir(parents=True)
    (decoders / "own_decoders.py").write_bytes((REPOSITORY / "tests/support/own_decoders.py").read_bytes())
    compile_java(REPOSITORY / "tests/support/MeterDeserializer.java", made.path / "include/pipelines/meters.jar")
    return made


@pytest.fixture(scope="module")
def checkout(shared: Checkout, kind: str) -> Checkout:
    """The jar of a decoder is given to Spark when its JVM starts."""
    return replace(shared, home=replace(shared.home, own_drivers=kind == "java"))


@pytest.fixture(scope="module")
def verdict(checkout: Checkout, kind: str) -> dict[str, Any]:
    _, _, encode, bad = KINDS[kind]
    topic, producer = f"meters-{kind}", checkout.home.producer()
    admin = AdminClient({"bootstrap.servers": checkout.home.kafka})
    admin.create_topics([NewTopic(topic, 2)])[topic].result(30)
    at = int((START + timedelta(minutes=10)).timestamp() * 1000)
    for value in (*map(encode, READINGS), *bad, None):
        producer.produce(topic, value, timestamp=at)
    assert producer.flush(30) == 0
    checkout.run("stream", f"meters_{kind}", "--until-caught-up")
    found: dict[str, Any] = checkout.json("interval", f"meters_{kind}", *BOUNDS)
    return found


def test_each_value_is_a_row_of_the_table_or_whole_in_quarantine_by_stream_and_interval_alike(
    checkout: Checkout, kind: str, verdict: dict[str, Any]
) -> None:
    bad = KINDS[kind][3]
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["validation"]["success"]
    counts = verdict["records"]
    assert (counts["archived"], counts["quarantined"], counts["gaps"]) == (len(READINGS), len(bad) + 1, 0)
    table = audit.read_parquet([e["location"] for e in verdict["registered"] if e["table"] == f"meters_{kind}"])
    assert sorted((row["device"], row["reading"], row["unit"]) for row in table.to_pylist()) == sorted(READINGS)
    quarantine = checkout.home.lake / "quarantine" / f"meters_{kind}"
    kept = [row for path in quarantine.glob("*.parquet") for row in pq.ParquetFile(path).read().to_pylist()]
    assert {row["value"]: row["reason"] for row in kept} == {**bad, None: "null_value"}


def test_counts_of_the_stream_are_those_of_the_interval(checkout: Checkout, kind: str, verdict: dict[str, Any]) -> None:
    live = audit.last_values(checkout.home.kafka, f"meters-{kind}-by-unit")
    assert {json.loads(key)["unit"]: value["readings"] for key, value in live.items()} == {"kWh": 200, "m³": 200}
    assert verdict["reconciliation"]["matched"] == 2


def test_interval_of_kafka_and_of_the_archive_are_the_same_bytes(
    checkout: Checkout, kind: str, verdict: dict[str, Any]
) -> None:
    again = checkout.json("interval", f"meters_{kind}", *BOUNDS, "--source", "archive")
    hashes = [{each["table"]: each["content_hash"] for each in found["registered"]} for found in (verdict, again)]
    assert hashes[0] == hashes[1]


def test_jar_that_is_missing_or_has_no_such_class_is_named_before_anything_is_read_and_can_be_corrected(
    shared: Checkout,
) -> None:
    home = replace(shared.home, own_drivers=True)
    checkout = replace(shared, home=home)
    write_pipeline(checkout, "wrong", *KINDS["java"][:2])
    declared = checkout.path / "include/pipelines/meters_wrong.py"
    text = declared.read_text()
    declared.write_text(text.replace("meters.jar", "gone.jar"))
    refused = checkout.run("stream", "meters_wrong", "--until-caught-up", expect=64).stderr
    assert "gone.jar: No such file or directory" in refused
    declared.write_text(text.replace("com.example.MeterDeserializer", "com.example.Meters"))
    refused = checkout.run("stream", "meters_wrong", "--until-caught-up", expect=64).stderr
    assert "com.example.Meters of meters.jar cannot decode: the jar has no such class" in refused
    declared.write_text(text.replace('"meter.topics"', '"other"'))
    refused = checkout.run("stream", "meters_wrong", "--until-caught-up", expect=64).stderr
    assert "meter.topics is not set" in refused
    declared.write_text(text)
    checkout.run("stream", "meters_wrong", "--until-caught-up")
    # From now on another class would count otherwise.
    declared.write_text(text.replace("com.example.MeterDeserializer", "com.example.Meters"))
    refused = checkout.run("stream", "meters_wrong", "--until-caught-up", expect=64).stderr
    assert "decoder's class_name: com.example.MeterDeserializer → com.example.Meters" in refused


def test_tail_and_shell_decode_when_the_decoder_is_in_a_jar(shared: Checkout) -> None:
    checkout = with_ten_readings(shared, "shown")
    tailed = _attached(checkout, "tail", "meters_shown", "--once", "--json")
    assert [json.loads(line)["row"]["unit"] for line in tailed.splitlines()] == [unit for *_, unit in READINGS[:10]]
    statement = "SELECT sum(readings) AS readings FROM by_unit"
    counted = _attached(checkout, "shell", "meters_shown", "--json", statements=statement)
    assert json.loads(counted) == [{"readings": 10}]


def test_stream_of_an_erasure_fails_at_nothing_when_the_decoder_is_in_a_jar_and_the_archive_a_delta_table(
    shared: Checkout,
) -> None:
    checkout = with_ten_readings(shared, "erased", "delta=True", 'subject="unit"')
    checkout.run("stream", "meters_erased", "--until-caught-up")
    erase = ("erase", "meters_erased", "--key", "kWh", "--reason", "a request")
    # Killed when the stream has ended.
    erased = checkout.run(*erase, expect=None, TIDEMARK_CRASH_AT="erased_from_views")
    assert "the stream builds its views again" in erased.stderr
    # An error tells its remedy after a dash.
    assert " — " not in erased.stderr
    live = audit.last_values(checkout.home.kafka, "meters-erased-by-unit")
    assert {json.loads(key)["unit"]: value["readings"] for key, value in live.items()} == {"m³": 5}


def with_ten_readings(shared: Checkout, kind: str, *archive: str) -> Checkout:
    """A pipeline whose decoder is in a jar, with ten records in its topic, and no JVM that has the jar already."""
    home = replace(shared.home, own_drivers=True)
    write_pipeline(shared, kind, *KINDS["java"][:2])
    at = 'event_time="read_at",'
    shared.edit(f"include/pipelines/meters_{kind}.py", at, "\n        ".join((at, *(f"{each}," for each in archive))))
    topic, admin = f"meters-{kind}", AdminClient({"bootstrap.servers": home.kafka})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    producer = home.producer()
    for reading in READINGS[:10]:
        producer.produce(topic, in_binary(reading))
    assert producer.flush(30) == 0
    return replace(shared, home=home)


def _attached(checkout: Checkout, *arguments: str, statements: str = "") -> str:
    """Return what a command that keeps its caller's terminal printed."""
    done = subprocess.run(
        checkout.home.command(*arguments), env=checkout.home.environment(PYTHONPATH=str(checkout.path)),
        input=statements, capture_output=True, text=True, cwd=checkout.path, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_version_of_the_decoder_follows_what_the_jar_holds(tmp_path: Path) -> None:
    from include.pipelines.spec import KafkaDeserializer
    from include.spark.compiled_jars import jars_content

    jar = tmp_path / "meters.jar"
    decoder = KafkaDeserializer(jar, "com.example.MeterDeserializer", schema=METER)
    compile_java(REPOSITORY / "tests/support/MeterDeserializer.java", jar)
    first = jars_content(decoder)
    compile_java(REPOSITORY / "tests/support/MeterDeserializer.java", jar)
    assert jars_content(decoder) == first
    jar.write_bytes(jar.read_bytes() + b"\0")
    assert jars_content(decoder) != first
