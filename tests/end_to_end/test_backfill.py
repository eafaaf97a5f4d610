"""A day of intervals, run by Airflow in random order, backwards and side by side, ends as if run in order."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from include.times import Interval
from tests.conftest import Home, iso, last_hours, wait_for
from tests.support import audit
from tests.support.airflow_api import AirflowApi

pytestmark = [pytest.mark.services, pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(5400)]

HOURS = 24
# A whole day, whose last hour the schedule does not run by itself.
START = last_hours(HOURS + 2).replace(hour=0)
EVENTS = 50 * HOURS
INTERVAL, DAILY = "interval__nest_cameras", "daily__nest_cameras"
FATES = ("archived", "empty", "quarantined", "gaps")
AT_RANDOM = 6
"""How many runs are triggered manually before the backfill of all."""


def landed(home: Home) -> None:
    """The same records in every home: a day of them, landed."""
    home.produce("nest_cameras", EVENTS, START, f"{HOURS}h", bad=0.05)
    home.run("stream", "nest_cameras", "--until-caught-up")


def outcome(home: Home) -> dict[str, Any]:
    """What the ledger and the catalog say, without names that differ from home to home."""
    registered = home.rows(
        "ledger",
        "SELECT table_name, table_partition, rows, content_hash, location FROM revisions WHERE state = 'registered'",
    )
    pointed_at = home.rows(
        "catalog",
        'SELECT t."TBL_NAME", p."PART_NAME", s."LOCATION" FROM "PARTITIONS" p '
        'JOIN "TBLS" t ON t."TBL_ID" = p."TBL_ID" JOIN "SDS" s ON s."SD_ID" = p."SD_ID"',
    )
    by_ledger = {
        (table, partition): location.replace("file:///", "file:/") for table, partition, *_, location in registered
    }
    by_catalog = {(table, part): location.replace("file:///", "file:/") for table, part, location in pointed_at}
    assert by_catalog == by_ledger
    ranges = home.rows(
        "ledger",
        f"SELECT i.from_time, r.topic_partition, r.from_offset, r.until_offset, {', '.join(FATES)} "
        "FROM interval_ranges r JOIN intervals i ON i.id = r.interval_id ORDER BY 1, 2",
    )
    # Unpaused, the DAG also runs the last complete hour by its schedule: not one of the day's.
    end = START + timedelta(hours=HOURS)
    labels = {Interval(START + timedelta(hours=h), START + timedelta(hours=h + 1)).label for h in range(HOURS)}
    return {
        "registered": sorted(row[:4] for row in registered if row[1].split("interval=")[1] in labels),
        "ranges": [row for row in ranges if row[0] < end],
    }


@pytest.fixture(scope="module")
def in_order(new_home: Callable[..., Home]) -> dict[str, Any]:
    """The day run hour after hour by the command, in a home of its own."""
    home = new_home()
    home.run("up")
    try:
        landed(home)
        for hour in range(HOURS):
            home.interval("nest_cameras", START + timedelta(hours=hour))
        return outcome(home)
    finally:
        home.end()


@pytest.fixture(scope="module")
def airflow(home: Home) -> Iterator[AirflowApi]:
    landed(home)
    home.run("up", "airflow")
    password = json.loads((home.path / "airflow" / "passwords.json").read_text())["admin"]
    api = AirflowApi(home.address("airflow"), "admin", password)
    wait_for("the DAGs", lambda: {INTERVAL, DAILY} <= api.dag_ids())
    api.set_paused(DAILY, False)
    yield api
    api.set_paused(INTERVAL, True)


def test_catalog_is_the_same_as_in_order_when_a_day_runs_at_random_backwards_and_side_by_side(
    home: Home, airflow: AirflowApi, in_order: dict[str, Any]
) -> None:
    hours = random.Random(20261121).sample(range(HOURS), AT_RANDOM)
    begins = [START + timedelta(hours=hour) for hour in hours]
    triggered = [
        airflow.trigger(INTERVAL, **{"from": iso(begin), "to": iso(begin + timedelta(hours=1))}) for begin in begins
    ]
    airflow.set_paused(INTERVAL, False)

    def states(kind: str) -> Counter[str]:
        return Counter(run["state"] for run in airflow.runs(INTERVAL) if run["run_type"] == kind)

    wait_for("the runs by hand", lambda: states("manual")["success"] == len(triggered), 1200)
    last = START + timedelta(hours=HOURS - 1)
    backfill = airflow.backfill(INTERVAL, iso(START), iso(last), max_active_runs=3, run_backwards=True)
    wait_for("the backfill", lambda: airflow.backfill_ended(backfill), 3600)
    assert states("backfill") == {"success": HOURS}

    # Although the runs are not in the order of time, all pinned ranges tile, and all hashes equal those of ordered
    # runs.
    assert outcome(home) == in_order
    records = audit.read_topic(home.kafka, "nest-logs")
    assert len(records) == EVENTS
    locations = home.rows(
        "ledger", "SELECT location FROM revisions WHERE state = 'registered' AND table_name = 'nest_cameras'"
    )
    table = audit.read_parquet(location for (location,) in locations)
    assert audit.identities(table) == Counter(audit.expected(records).rows.keys())
    side_by_side = home.rows(
        "ledger",
        "SELECT count(*) FROM attempts a JOIN attempts b ON a.id < b.id AND b.started_at < a.ended_at",
    )
    assert side_by_side[0][0] > 0, "no two runs overlapped"


def test_day_is_summed_up_once_when_its_last_interval_is_registered(home: Home, airflow: AirflowApi) -> None:
    wait_for("the day's run", lambda: [run["state"] for run in airflow.runs(DAILY)] == ["success"], 120)
    day = START.strftime("%Y-%m-%d")
    assert airflow.runs(DAILY)[0]["partition_key"] == day
    summary = json.loads((home.lake / "reports" / "nest_cameras" / f"{day}.json").read_text())
    registered_day = outcome(home)
    fates = {name: sum(row[n] for row in registered_day["ranges"]) for n, name in enumerate(FATES, 4)}
    assert summary == {
        "pipeline": "nest_cameras",
        "day": day,
        "intervals": HOURS,
        "records": {"in_ranges": EVENTS, **fates, "erased": 0},
        "tables": {
            table: {
                "partitions": sum(row[0] == table for row in registered_day["registered"]),
                "rows": sum(row[2] for row in registered_day["registered"] if row[0] == table),
            }
            for table in {row[0] for row in registered_day["registered"]}
        },
    }
