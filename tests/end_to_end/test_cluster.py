"""Past one machine: two pipelines on a standalone Spark cluster of a master and two workers."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Home, iso, last_hours
from tests.support import audit
from tests.support.standalone import Cluster, standalone_cluster

pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.slow, pytest.mark.timeout(2400)]

START = last_hours(3)
EVENTS = 2000
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # An application takes two cores of the four, so that a stream and an interval run side by side.
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), workers=2, cores=2, cores_of_application=2) as started:
        yield started


@pytest.fixture(scope="module")
def on_cluster(home: Home, cluster: Cluster) -> dict[str, str]:
    """The settings under which the home's jobs run on the cluster, after records were produced."""
    for pipeline in ("nest_cameras", "isp_hits"):
        home.produce(pipeline, EVENTS, START, "3h", bad=0.02)
    return {"TIDEMARK_SPARK_MASTER": cluster.master}


def test_stream_and_interval_run_side_by_side_on_both_workers(
    home: Home, cluster: Cluster, on_cluster: dict[str, str]
) -> None:
    verdicts: dict[str, Any] = {}
    stream = home.start("stream", "nest_cameras", **on_cluster)
    try:
        assert stream.stderr is not None
        committed = 0
        while committed < EVENTS:
            line = stream.stderr.readline()
            assert line, "the stream ended"
            if found := re.search(r"micro-batch \d+ committed: (\d+) records", line):
                committed += int(found[1])
        verdicts["nest_cameras"] = run_interval(home, "nest_cameras", on_cluster)
        assert stream.poll() is None
    finally:
        stream.terminate()
        deadline = time.monotonic() + 120
        while stream.poll() is None and time.monotonic() < deadline:
            if not stream.stderr or not stream.stderr.readline():
                break
        assert stream.wait(timeout=60) == 0
    home.run("stream", "isp_hits", "--until-caught-up", **on_cluster)
    verdicts["isp_hits"] = run_interval(home, "isp_hits", on_cluster)
    executors = cluster.executors()
    assert set(executors) == {"worker-1", "worker-2"}, executors
    topics = {"nest_cameras": "nest-logs", "isp_hits": "isp-hits"}
    for pipeline, verdict in verdicts.items():
        assert verdict["reconciliation"]["unexplained"] == 0
        archive = [r for r in verdict["registered"] if r["table"] == pipeline]
        rows = audit.identities(audit.read_parquet([r["location"] for r in archive]))
        assert max(rows.values()) == 1
        inside = audit.in_ranges(audit.read_topic(home.kafka, topics[pipeline]), verdict["ranges"])
        assert {row[:3] for row in rows} <= set(inside)
        assert len({row[:3] for row in rows}) == verdict["records"]["archived"] > 0
        assert len(inside) == verdict["records"]["in_ranges"]


def run_interval(home: Home, pipeline: str, on_cluster: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = home.json(
        "interval", pipeline, "--from", iso(START), "--to", iso(START + HOUR), **on_cluster
    )
    return found


def test_same_interval_has_the_same_content_on_the_cluster_and_on_one_machine(
    home: Home, on_cluster: dict[str, str]
) -> None:
    begun = START + HOUR
    there = home.json("interval", "isp_hits", "--from", iso(begun), "--to", iso(begun + HOUR), **on_cluster)
    here = home.json("interval", "isp_hits", "--from", iso(begun), "--to", iso(begun + HOUR))
    hashes = [{(r["table"], r["partition"]): r["content_hash"] for r in v["registered"]} for v in (there, here)]
    assert hashes[0] == hashes[1]
    assert hashes[0]
