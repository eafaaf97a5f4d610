"""Every shipped pipeline under the scheduler at once: its stream, its intervals, a backfill, and what is cleared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import psutil
import pytest

from include.pipelines import load_pipeline
from include.schemas.registry import SchemaRegistry
from include.times import Interval
from tests.conftest import Home, iso, last_hours, wait_for
from tests.support import audit, bids, changes, hits, positions, registered
from tests.support.airflow_api import AirflowApi
from tests.support.airflow_ui import api_of
from tests.support.delta_log import read_delta
from tests.support.shipped import SHIPPED

pytestmark = [
    pytest.mark.services,
    pytest.mark.airflow,
    pytest.mark.own_drivers,
    pytest.mark.slow,
    pytest.mark.timeout(7200),
]

TOPICS = {
    "auction_bids": "auction-bids",
    "gps_positions": "gps",
    "isp_hits": "isp-hits",
    "nest_cameras": "nest-logs",
    "wiki_changes": "wiki-changes",
}
EVENTS = 600
HOURS = 2
# The schedule runs the last of the hours by itself, the backfill the others.
START = last_hours(HOURS)
LABELS = [Interval(START + timedelta(hours=h), START + timedelta(hours=h + 1)).label for h in range(HOURS)]
PATIENCE = 3000
"""Seconds: ten Spark applications, two at a time, beside five streams, on a machine that may do more."""

FATES = ("archived", "empty", "quarantined")

FatesOf = Callable[[dict[audit.Coordinates, audit.Record]], audit.Fates]


def oracle_of(home: Home, pipeline: str) -> FatesOf:
    """What the audit expects of a pipeline's records, in plain Python."""
    if pipeline == "gps_positions":
        return positions.fates_by(SchemaRegistry(home.address("registry")))
    oracles: dict[str, FatesOf] = {
        "auction_bids": bids.fates_of,
        "isp_hits": hits.fates_of,
        "nest_cameras": audit.expected,
        "wiki_changes": changes.fates_of,
    }
    return oracles[pipeline]


@dataclass(frozen=True)
class Scheduled:
    """Airflow, and which of its runs builds which hour of a pipeline."""

    api: AirflowApi

    def run_of(self, pipeline: str, hour: int) -> dict[str, Any] | None:
        """The run of an hour's data interval, by the schedule or a backfill."""
        begin = START + timedelta(hours=hour)
        for run in self.api.runs(f"interval__{pipeline}"):
            if run["logical_date"] and datetime.fromisoformat(run["logical_date"]).astimezone(UTC) == begin:
                return run
        return None

    def backfill(self, *, again: bool = False) -> None:
        """Backfill the hours of all pipelines, and wait until each run of them has succeeded."""
        last = iso(START + timedelta(hours=HOURS - 1))
        made = {name: self.api.backfill(f"interval__{name}", iso(START), last, again=again) for name in TOPICS}
        for name, backfill in made.items():
            wait_for(f"the backfill of {name}", lambda b=backfill: self.api.backfill_ended(b), PATIENCE)
        self.wait_for_success()

    def wait_for_success(self) -> None:
        for name in TOPICS:
            for hour in range(HOURS):
                run = wait_for(f"{name} {LABELS[hour]}", lambda n=name, h=hour: self._ended(n, h), PATIENCE)
                tasks = self.api.tasks(f"interval__{name}", run["dag_run_id"])
                assert run["state"] == "success", f"{name} {LABELS[hour]}: {tasks}"

    def _ended(self, pipeline: str, hour: int) -> dict[str, Any] | None:
        run = self.run_of(pipeline, hour)
        return run if run and run["state"] in ("success", "failed") else None


def in_hours(home: Home) -> dict[str, list[tuple[Any, ...]]]:
    """All that is registered for the hours, and the ranges that these are pinned to, with each offset's fate."""
    label = "substring(table_partition FROM 'interval=(.*)')"
    revisions = (
        "SELECT table_name, table_partition, id, location, rows, content_hash, registered_at FROM revisions "
        f"WHERE state = 'registered' AND {label} = ANY(%s) ORDER BY 1, 2"
    )
    ranges = (
        "SELECT i.pipeline, i.from_time, r.topic, r.topic_partition, r.from_offset, r.until_offset, r.archived, "
        "r.empty, r.quarantined, r.gaps FROM interval_ranges r JOIN intervals i ON i.id = r.interval_id "
        "WHERE i.from_time < %s ORDER BY 1, 2, 3, 4"
    )
    until = START + timedelta(hours=HOURS)
    return {"registered": home.ledger(revisions, LABELS), "ranges": home.ledger(ranges, until)}


def launches(home: Home) -> list[tuple[Any, ...]]:
    return home.ledger("SELECT pipeline, id, pid, exit_code FROM stream_launches ORDER BY pipeline, number")


@pytest.fixture(scope="module")
def airflow(home: Home) -> Iterator[AirflowApi]:
    home.run("up", "registry")
    home.run("up", "airflow", TIDEMARK_ARCHIVE_WAIT="45m", TIDEMARK_DRIVER_MEMORY="768m")
    api = api_of(home)
    dags = {f"{kind}__{name}" for kind in ("stream", "interval") for name in TOPICS}
    wait_for("the DAGs", lambda: dags <= api.dag_ids(), 180)
    assert api.import_errors() == []
    yield api
    for name in TOPICS:
        api.set_paused(f"stream__{name}", True)
        home.run("stream", name, "--stop", expect=None)
    for _, _, pid, _ in launches(home):
        if pid is not None and psutil.pid_exists(pid):
            psutil.wait_procs([psutil.Process(pid)], timeout=60)


@pytest.fixture(scope="module")
def streaming(home: Home, airflow: AirflowApi) -> list[tuple[Any, ...]]:
    """The launches of all streams, each of which has committed its whole topic with each of its queries."""
    for name in TOPICS:
        home.produce(name, EVENTS, START, f"{HOURS}h", bad=0.05)
        airflow.set_paused(f"stream__{name}", False)

    full = (
        "SELECT pipeline FROM positions WHERE query = 'archive' GROUP BY pipeline HAVING sum(next_offset) = %s "
        "ORDER BY pipeline"
    )
    everybody = [(name,) for name in sorted(TOPICS)]
    wait_for("the streams", lambda: home.ledger(full, EVENTS) == everybody, PATIENCE)
    wait_for("their views", lambda: not lagging(home), PATIENCE)
    return launches(home)


def lagging(home: Home) -> list[str]:
    """The queries of which something waits."""
    return [f"{each['pipeline']}.{each['query']}" for each in home.json("lag", "--json") if each["lag"]]


@pytest.fixture(scope="module")
def built(home: Home, airflow: AirflowApi, streaming: list[tuple[Any, ...]]) -> Scheduled:
    """Both hours of all pipelines built: the last one by the schedule, the other by a backfill."""
    scheduled = Scheduled(airflow)
    for name in TOPICS:
        airflow.set_paused(f"interval__{name}", False)
    scheduled.backfill()
    return scheduled


def test_these_are_all_pipelines_that_are_shipped() -> None:
    assert {name: load_pipeline(name).source.named for name in SHIPPED} == {
        name: (topic,) for name, topic in TOPICS.items()
    }


def test_all_streams_run_at_once_each_launched_once(home: Home, streaming: list[tuple[Any, ...]]) -> None:
    assert [(name, code) for name, _, _, code in streaming] == [(name, None) for name in sorted(TOPICS)]
    live = home.ledger("SELECT pipeline FROM writers WHERE holder <> '' AND expires_at > now() ORDER BY 1")
    assert [name for (name,) in live] == sorted(TOPICS)


@pytest.mark.parametrize("pipeline", TOPICS)
def test_each_record_of_a_topic_has_one_fate_in_landing_and_ledger(
    home: Home, streaming: list[tuple[Any, ...]], pipeline: str
) -> None:
    oracle = oracle_of(home, pipeline)
    assert audit.check_archive(home.kafka, home.database, home.lake, TOPICS[pipeline], oracle) == EVENTS
    fates = oracle(audit.read_topic(home.kafka, TOPICS[pipeline]))
    assert fates.archived
    assert fates.bad


@pytest.mark.parametrize("pipeline", TOPICS)
def test_intervals_are_registered_by_the_schedule_and_a_backfill_with_nothing_unexplained(
    home: Home, built: Scheduled, pipeline: str
) -> None:
    verdicts = home.ledger(
        "SELECT a.run_by, a.verdict FROM attempts a JOIN intervals i ON i.id = a.interval_id "
        "WHERE i.pipeline = %s AND i.from_time < %s AND a.exit_code = 0 ORDER BY i.from_time",
        pipeline,
        START + timedelta(hours=HOURS),
    )
    assert len(verdicts) >= HOURS
    assert verdicts[0][0].startswith("airflow backfill__")
    assert {verdict["reconciliation"]["unexplained"] for _, verdict in verdicts} == {0}
    assert all(verdict["validation"]["success"] for _, verdict in verdicts)

    records, oracle = audit.read_topic(home.kafka, TOPICS[pipeline]), oracle_of(home, pipeline)
    ranges = [row for row in in_hours(home)["ranges"] if row[0] == pipeline]
    topic = TOPICS[pipeline]
    inside: dict[audit.Coordinates, audit.Record] = {}
    for begin in {row[1] for row in ranges}:
        pinned = [row for row in ranges if row[1] == begin]
        bounds = [{"topic": topic, "partition": r[3], "from_offset": r[4], "until_offset": r[5]} for r in pinned]
        part = audit.in_ranges(records, bounds)
        told = Counter({(row[3], fate): row[n] for row in pinned for n, fate in enumerate(FATES, 6)})
        assert told == audit.counts_by_partition(oracle(part)), f"{pipeline} {begin}"
        assert {row[9] for row in pinned} == {0}
        assert not inside.keys() & part.keys()
        inside.update(part)
    assert inside == records
    check_tables(home, pipeline, oracle(records))


def check_tables(home: Home, pipeline: str, fates: audit.Fates) -> None:
    """The registered locations hold each good row once, by pyarrow and by DuckDB, and the catalog shows these."""
    locations = [row[3] for row in in_hours(home)["registered"] if row[0] == pipeline]
    assert audit.identities(audit.read_parquet(locations)) == Counter(fates.rows.keys())
    files = [f"{location.removeprefix('file://')}/*.parquet" for location in locations]
    identity = "kafka_topic, kafka_partition, kafka_offset, kafka_element"
    counted = f"SELECT count(*), count(DISTINCT ({identity})) FROM read_parquet($1, union_by_name = true)"
    assert duckdb.execute(counted, [files]).fetchall() == [(len(fates.rows), len(fates.rows))]
    for label in LABELS:
        shown = registered.in_catalog(home.database, label)
        noted = registered.in_ledger(home.database, "registered", label)
        assert {each for each in shown if each[0].startswith(pipeline)} == {
            each for each in noted if each[0].startswith(pipeline)
        }
    if pipeline == "gps_positions":
        assert audit.identities(read_delta(home.lake / "delta" / pipeline)) == Counter(fates.rows.keys())


def test_registered_state_stays_equal_when_hours_are_backfilled_again_and_a_task_is_cleared(
    home: Home, built: Scheduled
) -> None:
    before, attempts = in_hours(home), attempts_by_pipeline(home)
    assert {row[0] for row in before["registered"]} >= TOPICS.keys()
    built.backfill(again=True)
    assert in_hours(home) == before
    again = attempts_by_pipeline(home)
    assert again - attempts == Counter(dict.fromkeys(TOPICS, HOURS))

    builds = "SELECT count(*) FROM builds"
    [(count,)] = home.ledger(builds)
    for name in TOPICS:
        run = built.run_of(name, 0)
        assert run is not None
        built.api.clear(f"interval__{name}", run["dag_run_id"], "build_interval")
    built.wait_for_success()
    assert in_hours(home) == before
    # A cleared task builds anew in the attempt that is there.
    assert home.ledger(builds) >= [(count + len(TOPICS),)]
    assert attempts_by_pipeline(home) == again
    examined = json.loads(home.run("doctor", "--json", expect=None).stdout)
    assert [each for each in examined["findings"] if not each["ok"]] == []


def attempts_by_pipeline(home: Home) -> Counter[str]:
    """How many attempts at the hours have passed."""
    query = (
        "SELECT i.pipeline, count(*) FROM attempts a JOIN intervals i ON i.id = a.interval_id "
        "WHERE a.exit_code = 0 AND i.from_time < %s GROUP BY 1"
    )
    return Counter(dict(home.ledger(query, START + timedelta(hours=HOURS))))


def test_streams_are_the_same_drivers_when_all_intervals_were_built(
    home: Home, airflow: AirflowApi, streaming: list[tuple[Any, ...]], built: Scheduled
) -> None:
    assert launches(home) == streaming
    for name in TOPICS:
        assert not airflow.is_paused(f"stream__{name}")
    assert lagging(home) == []
