"""A view that is taken out of the declaration: what was begun with it is finished, and later intervals publish."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from include import catalog
from include.intervals import steps
from include.ledger.intervals import builds, revisions
from include.ledger.intervals.attempts import load_attempt
from include.pipelines import load_pipeline
from include.spark.run import run_job
from include.spark.submission import submission
from include.times import Interval
from spark_jobs.publication import register
from tests.conftest import REPOSITORY, Home, iso, last_hours, settings_of, warm_jvm

pytestmark = [pytest.mark.services]

ARCHIVE, VIEW = load_pipeline("nest_cameras").tables
HOURS = 6
START = last_hours(HOURS)


@pytest.fixture(scope="module")
def landed(home: Home) -> Iterator[Home]:
    """Hours of records, landed; this process and the Spark applications that it submits are in the home."""
    home.run("produce", ARCHIVE, "--events", "400", "--start", iso(START), "--span", f"{HOURS * 60 - 1}m")
    home.run("stream", ARCHIVE, "--until-caught-up")
    with settings_of(home, TIDEMARK_UNUSUAL="warn", **warm_jvm().environment()):
        yield home


def begin(hour: int) -> int:
    begins = START + timedelta(hours=hour)
    return steps.pin(ARCHIVE, Interval(begins, begins + timedelta(hours=1)), run_by="test")


def errors_of(home: Home, scenario: str, *attempts: int) -> dict[str, str]:
    file = home.path / f"{scenario}.json"
    job = submission("publish", scenario, ARCHIVE, str(file), *map(str, attempts), name=scenario, short=True)
    assert run_job(replace(job, job=str(REPOSITORY / "tests" / "support" / "removed_view"))) == 0
    errors: dict[str, str] = json.loads(file.read_text())
    return errors


def states(home: Home, attempt: int) -> dict[str, set[str]]:
    """Return the states of the revisions of the attempt's last build, by table."""
    found: dict[str, set[str]] = {}
    build = load_attempt(attempt).build
    for table, state in home.ledger("SELECT table_name, state FROM revisions WHERE build_id = %s", build):
        found.setdefault(table, set()).add(state)
    return found


def check(*tables: str) -> None:
    """Assert that the catalog points at what the ledger lists as registered of these tables."""
    registered = {(table, each.partition, each.location) for table in tables for each in revisions.registered(table)}
    assert {table for table, _, _ in registered} == set(tables)
    pointed = {(*key, entry.location) for key, entry in catalog.partitions(tables).items()}
    comparable = catalog.comparable_location
    assert {(t, p, comparable(at)) for t, p, at in registered} == {(t, p, comparable(at)) for t, p, at in pointed}
    assert builds.begun_registrations(ARCHIVE) == []


def test_later_interval_publishes_and_the_ledger_lists_what_the_catalog_has_when_a_view_goes_between_two_steps(
    landed: Home,
) -> None:
    waiting, killed, killed_later, other = map(begin, range(4))
    errors = errors_of(landed, "begun", other, waiting, killed, killed_later)
    refused = errors.pop("waiting")
    assert refused.startswith("AnotherWriter 5: nest_cameras: ")
    assert f"was built while {VIEW} was declared; nothing was registered — run the interval again" in refused
    assert set(errors.values()) == {""}
    assert states(landed, waiting) == {ARCHIVE: {"registered"}}
    assert states(landed, killed) == {ARCHIVE: {"registered"}, VIEW: {"superseded"}}
    # The catalog pointed at it already.
    assert states(landed, killed_later) == {ARCHIVE: {"registered"}, VIEW: {"registered"}}
    check(ARCHIVE, VIEW)


def test_table_is_named_when_code_that_does_not_declare_it_takes_its_rows_out_of_the_catalog(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """The view may be new, and this host may not have its code yet."""
    rows = [SimpleNamespace(table=table, partition=f"hour={hour}") for table in (ARCHIVE, VIEW) for hour in (1, 2)]
    monkeypatch.setattr(register.revisions, "registered_of_interval", lambda _: rows)
    pipeline = replace(load_pipeline(ARCHIVE), views=(), reports=())
    nothing: Any = None
    run: Any = SimpleNamespace(pipeline=pipeline, pinned=SimpleNamespace(id=1, interval="an hour"))
    assert register._changes(run, nothing, []).drops == tuple(rows)
    assert said == [f"{VIEW}: rows of an hour leave the catalog: the table is not declared by this code"]


@pytest.mark.parametrize("later", ["another interval", pytest.param("the interval again", marks=pytest.mark.slow)])
def test_old_and_later_intervals_publish_when_the_table_of_a_removed_view_was_dropped(landed: Home, later: str) -> None:
    registered = begin(4)
    errors = errors_of(landed, "dropped", begin(5 if later == "another interval" else 4), registered)
    assert set(errors.values()) == {""}
    # Where the interval is built again, the archive's rows are the same, so the first build's stay.
    of_view = "registered" if later == "another interval" else "superseded"
    assert states(landed, registered) == {ARCHIVE: {"registered"}, VIEW: {of_view}}
    check(ARCHIVE)
