"""Wiki changes of a thousand persons who ask to be forgotten, among those of others, in two hours."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import datetime, timedelta

from include.producing.messages import wiki_changes
from tests.conftest import Home, iso

TOPIC = "wiki-changes"
MARK = "Zq7 Person"
"""Prefix of every key, which occurs nowhere else."""
PERSONS = [f"{MARK} {number:04d} é" for number in range(1000)]
OTHERS = 1500


def changes_of_persons(rng: random.Random, start: datetime) -> Iterator[tuple[datetime, bytes]]:
    """Two good changes of each person, one in each hour, and of every tenth one that breaks a rule."""
    for number, user in enumerate(PERSONS):
        for hour in (start, start + timedelta(hours=1)):
            moment = hour + timedelta(seconds=rng.uniform(0, 3500))
            change = json.loads(wiki_changes.message(moment, rng)[1])
            change |= {"user": user, "type": "edit"}
            change["meta"]["domain"] = change["server_name"]
            yield moment, json.dumps(change, ensure_ascii=number % 2 == 0).encode()
            if number % 10 == 0:
                yield moment, json.dumps({**change, "length": f"of {user}"}).encode()


def changes_of_others(rng: random.Random, start: datetime) -> Iterator[tuple[datetime, bytes]]:
    """Changes as they are generated, every second in the second hour."""
    for number in range(OTHERS):
        moment = start + timedelta(hours=number % 2, seconds=rng.uniform(0, 3500))
        yield moment, wiki_changes.message(moment, rng)[1]


def produce(home: Home, start: datetime) -> None:
    """Write the changes of two hours to the topic, in the order of their times."""
    rng = random.Random(7)
    sent = sorted([*changes_of_persons(rng, start), *changes_of_others(rng, start)])
    home.run("produce", "wiki_changes", "--events", "1", "--start", iso(start - timedelta(hours=1)), "--span", "1m")
    producer = home.producer()
    for number, (moment, value) in enumerate(sent):
        producer.produce(TOPIC, value, partition=number % 2, timestamp=int(moment.timestamp() * 1000))
        producer.poll(0)
    producer.flush()
