"""A person's data are erased: searched for in every file, run again from Kafka, verified, and asked for twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from include.producing.messages import wiki_changes
from tests.conftest import Home, iso, last_hours
from tests.support import audit, persons, remnants
from tests.support.persons import MARK, PERSONS, TOPIC

pytestmark = [pytest.mark.services, pytest.mark.slow]

START = last_hours(3)
SECOND = START + timedelta(hours=1)


@pytest.fixture(scope="module")
def landed(home: Home) -> Home:
    """Two hours of records, in the order of their times, both published."""
    persons.produce(home, START)
    home.run("stream", "wiki_changes", "--until-caught-up")
    for start in (START, SECOND):
        assert home.interval("wiki_changes", start)["reconciliation"]["unexplained"] == 0
    return home


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("\n".join(PERSONS) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def erased(landed: Home, keys_file: Path) -> dict[str, Any]:
    """The command's output about the erasure of a thousand persons."""
    assert list(remnants.in_files(landed.lake, MARK))
    arguments = ("--keys-file", str(keys_file), "--reason", "a request of 2026-11-20", "--json")
    account: dict[str, Any] = landed.json("erase", "wiki_changes", *arguments)
    return account


def services(home: Home) -> tuple[str, ...]:
    """Folders of Kafka and PostgreSQL: the account says that they remain."""
    return tuple(f"{home.path}/{name}/" for name in ("kafka", "postgres"))


def rows(home: Home, verdict: dict[str, Any]) -> Any:
    return audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "wiki_changes")


def test_account_says_how_many_and_never_who(erased: dict[str, Any]) -> None:
    assert (erased["keys"], erased["records"], erased["rows"]) == (1000, 2200, 2000)
    assert (erased["quarantined"], erased["intervals"], erased["built_intervals"]) == (200, 2, 2)
    assert erased["ended_at"]
    assert MARK not in json.dumps(erased, ensure_ascii=False)
    assert any(TOPIC in each for each in erased["remains"])


def test_search_in_every_file_and_every_row_finds_nothing(landed: Home, erased: dict[str, Any]) -> None:
    assert list(remnants.in_files(landed.lake, MARK)) == []
    assert [each for each in remnants.in_files(landed.path, MARK) if not each.startswith(services(landed))] == []
    assert [remnants.in_database(landed, MARK, name) for name in ("ledger", "serving", "catalog")] == [[], [], []]


def test_nothing_comes_back_from_kafka_and_nothing_is_unexplained(landed: Home, erased: dict[str, Any]) -> None:
    records = audit.read_topic(landed.kafka, TOPIC)
    for start in (START, SECOND):
        bounds = ("--from", iso(start), "--to", iso(start + timedelta(hours=1)))
        before = {
            each["partition"]: each["content_hash"]
            for each in landed.json("interval", "wiki_changes", *bounds)["registered"]
        }
        for source in ("archive", "kafka"):
            verdict = landed.interval("wiki_changes", start, "--source", source)
            counts = verdict["records"]
            assert (counts["erased"], verdict["reconciliation"]["unexplained"]) == (1100, 0)
            fates = ("archived", "empty", "quarantined", "gaps", "erased")
            assert counts["in_ranges"] == sum(counts[fate] for fate in fates)
            assert {each["partition"]: each["content_hash"] for each in verdict["registered"]} == before
        kept = rows(landed, verdict)
        held = audit.coordinates_of(kept)
        theirs = {at for at, record in records.items() if record.value and MARK.encode() in record.value}
        assert not held.keys() & theirs
        assert len(held) == counts["archived"]
        proof = Path(verdict["registered"][0]["proof"].removeprefix("file://"))
        landed.run("verify", str(proof), "--kafka", landed.kafka)
        (partition,) = {e["partition"] for e in verdict["registered"] if e["table"] == "wiki_changes_user_edits"}
        landed.run("rebuild", "wiki_changes_user_edits", partition)
    assert MARK not in landed.run("quarantine", "list", "wiki_changes", "--json", "--limit", "10000").stdout


def test_compacted_topic_holds_the_others_only(landed: Home, erased: dict[str, Any]) -> None:
    last = audit.last_values(landed.kafka, "wiki-user-edits")
    users = Counter(json.loads(key)["user"] for key in last)
    assert users
    assert not any(user.startswith(MARK) for user in users)
    records = audit.read_topic(landed.kafka, "wiki-user-edits")
    tombstones = {r.key for r in records.values() if r.key and r.value is None}
    assert len({json.loads(key)["user"] for key in tombstones if MARK in json.loads(key)["user"]}) == 1000


def test_second_erasure_finds_nothing_and_new_messages_are_archived(
    landed: Home, erased: dict[str, Any], keys_file: Path
) -> None:
    moment = SECOND + timedelta(minutes=70)
    change = json.loads(wiki_changes.message(moment, random.Random(3))[1]) | {"user": PERSONS[0], "type": "edit"}
    change["meta"]["domain"] = change["server_name"]
    producer = landed.producer()
    producer.produce(TOPIC, json.dumps(change).encode(), partition=0, timestamp=int(moment.timestamp() * 1000))
    producer.flush()
    again = landed.json("erase", "wiki_changes", "--keys-file", str(keys_file), "--reason", "again", "--json")
    assert (again["records"], again["built_intervals"], again["not_archived_yet"]) == (0, 0, 1)
    landed.run("stream", "wiki_changes", "--until-caught-up")
    counted = landed.json("erase", "wiki_changes", "--key", PERSONS[0], "--reason", "look", "--dry-run", "--json")
    assert (counted["records"], counted["rows"]) == (1, 1)


def test_wrong_usage_is_refused_before_anything_is_done(landed: Home, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for arguments, said in (
        (("wiki_changes", "--reason", "r"), "no key"),
        (("wiki_changes", "--key", "x"), "reason"),
        (("wiki_changes", "--key", " ", "--reason", "r"), "empty"),
        (("wiki_changes", "--keys-file", str(empty), "--reason", "r"), "no key"),
        (("wiki_changes", "--keys-file", str(tmp_path / "none"), "--reason", "r"), "cannot be read"),
        (("wiki_changes", "--key", "x", "--column", "nobody", "--reason", "r"), "no single value"),
        (("wiki_changes", "--resume"), "no erasure is unfinished"),
        (("auction_bids", "--key", "x", "--reason", "r"), "not declared"),
        (("nobody", "--key", "x", "--reason", "r"), "nobody"),
    ):
        refused = landed.run("erase", *arguments, expect=64)
        assert said in refused.stderr
        assert refused.stderr.strip().count("\n") == 0
