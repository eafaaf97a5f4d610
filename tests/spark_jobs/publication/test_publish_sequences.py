"""Build and publish in any order, any number of times: catalog, ledger and files agree after each step.

Every step is the Spark application that Airflow's task runs, over the attempt that the task has in its XCom.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from include import catalog, lake
from include.errors import AnotherWriter, UsageError
from include.intervals import steps
from include.intervals.verdict import Verdict
from include.ledger.intervals import locks
from include.ledger.validation import approvals
from include.pipelines import load_pipeline
from include.spark.run import run_job
from include.times import Interval
from tests.conftest import Home, iso, last_hours, settings_of, warm_jvm
from tests.support import audit
from tests.support.busier import busier_before
from tests.support.killed import was_killed

pytestmark = [pytest.mark.services]

PIPELINE = load_pipeline("nest_cameras")
HOURS = 3
START = last_hours(HOURS)

Registered = set[tuple[str, str, str]]
"""Table, partition and location."""


@dataclass
class Hour:
    """A landed interval whose steps run one by one, in this process's settings."""

    home: Home
    interval: Interval

    def begin(self) -> int:
        return steps.pin(PIPELINE.name, self.interval, run_by="test")

    def build(self, attempt: int) -> None:
        assert run_job(steps.submit("build_interval", PIPELINE.name, attempt)) == 0
        steps.judge_reconciliation(attempt)

    def publish(self, attempt: int, expect: int = 0) -> None:
        assert run_job(steps.submit("publish", PIPELINE.name, attempt)) == expect

    def announce(self, attempt: int) -> dict[str, Any]:
        return steps.announce(attempt).as_json()

    def run(self, attempt: int) -> None:
        self.build(attempt)
        self.publish(attempt)
        assert self.announce(attempt)["validation"]["success"] is True

    @property
    def label(self) -> str:
        return f"interval={self.interval.label}"

    def in_ledger(self, state: str = "registered") -> Registered:
        rows = self.home.ledger(
            "SELECT table_name, table_partition, location FROM revisions WHERE state = %s AND table_partition LIKE %s",
            state,
            f"%{self.label}",
        )
        return {(table, partition, catalog.comparable_location(location)) for table, partition, location in rows}

    def locations(self, state: str) -> set[str]:
        return {location for _, _, location in self.in_ledger(state)}

    def in_catalog(self) -> Registered:
        return {
            (table, partition, catalog.comparable_location(entry.location))
            for (table, partition), entry in catalog.partitions(PIPELINE.tables).items()
            if partition.endswith(self.label)
        }

    def check(self) -> Registered:
        """Assert that catalog, ledger and files agree, each row once; what is registered."""
        registered = self.in_ledger()
        assert registered == self.in_catalog()
        assert self.in_ledger("registering") == set()
        assert self.home.ledger("SELECT state FROM intervals WHERE from_time = %s", self.interval.from_time) == [
            ("registered",)
        ]
        records = audit.in_ranges(audit.read_topic(self.home.kafka, "nest-logs"), self._ranges())
        rows = audit.expected(records).rows
        assert rows
        locations = [location for table, _, location in registered if table == PIPELINE.table]
        assert set(audit.identities(audit.read_parquet(locations)).items()) == {(identity, 1) for identity in rows}
        return registered

    def _ranges(self) -> list[dict[str, Any]]:
        rows = self.home.ledger(
            "SELECT r.topic, r.topic_partition, r.from_offset, r.until_offset FROM interval_ranges r "
            "JOIN intervals i ON i.id = r.interval_id WHERE i.from_time = %s",
            self.interval.from_time,
        )
        return [dict(zip(("topic", "partition", "from_offset", "until_offset"), row, strict=True)) for row in rows]

    def latest(self, attempt: int) -> tuple[str, Path]:
        """Partition and folder of the archive table's revision that the attempt built last."""
        (partition, location), *_ = self.home.ledger(
            "SELECT table_partition, location FROM revisions WHERE attempt_id = %s AND table_name = %s "
            "ORDER BY built_at DESC LIMIT 1",
            attempt,
            PIPELINE.table,
        )
        return partition, Path(location.removeprefix("file://"))

    def lose_a_row(self, attempt: int) -> None:
        """Let the attempt's last build have been built without a row, so that its checkpoint cannot pass."""
        _, folder = self.latest(attempt)
        file = next(folder.glob("*.parquet"))
        cut_file(file)
        built = json.dumps({"bytes": file.stat().st_size, "sha256": lake.sha256(f"file://{file}")})
        self.home.ledger(
            "UPDATE revisions SET files = jsonb_set(files, ARRAY[%s], files -> %s || %s::jsonb) WHERE location = %s",
            *(file.name, file.name, built, f"file://{folder}"),
        )

    def move_to(self, attempt: int, date: str) -> None:
        """Move the attempt's last build to the table partition of another date."""
        partition, folder = self.latest(attempt)
        moved = Path(str(folder).replace(partition, f"date={date}/{self.label}"))
        moved.parent.mkdir(parents=True)
        folder.rename(moved)
        self.home.ledger(
            "UPDATE revisions SET table_partition = %s, location = %s WHERE location = %s RETURNING id",
            f"date={date}/{self.label}",
            f"file://{moved}",
            f"file://{folder}",
        )

    def kill(self, moment: str) -> None:
        """Run the whole interval and kill it at a named place."""
        bounds = ("--from", iso(self.interval.from_time), "--to", iso(self.interval.to_time))
        killed = self.home.run("interval", PIPELINE.name, *bounds, expect=None, TIDEMARK_CRASH_AT=moment)
        assert was_killed(killed), f"not killed at {moment}: {killed.stderr[-2000:]}"


def cut_file(file: Path) -> None:
    table = pq.ParquetFile(file).read()
    pq.write_table(table.slice(1), file)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def landed(home: Home) -> Iterator[Home]:
    """Hours of records, landed; this process and the Spark applications that it submits are in the home."""
    home.produce(PIPELINE.name, 360, START, f"{HOURS * 60 - 1}m", bad=0.05)
    home.run("stream", PIPELINE.name, "--until-caught-up")
    with settings_of(home, TIDEMARK_UNUSUAL="warn", **warm_jvm().environment()):
        yield home


@pytest.fixture(scope="module")
def hours(landed: Home) -> Iterator[Hour]:
    return iter(
        [Hour(landed, Interval(START + timedelta(hours=n), START + timedelta(hours=n + 1))) for n in range(HOURS)]
    )


@pytest.fixture(scope="module")
def hour(hours: Iterator[Hour]) -> Hour:
    """The interval of most tests here; what is registered of it must outlive each of them."""
    return next(hours)


@dataclass
class Published:
    """An attempt that ended before anything was built, was built twice, and then published: what was seen of it."""

    attempt: int
    verdict: Verdict
    """Before anything was built."""
    state: str
    first: set[str]
    """Locations of the first build."""
    second: set[str]
    discarded: set[str]


@pytest.fixture(scope="module")
def history(hour: Hour) -> Published:
    hour.begin()
    # Ranges that nobody has pinned yet are not pinned again.
    attempt = steps.pin(PIPELINE.name, hour.interval, run_by="test", repin=True)
    assert hour.home.ledger("SELECT repinned_by FROM repins") == [("test",)]
    verdict = steps.announce(attempt)
    ((state,),) = hour.home.ledger("SELECT state FROM intervals WHERE from_time = %s", hour.interval.from_time)
    hour.build(attempt)
    first = hour.locations("built")
    hour.build(attempt)
    found = Published(attempt, verdict, state, first, hour.locations("built"), hour.locations("discarded"))
    hour.publish(attempt)
    assert hour.announce(attempt)["validation"]["success"] is True
    hour.check()
    return found


@pytest.fixture(scope="module")
def published(history: Published) -> int:
    return history.attempt


def test_interval_has_failed_when_its_attempt_ends_before_anything_is_built(hour: Hour, history: Published) -> None:
    assert history.verdict.exit_code == 2
    assert history.verdict.as_json()["validation"]["success"] is None
    assert history.state == "failed"
    hour.check()


def test_later_build_replaces_the_earlier_one_when_an_attempt_is_built_twice_before_it_is_published(
    hour: Hour, history: Published
) -> None:
    assert history.discarded == history.first
    assert history.second
    assert not history.second & history.first
    assert {location for _, _, location in hour.check()} == history.second


@pytest.mark.slow
def test_registered_state_stays_when_a_published_attempt_is_built_and_published_again(
    hour: Hour, published: int
) -> None:
    before = hour.check()
    hour.build(published)
    assert hour.in_ledger() == before
    hour.publish(published)
    assert hour.announce(published)["validation"]["success"] is True
    assert hour.check() == before


def test_registered_state_stays_when_an_unchanged_attempt_is_published_again(hour: Hour, published: int) -> None:
    before = hour.check()
    again = hour.begin()
    hour.build(again)
    hour.publish(again)
    hour.publish(again)
    hour.publish(published)
    for attempt in (again, published):
        verdict = hour.announce(attempt)
        assert verdict["validation"]["success"] is True
        assert verdict["expectations"]
        assert {(r["table"], r["partition"]) for r in verdict["registered"]} == {(t, p) for t, p, _ in before}
    assert hour.check() == before


@pytest.mark.slow
def test_registered_state_stays_when_a_later_attempt_fails_validation_and_the_first_is_published_again(
    hour: Hour, published: int
) -> None:
    before = hour.check()
    failing = hour.begin()
    hour.build(failing)
    hour.lose_a_row(failing)
    hour.publish(failing, expect=2)
    assert hour.check() == before
    hour.publish(failing, expect=2)
    assert hour.announce(failing)["registered"] == []
    assert hour.check() == before
    hour.publish(published)
    assert hour.announce(published)["validation"]["success"] is True
    assert hour.check() == before


def warn(hour: Hour) -> approvals.Question:
    """Build and publish an attempt of the interval, whose rows are far fewer than usual."""
    attempt = hour.begin()
    hour.build(attempt)
    hour.publish(attempt, expect=2)
    question = approvals.last_of_interval(PIPELINE.name, hour.interval)
    assert question is not None
    assert question.attempt == attempt
    assert [each["expectation"] for each in question.warnings] == ["expect_table_row_count_to_be_between"]
    return question


def approve(hour: Hour, *extra: str, expect: int = 0) -> dict[str, Any]:
    """The verdict that the command prints when it decides about the interval."""
    bounds = ("--from", iso(hour.interval.from_time), "--to", iso(hour.interval.to_time))
    done = hour.home.run("approve", PIPELINE.name, *bounds, *extra, expect=expect, TIDEMARK_UNUSUAL="warn")
    verdict: dict[str, Any] = json.loads(done.stdout)
    return verdict


@pytest.mark.slow
def test_unusual_interval_waits_for_a_person_and_is_registered_when_the_command_approves_it(
    hour: Hour, published: int
) -> None:
    before = hour.check()
    with busier_before(hour.home, PIPELINE.name, hour.interval.from_time):
        question = warn(hour)
        assert hour.check() == before
        # An approval under another suite does not count, and the question is asked again.
        hour.home.ledger("UPDATE approvals SET suite = 'another' WHERE id = %s", question.id)
        waiting = approve(hour, "--reason", "a quiet day", expect=2)
        assert (waiting["registered"], "decision" in waiting["validation"]) == ([], False)
        assert hour.check() == before
        anew = waiting["validation"]["question"]
        assert anew > question.id
        verdict = approve(hour, "--reason", "a quiet day", "--question", str(anew))
    validation = verdict["validation"]
    assert (validation["success"], validation["question"]) == (True, anew)
    assert (validation["decision"]["decision"], validation["decision"]["reason"]) == ("approved", "a quiet day")
    missed = [each for each in verdict["expectations"] if not each["success"]]
    assert [each["severity"] for each in missed] == ["warn"]
    assert hour.check() == before


@pytest.mark.slow
def test_unusual_interval_is_not_registered_and_the_catalog_stays_when_it_is_refused(
    hour: Hour, published: int
) -> None:
    before = hour.check()
    with busier_before(hour.home, PIPELINE.name, hour.interval.from_time):
        question = warn(hour)
        refused = approve(hour, "--reason", "rows are missing", "--refuse")
        assert refused["validation"]["decision"]["decision"] == "refused"
        # It holds for another suite, too, because the build was refused.
        hour.home.ledger("UPDATE approvals SET suite = 'another' WHERE id = %s", question.id)
        hour.publish(question.attempt, expect=2)
        verdict = hour.announce(question.attempt)
    assert (verdict["validation"]["success"], verdict["registered"]) == (False, [])
    assert hour.check() == before


@pytest.mark.slow
def test_registered_state_is_one_builds_when_two_attempts_are_published_at_once(hours: Iterator[Hour]) -> None:
    other = next(hours)
    attempts = [other.begin(), other.begin()]
    for attempt in attempts:
        other.build(attempt)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(other.publish, attempts))
    for attempt in attempts:
        assert other.announce(attempt)["validation"]["success"] is True
    other.check()


def test_publication_is_refused_when_another_does_not_end(hour: Hour) -> None:
    with (
        locks.publishing(PIPELINE.name, hour.interval),
        pytest.raises(AnotherWriter, match="somebody else is publishing"),
        locks.publishing(PIPELINE.name, hour.interval, locks.NO_WAIT),
    ):
        pass
    with locks.publishing(PIPELINE.name, hour.interval, locks.NO_WAIT) as check:
        check()


@pytest.mark.slow
def test_move_between_table_partitions_is_finished_by_the_next_publication_when_it_is_killed_twice(
    hours: Iterator[Hour], hour: Hour, published: int
) -> None:
    other = next(hours)
    attempt = other.begin()
    other.build(attempt)
    other.move_to(attempt, "2020-01-01")
    other.publish(attempt)
    other.announce(attempt)
    before = other.check()

    other.kill("partition_dropped")
    # The ledger keeps the intent until all is done; no reader of the catalog finds a row twice.
    assert other.in_ledger() == before
    assert other.in_catalog() == {each for each in before if "date=2020-01-01" not in each[1]}
    # The next publication continues what was begun, and may be killed as well.
    other.kill("partition_registered")
    assert other.in_ledger() == before

    hour.publish(published)
    after = other.check()
    assert {partition for table, partition, _ in after if table == PIPELINE.table}.isdisjoint(
        partition for table, partition, _ in before if table == PIPELINE.table
    )


def test_repin_is_refused_when_an_attempt_is_under_way(hour: Hour, published: int) -> None:
    """The published attempt was of a repin; now one is under way."""
    with (
        locks.attempt_under_way(PIPELINE.name, hour.interval),
        pytest.raises(UsageError, match="an attempt of it is under way"),
    ):
        steps.pin(PIPELINE.name, hour.interval, run_by="test", repin=True)
    hour.check()


def test_rebuild_differs_and_names_the_file_when_a_registered_file_was_altered(hour: Hour, published: int) -> None:
    partition, location = next((p, at) for table, p, at in hour.check() if table == PIPELINE.table)
    file = next(Path(location.removeprefix("file://")).glob("*.parquet"))
    original = file.read_bytes()
    altered = bytearray(original)
    altered[len(altered) // 2] ^= 0x10
    file.write_bytes(altered)
    try:
        run = hour.home.run("rebuild", PIPELINE.table, partition, "--json", expect=1)
    finally:
        file.write_bytes(original)
    assert run.stdout, run.stderr
    comparison = json.loads(run.stdout)
    assert comparison["equal"] is False
    assert comparison["rebuilt_hash"] == comparison["registered_hash"]
    assert [each["name"] for each in comparison["differing_files"]] == [file.name]
    assert file.name in run.stderr
    hour.check()
