"""nest_cameras with words that the shipped declaration does not use: `mode="complete"`, `fail_on_data_loss=False`.

The stream has written `nest-camera-stats` in update mode before; then a deployment declares the other words, and goes
on with the same topic.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import timedelta

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from include.pipelines import load_pipeline
from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.checkout import Checkout, copy_checkout

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(6)
HOUR = timedelta(hours=1)
TOPIC, SPEED = "nest-logs", "nest-camera-stats"
PIPELINE = "include/pipelines/nest_cameras.py"
STREAM = ("stream", "nest_cameras", "--until-caught-up")


def produce(home: Home, hour: int, events: int, seed: int) -> None:
    home.produce("nest_cameras", events, START + hour * HOUR, "1h", seed=seed)


def sightings(home: Home) -> Counter[tuple[str, str]]:
    """Sightings per zip code and hour, by the standard library alone, of all records that Kafka still holds."""
    lines = load_pipeline("nest_cameras").references["device_locations"].path.read_text().splitlines()[1:]
    where, found = dict(line.split(",") for line in lines), Counter[tuple[str, str]]()
    for row in audit.expected(audit.read_topic(home.kafka, TOPIC)).rows.values():
        event = row["last_event"]
        if event["has_person"] and row["device_id"] in where:
            found[where[row["device_id"]], event["start_time"][:13]] += 1
    return found


def told(home: Home) -> Counter[tuple[str, str]]:
    """What the topic tells of each zip code and hour."""
    found = Counter[tuple[str, str]]()
    for text, value in audit.last_values(home.kafka, SPEED).items():
        key = json.loads(text)
        found[key["zip_code"], key["window"]["start"][:13]] = value["count"]
    return found


def keys_by_version(home: Home) -> dict[int, set[str]]:
    """The keys that each micro-batch wrote."""
    found: dict[int, set[str]] = defaultdict(set)
    for record in audit.read_topic(home.kafka, SPEED).values():
        if record.key and record.value:
            found[json.loads(record.value)["version"]].add(record.key.decode())
    return found


@pytest.fixture(scope="module")
def other_words(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A deployment that declares them; the shipped one has counted two hours in update mode."""
    for hour in (0, 1):
        produce(home, hour, 400, hour)
    home.run(*STREAM)
    made = copy_checkout(tmp_path_factory.mktemp("complete") / "checkout", home)
    speed = 'speed=CompactedTopic("nest-camera-stats", watermark="1h"),'
    made.edit(PIPELINE, speed, f'{speed}\n            mode="complete",')
    source = 'KafkaTopics(subscribe=("nest-logs",)'
    made.edit(PIPELINE, source, f"{source}, fail_on_data_loss=False")
    return made


def test_complete_mode_writes_every_key_each_time_and_drops_no_late_row(home: Home, other_words: Checkout) -> None:
    refused = other_words.run(*STREAM, expect=64).stderr
    assert "mode: none → complete" in refused
    assert told(home) == sightings(home)
    other_words.run("new-generation", "nest_cameras", "--reason", "every count with every micro-batch")
    other_words.run(*STREAM)
    # An hour that update mode had closed long ago, after one that moves every watermark.
    produce(home, 3, 300, 3)
    other_words.run(*STREAM)
    produce(home, 0, 200, 4)
    other_words.run(*STREAM)
    assert told(home) == sightings(home)
    written = keys_by_version(home)
    last_two = sorted(written)[-2:]
    assert written[last_two[0]] <= written[last_two[1]] == set(audit.last_values(home.kafka, SPEED))
    assert len(written[last_two[0]]) > 10


def test_interval_of_a_complete_view_has_nothing_late_and_nothing_unexplained(
    home: Home, other_words: Checkout
) -> None:
    for hour in (0, 3):
        start = START + hour * HOUR
        bounds = ("--from", iso(start), "--to", iso(start + HOUR))
        verdict = other_words.json("interval", "nest_cameras", *bounds)
        counts = verdict["reconciliation"]
        assert (counts["late"], counts["unexplained"]) == (0, 0)
        assert verdict["validation"]["success"]
        if hour:
            assert counts["matched"] > 0


def test_stream_that_is_declared_to_accept_losses_goes_on_through_a_cut_topic_and_records_what_is_gone(
    home: Home, other_words: Checkout
) -> None:
    produce(home, 4, 400, 5)
    ((partition, at),) = home.ledger(
        "SELECT topic_partition, next_offset FROM positions WHERE query = 'archive' ORDER BY 1 LIMIT 1"
    )
    cut = at + 40
    client = AdminClient({"bootstrap.servers": home.kafka})
    next(iter(client.delete_records([TopicPartition(TOPIC, partition, cut)]).values())).result(30)
    done = other_words.run(*STREAM)
    assert f"{TOPIC}-{partition} [{at}, {cut}) (40 offsets) was removed before it was archived; accepted" in done.stderr
    losses = home.ledger("SELECT topic_partition, from_offset, until_offset, reason FROM losses")
    assert losses == [(partition, at, cut, "declared: fail_on_data_loss=False")]
    # Again: nothing more is lost, and no other generation begins.
    generations = home.ledger("SELECT max(number) FROM generations")
    other_words.run(*STREAM)
    assert home.ledger("SELECT max(number) FROM generations") == generations
    start = START + 4 * HOUR
    verdict = other_words.json("interval", "nest_cameras", "--from", iso(start), "--to", iso(start + HOUR))
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["records"]["lost"] == 40
    assert verdict["validation"]["success"]
    cells = {key: count for key, count in sightings(home).items() if key[1] == f"{start:%Y-%m-%dT%H}"}
    assert {key: count for key, count in told(home).items() if key[1] == f"{start:%Y-%m-%dT%H}"} == cells
