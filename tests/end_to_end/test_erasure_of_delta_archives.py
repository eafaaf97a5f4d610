"""A thousand persons are erased from a Delta archive, by an erasure that is killed at each step of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from include.ledger.streams import writers
from tests.conftest import Home, iso, last_hours
from tests.support import audit, persons, remnants
from tests.support.checkout import HomeOfCheckout, copy_checkout
from tests.support.delta_log import actions, latest_version, read_delta, validated
from tests.support.persons import MARK, PERSONS

pytestmark = [pytest.mark.services, pytest.mark.slow, pytest.mark.faults]

START = last_hours(3)
SECOND = START + timedelta(hours=1)
DECLARED = "include/pipelines/wiki_changes.py"
COLUMNS = "id, user, kafka_partition, kafka_offset"

KILLED_AT = (
    "delta_rows_erased",
    "delta_view_pinned",
    "delta_files_deleted",
    "delta_log_file_swept:3",
)
"""Of the application that erases from the table, in order."""


def delta(home: Home) -> Path:
    return home.lake / "delta" / "wiki_changes"


@pytest.fixture(scope="module")
def landed(in_process: Home, tmp_path_factory: pytest.TempPathFactory) -> HomeOfCheckout:
    """Two hours, the first of which is published: the second's rows lie in the table as the stream appended them."""
    made = copy_checkout(tmp_path_factory.mktemp("delta") / "checkout", in_process)
    made.edit(DECLARED, 'subject="user",', 'subject="user",\n        delta=True,')
    home = HomeOfCheckout(in_process.path, code=made.path)
    persons.produce(home, START)
    home.run("stream", "wiki_changes", "--until-caught-up", TIDEMARK_MAX_OFFSETS_PER_TRIGGER="1500")
    for start in (START - timedelta(hours=1), START):
        assert home.interval("wiki_changes", start)["reconciliation"]["unexplained"] == 0
    # Somebody's manual change of the table: the conditions of its commit name persons, too.
    by_hand = f"UPDATE delta.`file://{delta(home)}` SET comment = '{PERSONS[0]}' WHERE user = '{PERSONS[1]}'"
    home.run("sql", by_hand)
    return home


def transactions(home: Home) -> set[tuple[str, int]]:
    """Micro-batches that the table's log knows."""
    return {(each["appId"], each["version"]) for kind, each in actions(delta(home)) if kind == "txn"}


def said(home: Home) -> list[str]:
    """Return the commits' statements about intervals, in order."""
    infos = (each for kind, each in actions(delta(home)) if kind == "commitInfo")
    return [each["userMetadata"] for each in infos if "tidemark." in each.get("userMetadata", "")]


@pytest.fixture(scope="module")
def before(landed: HomeOfCheckout) -> tuple[set[tuple[str, int]], list[str]]:
    """The contents of the log before the erasure."""
    assert any(each.endswith(".json: its bytes") for each in remnants.in_files(delta(landed), MARK))
    known = transactions(landed), said(landed)
    assert all(known)
    return known


@contextmanager
def another_writer() -> Iterator[None]:
    """A driver that holds the pipeline's lease, as a stream does."""
    lease, ended = writers.acquire("wiki_changes"), threading.Event()

    def renew() -> None:
        while not ended.wait(1):
            writers.renew(lease)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        writers.release(lease)


@pytest.fixture(scope="module")
def erased(
    landed: HomeOfCheckout,
    before: tuple[set[tuple[str, int]], list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """The command's final output."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("\n".join(PERSONS) + "\n", encoding="utf-8")
    asked: Sequence[str] = ("erase", "wiki_changes", "--keys-file", str(keys), "--reason", "a request")
    for moment in KILLED_AT:
        killed = landed.run(*asked, expect=None, TIDEMARK_CRASH_AT=moment)
        assert killed.returncode != 0, f"not killed at {moment}"
        assert "the Delta table's application" in killed.stderr, f"not killed at {moment}: {killed.stderr[-3000:]}"
        asked = ("erase", "wiki_changes", "--resume")
    with another_writer():
        refused = landed.run(*asked, expect=5)
    assert "stop it first" in refused.stderr
    account: dict[str, Any] = landed.json(*asked, "--json")
    return account


def view(home: Home, table: str) -> list[Any]:
    found = home.json("sql", f"SELECT {COLUMNS} FROM lake.{table}", "--json")
    return sorted((tuple(each.values()) for each in found), key=repr)


def test_no_file_of_the_lake_holds_a_key(landed: HomeOfCheckout, erased: dict[str, Any]) -> None:
    assert (erased["keys"], erased["records"], erased["built_intervals"]) == (1000, 2200, 1)
    assert list(remnants.in_files(landed.lake, MARK)) == []


def test_table_holds_the_rows_of_others_once_and_its_view_the_registered_ones(
    landed: HomeOfCheckout, erased: dict[str, Any]
) -> None:
    rows = read_delta(delta(landed))
    theirs = {
        at
        for at, record in audit.read_topic(landed.kafka, persons.TOPIC).items()
        if record.value and MARK.encode() in record.value
    }
    assert set(audit.identities(rows).values()) == {1}
    assert not audit.coordinates_of(rows).keys() & theirs
    assert 0 < validated(rows).num_rows < rows.num_rows
    shown = view(landed, "wiki_changes_delta")
    assert len(shown) == validated(rows).num_rows
    assert shown == view(landed, "wiki_changes")


def test_log_still_knows_transactions_and_what_commits_said(
    landed: HomeOfCheckout, before: tuple[set[tuple[str, int]], list[str]], erased: dict[str, Any]
) -> None:
    was, told = before
    assert was <= transactions(landed)
    assert [each for each in said(landed) if each in told] == told
    gone = landed.run("sql", f"SELECT * FROM delta.`file://{delta(landed)}` VERSION AS OF 0", expect=None)
    assert gone.returncode != 0
    assert "Traceback" not in gone.stderr


def test_stream_and_intervals_go_on_where_they_were(landed: HomeOfCheckout, erased: dict[str, Any]) -> None:
    version, rows = latest_version(delta(landed)), read_delta(delta(landed)).num_rows
    landed.run("produce", "wiki_changes", "--events", "50", "--start", iso(SECOND), "--span", "30m", "--seed", "5")
    landed.run("stream", "wiki_changes", "--until-caught-up")
    assert latest_version(delta(landed)) > version
    more = read_delta(delta(landed))
    assert more.num_rows > rows
    assert set(audit.identities(more).values()) == {1}
    verdict = landed.interval("wiki_changes", SECOND, "--source", "kafka")
    assert verdict["reconciliation"]["unexplained"] == 0
    assert view(landed, "wiki_changes_delta") == view(landed, "wiki_changes")
    assert list(remnants.in_files(delta(landed), MARK)) == []
    findings = json.loads(landed.run("doctor", "--json", expect=None).stdout)["findings"]
    assert [each for each in findings if each["kind"]] == []
