"""A stream that must not simply continue: another query, lost offsets, a recreated topic, a lost checkpoint.

One pipeline goes through all of it, in this order; after each way on every number is proved again.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from include.pipelines import load_pipeline
from tests.conftest import REPOSITORY, Home, iso, last_hours
from tests.support import audit
from tests.support.killed import was_killed

pytestmark = pytest.mark.services

START = last_hours(6)
HOUR = timedelta(hours=1)
TOPIC, SPEED = "nest-logs", "nest-camera-stats"

Stream = tuple[str, ...]
STREAM: Stream = ("stream", "nest_cameras", "--until-caught-up")


def produce(home: Home, hour: int, events: int, seed: int, span: str) -> None:
    home.produce("nest_cameras", events, START + hour * HOUR, span, seed=seed)


def admin(home: Home) -> AdminClient:
    return AdminClient({"bootstrap.servers": home.kafka})


def places() -> dict[str, str]:
    lines = load_pipeline("nest_cameras").references["device_locations"].path.read_text().splitlines()[1:]
    return dict(line.split(",") for line in lines)


def counts(rows: Any, but_not: str = "") -> Counter[tuple[str, str]]:
    """The oracle: sightings per zip code and hour, computed only with the standard library."""
    where, found = places(), Counter[tuple[str, str]]()
    for row in rows:
        zip_code = where.get(row["device_id"])
        if zip_code and zip_code != but_not and row["last_event"]["has_person"]:
            found[zip_code, row["last_event"]["start_time"][:13]] += 1
    return found


def speed_values(home: Home) -> dict[tuple[str, str], dict[str, int]]:
    """The last value of each key that was not deleted."""
    found = {}
    for _, record in sorted(audit.read_topic(home.kafka, SPEED).items()):
        assert record.key is not None
        key = json.loads(record.key)
        at = (key["zip_code"], key["window"]["start"][:13])
        if record.value is None:
            found.pop(at, None)
        else:
            found[at] = json.loads(record.value)
    return found


def speed_counts(home: Home) -> dict[tuple[str, str], int]:
    return {key: value["count"] for key, value in speed_values(home).items()}


def rows_of(home: Home) -> list[dict[str, Any]]:
    return list(audit.expected(audit.read_topic(home.kafka, TOPIC)).rows.values())


class Checkout:
    """A copy of this checkout whose transforms leave out one zip code."""

    def __init__(self, home: Home, folder: Path, left_out: str) -> None:
        self.home, self.folder = home, folder
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(REPOSITORY), str(folder)], check=True)
        for name in ("include", "spark_jobs", "expectations"):
            subprocess.run(["cp", "-r", str(REPOSITORY / name), str(folder)], check=True)
        (folder / ".tidemark").symlink_to(REPOSITORY / ".tidemark")
        transforms = folder / "spark_jobs" / "transforms" / "nest_cameras.py"
        joined = 'F.broadcast(locations), "device_id")'
        text = transforms.read_text().replace(joined, f'{joined}.where(F.col("zip_code") != "{left_out}")')
        transforms.write_text(text)
        assert left_out in transforms.read_text()

    def run(self, *arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            self.home.command(*arguments),
            env=self.home.environment(PYTHONPATH=str(self.folder)),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == expect, result.stderr[-4000:]
        return result


@pytest.fixture(scope="module")
def streamed(home: Home) -> Home:
    """Three hours of records, and the same three hours again: the first hour of the second ones is late."""
    for seed in (1, 2):
        produce(home, 0, 1500, seed, "3h")
        home.run(*STREAM)
    return home


@pytest.fixture(scope="module")
def checkout(streamed: Home, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(streamed, tmp_path_factory.mktemp("checkout") / "copy", "94103")


@pytest.mark.slow
def test_changed_transform_is_refused_with_what_changed_and_the_way_on_when_a_checkpoint_exists(
    streamed: Home, checkout: Checkout
) -> None:
    assert sum(speed_counts(streamed).values()) < sum(counts(rows_of(streamed)).values()), "nothing was late"
    refused = checkout.run(*STREAM, expect=64).stderr
    assert "the checkpoint of hourly_counts was made by another query: transform sightings changed" in refused
    assert "./tidemark new-generation nest_cameras --reason" in refused
    assert streamed.ledger("SELECT number, reason FROM generations") == [(0, "first start")]


@pytest.mark.slow
def test_speed_view_is_built_from_the_archive_and_swapped_when_a_new_generation_begins(
    streamed: Home, checkout: Checkout
) -> None:
    before = speed_counts(streamed)
    assert any(zip_code == "94103" for zip_code, _ in before)
    opened = checkout.run("new-generation", "nest_cameras", "--reason", "94103 is a test site", "--json")
    assert json.loads(opened.stdout)["generation"] == 1
    produce(streamed, 2, 500, 3, "50m")
    # Killed between the topic and the ledger, the base is made again.
    killed = checkout.home.environment(PYTHONPATH=str(checkout.folder), TIDEMARK_CRASH_AT="base_emitted")
    command = streamed.command(*STREAM)
    crashed = subprocess.run(command, env=killed, cwd=checkout.folder, capture_output=True, text=True, check=False)
    assert was_killed(crashed), crashed.stderr[-2000:]
    checkout.run(*STREAM)

    oracle = counts(rows_of(streamed), but_not="94103")
    # The base holds what generation 0 dropped as late, the state what came since; 94103 is deleted.
    assert speed_counts(streamed) == oracle
    assert min(value["version"] for value in speed_values(streamed).values()) >= 2**40 - 1
    start = START + 2 * HOUR
    bounds = ("--from", iso(start), "--to", iso(start + HOUR))
    verdict = json.loads(checkout.run("interval", "nest_cameras", *bounds).stdout)
    assert verdict["reconciliation"]["unexplained"] == 0
    assert verdict["reconciliation"]["late"] == 0
    assert verdict["reconciliation"]["matched"] > 0
    rows = streamed.ledger("SELECT number, started_by, reason FROM generations ORDER BY 1")
    assert [row[0] for row in rows] == [0, 1]
    assert rows[1][2] == "94103 is a test site"
    assert "@" in rows[1][1]


@pytest.mark.slow
def test_doubled_value_is_unexplained_when_a_base_holds_it(streamed: Home, checkout: Checkout) -> None:
    start = START + 2 * HOUR
    last = {record.key: (place, record) for place, record in sorted(audit.read_topic(streamed.kafka, SPEED).items())}
    (_, partition, _), record = next(
        (place, record)
        for key, (place, record) in last.items()
        if key and record.value and json.loads(key)["window"]["start"][:13] == iso(start)[:13]
    )
    assert record.value is not None
    value = json.loads(record.value)
    producer = Producer({"bootstrap.servers": streamed.kafka})

    def write(count: int) -> None:
        producer.produce(SPEED, json.dumps({**value, "count": count}), record.key, partition)
        assert producer.flush(30) == 0

    write(2 * value["count"])
    bounds = ("--from", iso(start), "--to", iso(start + HOUR))
    verdict = json.loads(checkout.run("interval", "nest_cameras", *bounds, expect=3).stdout)
    assert verdict["reconciliation"]["unexplained"] == 1
    [told] = [each for each in verdict["differences"] if each["class"] == "unexplained"]
    assert f"count: speed view {2 * value['count']}" in told["evidence"]
    write(value["count"])


@pytest.mark.slow
def test_removed_offsets_are_named_kept_on_record_and_explained_when_the_loss_is_accepted(streamed: Home) -> None:
    # The code of generation 0 again.
    streamed.run("new-generation", "nest_cameras", "--reason", "94103 counts after all")
    produce(streamed, 3, 600, 4, "50m")
    (partition, at) = streamed.ledger(
        "SELECT topic_partition, next_offset FROM positions WHERE query = 'archive' ORDER BY 1 LIMIT 1"
    )[0]
    cut = at + 40
    client = admin(streamed)
    next(iter(client.delete_records([TopicPartition(TOPIC, partition, cut)]).values())).result(30)

    refused = streamed.run(*STREAM, expect=4).stderr
    assert f"{TOPIC}-{partition} [{at}, {cut}) (40 offsets) was removed before it was archived" in refused
    assert "./tidemark accept-loss nest_cameras --reason" in refused
    lost = "SELECT topic_partition, from_offset, until_offset, accepted_by IS NULL FROM losses"
    assert streamed.ledger(lost) == [(partition, at, cut, True)]

    accepted = streamed.json("accept-loss", "nest_cameras", "--reason", "retention was set wrongly", "--json")
    assert [(a["partition"], a["from_offset"], a["until_offset"]) for a in accepted] == [(partition, at, cut)]
    streamed.run("accept-loss", "nest_cameras", "--reason", "again", expect=64)
    produce(streamed, 4, 200, 5, "50m")
    streamed.run(*STREAM)
    verdict = streamed.interval("nest_cameras", START + 3 * HOUR)
    records = verdict["records"]
    assert verdict["source"] == "kafka"
    assert records["lost"] == 40
    assert records["in_ranges"] == sum(records[fate] for fate in ("archived", "empty", "quarantined", "gaps"))
    assert records["gaps"] >= 40
    assert verdict["reconciliation"]["unexplained"] == 0
    named = next(d for d in verdict["differences"] if d["class"] == "gap" and "lost" in d["what"])
    assert named["where"] == f"{TOPIC}-{partition} [{at}, {cut})"
    assert "retention was set wrongly" in named["evidence"]
    assert "accepted by" in named["evidence"]
    assert streamed.ledger(lost) == [(partition, at, cut, False)]


@pytest.mark.slow
def test_stream_names_restore_and_adopt_when_the_topic_was_deleted(streamed: Home) -> None:
    client = admin(streamed)
    client.delete_topics([TOPIC])[TOPIC].result(30)
    refused = streamed.run(*STREAM, expect=4).stderr
    assert f"topic {TOPIC} (id " in refused
    assert f"./tidemark adopt nest_cameras {TOPIC} --reason" in refused
    streamed.run("adopt", "nest_cameras", TOPIC, "--reason", "too early", expect=4)


@pytest.mark.slow
def test_recreated_topic_is_read_from_its_beginning_and_the_rest_of_the_old_one_is_pinned_when_adopted(
    streamed: Home,
) -> None:
    before = speed_counts(streamed)
    produce(streamed, 4, 150, 6, "50m")
    refused = streamed.run(*STREAM, expect=4).stderr
    assert "was deleted and created again" in refused
    adopted = streamed.json("adopt", "nest_cameras", TOPIC, "--reason", "moved to another cluster", "--json")
    assert adopted["topic_id"] != adopted["closed_topic_id"]
    assert adopted["pinned"] == f"{iso(START + 4 * HOUR)}/{iso(START + 5 * HOUR)}"
    streamed.run("adopt", "nest_cameras", TOPIC, "--reason", "again", expect=64)
    streamed.run(*STREAM)

    new = rows_of(streamed)
    assert speed_counts(streamed) == dict(Counter(before) + counts(new))
    rest = streamed.interval("nest_cameras", START + 4 * HOUR)
    assert rest["source"] == "archive"
    assert rest["reconciliation"]["unexplained"] == 0
    assert {r["topic_id"] for r in rest["ranges"]} == {adopted["closed_topic_id"]}
    assert sum(r["until_offset"] - r["from_offset"] for r in rest["ranges"]) == 200

    verdict = streamed.interval("nest_cameras", START + 5 * HOUR)
    assert verdict["source"] == "kafka"
    assert verdict["reconciliation"]["unexplained"] == 0
    assert {(r["topic_id"], r["from_offset"]) for r in verdict["ranges"]} == {(adopted["topic_id"], 0)}
    assert verdict["records"]["in_ranges"] == 150
    table = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras")
    assert audit.identities(table) == Counter(audit.expected(audit.read_topic(streamed.kafka, TOPIC)).rows.keys())


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_the_archive_s_checkpoint_is_deleted(streamed: Home) -> None:
    number = streamed.ledger("SELECT max(number) FROM generations")[0][0]
    checkpoints = streamed.lake / "checkpoints" / "nest_cameras" / f"g{number}"
    shutil.rmtree(checkpoints / "archive")
    produce(streamed, 5, 100, 7, "50m")
    streamed.run(*STREAM)
    landed = audit.read_parquet([str(streamed.lake / "landing" / "nest_cameras")])
    assert landed.num_rows > 0
    batches = streamed.ledger(
        "SELECT r.topic_id, r.topic_partition, r.from_offset, r.until_offset FROM micro_batch_ranges r "
        "JOIN micro_batches b ON b.id = r.micro_batch_id WHERE b.query = 'archive' ORDER BY b.id",
    )
    at: dict[tuple[str, int], int] = {}
    for topic_id, partition, begin, until in batches:
        assert at.get((topic_id, partition), 0) == begin
        at[topic_id, partition] = until
    assert sum(at[topic_id, p] for topic_id, p in at if topic_id == batches[-1][0]) == 250


@pytest.mark.slow
def test_stream_refuses_to_begin_without_state_when_a_speed_view_s_checkpoint_is_deleted(streamed: Home) -> None:
    number = streamed.ledger("SELECT max(number) FROM generations")[0][0]
    shutil.rmtree(streamed.lake / "checkpoints" / "nest_cameras" / f"g{number}" / "hourly_counts")
    refused = streamed.run(*STREAM, expect=64).stderr
    assert "and with it the state of the speed view hourly_counts" in refused
    assert "./tidemark new-generation nest_cameras" in refused
