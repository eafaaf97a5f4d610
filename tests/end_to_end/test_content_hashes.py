"""Same ranges, same bytes: what earlier code made of fixed messages is what this code makes of them.

Those of nest_cameras, which has rows, views and a reference, are compared in `test_doctor.py`: its interval is the one
over these messages.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import Home
from tests.support.content_hashes import EXPECTED, MESSAGES, START, check_hashes, hash_of_texts

pytestmark = [pytest.mark.services, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module", autouse=True)
def registry(home: Home) -> None:
    home.run("up", "registry")


@pytest.mark.parametrize("pipeline", sorted(EXPECTED.keys() - {"nest_cameras"}))
def test_content_hashes_are_those_of_earlier_code(home: Home, spark: Any, pipeline: str) -> None:
    home.run("produce", pipeline, *MESSAGES)
    home.run("stream", pipeline, "--until-caught-up")
    check_hashes(spark, pipeline, home.interval(pipeline, START))


def test_partition_with_a_hash_of_earlier_code_is_unchanged_when_it_is_run_again_and_rebuilt(
    home: Home, spark: Any
) -> None:
    hour = START + timedelta(hours=1)
    home.produce("isp_hits", 300, hour, "1h", seed=3)
    home.run("stream", "isp_hits", "--until-caught-up")
    first = home.interval("isp_hits", hour)["registered"]
    old = {r["location"]: hash_of_texts(spark, "isp_hits", r) for r in first}
    for location, digest in old.items():
        home.ledger("UPDATE revisions SET content_hash = %s WHERE location = %s", digest, location)
    again = home.interval("isp_hits", hour)["registered"]
    assert {r["location"]: r["content_hash"] for r in again} == old
    archive = next(r for r in again if r["table"] == "isp_hits")
    rebuilt = home.json("rebuild", "isp_hits", archive["partition"], "--json")
    assert rebuilt["equal"] is True
    assert rebuilt["rebuilt_hash"] == archive["content_hash"] == old[archive["location"]]
