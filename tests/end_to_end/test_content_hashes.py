"""Same ranges, same bytes: what earlier code made of fixed messages is what this code makes of them.

`tests/golden/content_hashes.json` was written by the code before the packages moved (commit 2fd964f), from the
verdicts of the commands below. A change of a hash is a change of every published partition of that pipeline.

That code hashed each row's JSON text. The registered rows are hashed here by that algorithm, which is kept for
partitions that were registered with it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg2
import pytest

from include.pipelines import load_pipeline
from tests.conftest import REPOSITORY, Home, iso

pytestmark = [pytest.mark.services, pytest.mark.spark]

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
SINCE = {"isp_hits_isp_totals", "isp_hits_zip_totals"}
"""Tables that were declared after that code."""

EXPECTED: dict[str, Any] = json.loads((REPOSITORY / "tests" / "golden" / "content_hashes.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def registry(home: Home) -> None:
    home.run("up", "registry")


@pytest.mark.parametrize(
    # One of the pipelines by default, the one with rows, views and a reference; each has a stream and an interval
    # there.
    "pipeline",
    [pytest.param(name, marks=[] if name == "nest_cameras" else pytest.mark.slow) for name in sorted(EXPECTED)],
)
def test_content_hashes_are_those_of_earlier_code(home: Home, spark: Any, pipeline: str) -> None:
    messages = ["--events", "1500", "--seed", "11", "--bad-fraction", "0.03", "--start", iso(START), "--span", "1h"]
    home.run("produce", pipeline, *messages)
    home.run("stream", pipeline, "--until-caught-up")
    verdict = home.interval(pipeline, START)
    expected = EXPECTED[pipeline]
    assert [{name: r[name] for name in expected["ranges"][0]} for r in verdict["ranges"]] == expected["ranges"]
    assert {name: verdict["records"][name] for name in expected["records"]} == expected["records"]
    assert all(r["content_hash"].startswith("v2:") for r in verdict["registered"])
    registered = {
        f"{r['table']}/{r['partition']}": {"rows": r["rows"], "content_hash": hash_of_texts(spark, pipeline, r)}
        for r in verdict["registered"]
    }
    of_earlier = {place: found for place, found in registered.items() if place.split("/")[0] not in SINCE}
    assert of_earlier == expected["registered"]


def hash_of_texts(spark: Any, pipeline: str, registered: dict[str, Any]) -> str:
    """Return the content hash of a registered partition as earlier code made it."""
    from spark_jobs.archive.content_hash import HashVersion, content_hash, row_hashes, sums
    from spark_jobs.archive.schema import table_schema

    schema = table_schema(load_pipeline(pipeline), registered["table"])
    rows = spark.read.schema(schema).parquet(registered["location"])
    (found,) = rows.agg(*sums(*row_hashes(schema, HashVersion.JSON))).collect()
    return content_hash(schema.names, found["rows"], found["sum_1"], found["sum_2"], HashVersion.JSON)


@pytest.mark.slow
def test_partition_with_a_hash_of_earlier_code_is_unchanged_when_it_is_run_again_and_rebuilt(
    home: Home, spark: Any
) -> None:
    hour = START + timedelta(hours=1)
    messages = ["--events", "300", "--seed", "3", "--start", iso(hour), "--span", "1h"]
    home.run("produce", "isp_hits", *messages)
    home.run("stream", "isp_hits", "--until-caught-up")
    first = home.interval("isp_hits", hour)["registered"]
    old = {r["location"]: hash_of_texts(spark, "isp_hits", r) for r in first}
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        for location, digest in old.items():
            cursor.execute("UPDATE revisions SET content_hash = %s WHERE location = %s", (digest, location))
    again = home.interval("isp_hits", hour)["registered"]
    assert {r["location"]: r["content_hash"] for r in again} == old
    archive = next(r for r in again if r["table"] == "isp_hits")
    rebuilt = home.json("rebuild", "isp_hits", archive["partition"], "--json")
    assert rebuilt["equal"] is True
    assert rebuilt["rebuilt_hash"] == archive["content_hash"] == old[archive["location"]]
