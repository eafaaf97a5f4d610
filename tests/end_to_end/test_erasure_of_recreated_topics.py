"""A person is erased from a topic that was deleted and created again: others have records at the same offsets."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from include.producing.messages import wiki_changes
from tests.conftest import Home, iso, last_hours
from tests.support import audit, remnants
from tests.support.audit import Coordinates, Record
from tests.support.persons import MARK, TOPIC

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
HOUR = timedelta(hours=1)
HOURS = [START + number * HOUR for number in range(3)]
"""Old, old and left over at the adoption, new."""
STREAM = ("stream", "wiki_changes", "--until-caught-up")
PERSONS = [f"{MARK} 100% 'old' & é", f"{MARK} new"]


def change(moment: datetime, rng: random.Random, user: str, **other: Any) -> bytes:
    made = json.loads(wiki_changes.message(moment, rng)[1]) | {"user": user, "type": "edit", **other}
    made["meta"]["domain"] = made["server_name"]
    return json.dumps(made, ensure_ascii=False).encode()


def produce(home: Home, hour: datetime, number: int, persons: dict[int, str], seed: int) -> None:
    """Changes of others and, in the named places, of persons; the second of a person's is broken."""
    rng, producer = random.Random(seed), home.producer()
    for place in range(number):
        moment = hour + timedelta(seconds=30 * place)
        user = persons.get(place, f"somebody {seed} {place}")
        broken = {"length": f"of {user}"} if place == max(persons) else {}
        stamp = int(moment.timestamp() * 1000)
        producer.produce(TOPIC, change(moment, rng, user, **broken), partition=place % 2, timestamp=stamp)
    producer.flush()


def create(home: Home, moment: datetime) -> None:
    home.run("produce", "wiki_changes", "--events", "1", "--start", iso(moment), "--span", "1m")


@dataclass
class Recreated:
    """A home, and what the two incarnations of its topic held."""

    home: Home
    old: dict[Coordinates, Record]
    new: dict[Coordinates, Record]


@pytest.fixture(scope="module")
def recreated(home: Home) -> Recreated:
    """Two hours of the old topic, one of the new one, all published."""
    create(home, START)
    produce(home, HOURS[0], 40, {3: PERSONS[0], 10: PERSONS[0], 11: PERSONS[0]}, 1)
    produce(home, HOURS[1], 40, {5: PERSONS[0], 8: PERSONS[0]}, 2)
    home.run(*STREAM)
    home.interval("wiki_changes", HOURS[0])
    old = audit.read_topic(home.kafka, TOPIC)
    admin = AdminClient({"bootstrap.servers": home.kafka})
    admin.delete_topics([TOPIC])[TOPIC].result(30)
    create(home, HOURS[2])
    produce(home, HOURS[2], 90, {3: PERSONS[0], 21: PERSONS[1], 24: PERSONS[1]}, 3)
    home.run("adopt", "wiki_changes", TOPIC, "--reason", "it was deleted")
    home.run(*STREAM)
    for hour in HOURS[1:]:
        assert home.interval("wiki_changes", hour)["reconciliation"]["unexplained"] == 0
    return Recreated(home, old, audit.read_topic(home.kafka, TOPIC))


def is_marked(record: Record) -> bool:
    return MARK.encode() in (record.value or b"")


@pytest.fixture(scope="module")
def erased(recreated: Recreated) -> dict[str, Any]:
    """The command's output after it was killed once."""
    named = [part for each in PERSONS for part in ("--key", each)]
    asked = ("erase", "wiki_changes", *named, "--reason", "a test")
    killed = recreated.home.run(*asked, expect=None, TIDEMARK_CRASH_AT="erased_file_swapped")
    assert killed.returncode < 0, killed.stderr[-3000:]
    account: dict[str, Any] = recreated.home.json("erase", "wiki_changes", "--resume", "--json")
    return account


def test_records_of_both_incarnations_are_erased_and_their_namesakes_stay(
    recreated: Recreated, erased: dict[str, Any]
) -> None:
    held_once = {"old": recreated.old, "new": recreated.new}
    gone = {name: {at for at, r in records.items() if is_marked(r)} for name, records in held_once.items()}
    assert gone["old"] - gone["new"]
    assert gone["new"] - gone["old"]
    assert erased["records"] == len(gone["old"]) + len(gone["new"])
    assert (erased["intervals"], erased["quarantined"]) == (3, 3)
    for number, hour in enumerate(HOURS):
        verdict = recreated.home.interval("wiki_changes", hour)
        name = "new" if number == 2 else "old"
        of_topic = audit.in_ranges(held_once[name], verdict["ranges"])
        counts = verdict["records"]
        assert counts["erased"] == len(of_topic.keys() & gone[name]) > 0
        assert verdict["reconciliation"]["unexplained"] == 0
        fates = ("archived", "empty", "quarantined", "gaps", "erased")
        assert counts["in_ranges"] == sum(counts[fate] for fate in fates)
        table = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "wiki_changes")
        held = audit.coordinates_of(table)
        # This incarnation still has the offsets that the other one lost.
        somebody = {at for at, r in of_topic.items() if b'"somebody ' in (r.value or b"")}
        assert somebody <= held.keys()
        assert not held.keys() & gone[name]
        assert max(Counter(held).values()) == 1


def test_search_finds_nothing_and_doctor_nothing_to_say(recreated: Recreated, erased: dict[str, Any]) -> None:
    home = recreated.home
    services = tuple(f"{home.path}/{name}/" for name in ("kafka", "postgres"))
    assert [each for each in remnants.in_files(home.path, MARK) if not each.startswith(services)] == []
    assert [remnants.in_database(home, MARK, name) for name in ("ledger", "serving", "catalog")] == [[], [], []]
    findings = json.loads(home.run("doctor", "--json", "--deep", expect=None).stdout)["findings"]
    assert [each for each in findings if not each["ok"] and (each["kind"] or "erasure" in each["what"])] == []


def test_second_erasure_finds_nothing(recreated: Recreated, erased: dict[str, Any]) -> None:
    named = [part for each in PERSONS for part in ("--key", each)]
    again = recreated.home.json("erase", "wiki_changes", *named, "--reason", "again", "--json")
    assert (again["records"], again["built_intervals"]) == (0, 0)
