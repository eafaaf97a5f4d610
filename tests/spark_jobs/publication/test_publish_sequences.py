"""Build and publish in any order, any number of times: catalog, ledger and files agree after each step.

Every step is the Spark application that Airflow's task runs, over the attempt that the task has in its XCom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow.parquet as pq
import pytest

from include import catalog
from include.intervals import steps
from include.pipelines import load_pipeline
from include.spark.run import run_job
from include.times import Interval
from tests.conftest import Home, iso, last_hours, settings_of, warm_jvm
from tests.support import audit

pytestmark = [pytest.mark.services]

PIPELINE = load_pipeline("nest_cameras")
START = last_hours(3)

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

    def query(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg2.connect(self.home.database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    @property
    def label(self) -> str:
        return f"interval={self.interval.label}"

    def in_ledger(self, state: str = "registered") -> Registered:
        rows = self.query(
            "SELECT table_name, table_partition, location FROM revisions WHERE state = %s AND table_partition LIKE %s",
            state,
            f"%{self.label}",
        )
        return {(table, partition, catalog.comparable_location(location)) for table, partition, location in rows}

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
        assert self.query("SELECT state FROM intervals WHERE from_time = %s", self.interval.from_time) == [
            ("registered",)
        ]
        ranges = steps.ranges_of(PIPELINE.name, self.interval) if hasattr(steps, "ranges_of") else self._ranges()
        records = audit.in_ranges(audit.read_topic(self.home.kafka, "nest-logs"), ranges)
        rows = audit.expected(records).rows
        assert rows
        locations = [location for table, _, location in registered if table == PIPELINE.table]
        assert set(audit.identities(audit.read_parquet(locations)).items()) == {(identity, 1) for identity in rows}
        return registered

    def _ranges(self) -> list[dict[str, Any]]:
        rows = self.query(
            "SELECT r.topic, r.topic_partition, r.from_offset, r.until_offset FROM interval_ranges r "
            "JOIN intervals i ON i.id = r.interval_id WHERE i.from_time = %s",
            self.interval.from_time,
        )
        return [dict(zip(("topic", "partition", "from_offset", "until_offset"), row, strict=True)) for row in rows]

    def latest(self, attempt: int, table: str = PIPELINE.table) -> tuple[str, Path]:
        """Partition and folder of the revision of the table that the attempt built last."""
        (partition, location), *_ = self.query(
            "SELECT table_partition, location FROM revisions WHERE attempt_id = %s AND table_name = %s "
            "ORDER BY built_at DESC LIMIT 1",
            attempt,
            table,
        )
        return partition, Path(location.removeprefix("file://"))

    def lose_a_row(self, attempt: int) -> None:
        """Take a row from a file of what the attempt built last: its checkpoint cannot pass."""
        _, folder = self.latest(attempt)
        cut_file(next(folder.glob("*.parquet")))


def cut_file(file: Path) -> None:
    table = pq.ParquetFile(file).read()
    pq.write_table(table.slice(1), file)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def landed(home: Home) -> Iterator[Home]:
    """Three hours of records, landed; this process and the Spark applications that it submits are in the home."""
    arguments = ("--events", "600", "--bad-fraction", "0.05", "--start", iso(START), "--span", "179m")
    home.run("produce", PIPELINE.name, *arguments)
    home.run("stream", PIPELINE.name, "--until-caught-up")
    with settings_of(home, **warm_jvm().environment()):
        yield home


@pytest.fixture(scope="module")
def hours(landed: Home) -> Iterator[Hour]:
    return iter([Hour(landed, Interval(START + timedelta(hours=n), START + timedelta(hours=n + 1))) for n in range(3)])


@pytest.fixture(scope="module")
def hour(hours: Iterator[Hour]) -> Hour:
    """The interval of most tests here; what is registered of it must outlive each of them."""
    return next(hours)


@pytest.fixture(scope="module")
def published(hour: Hour) -> int:
    """An attempt that was built and published once."""
    attempt = hour.begin()
    hour.run(attempt)
    hour.check()
    return attempt


def test_later_build_replaces_the_earlier_one_when_an_attempt_is_built_twice_before_it_is_published(
    hours: Iterator[Hour],
) -> None:
    other = next(hours)
    attempt = other.begin()
    other.build(attempt)
    first = {location for _, _, location in other.in_ledger("built")}
    other.build(attempt)
    second = {location for _, _, location in other.in_ledger("built")}
    assert {location for _, _, location in other.in_ledger("discarded")} == first
    assert second
    assert not second & first
    other.publish(attempt)
    other.announce(attempt)
    assert {location for _, _, location in other.check()} == second


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
