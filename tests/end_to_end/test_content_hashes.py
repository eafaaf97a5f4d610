"""Same ranges, same bytes: what earlier code made of fixed messages is what this code makes of them.

`tests/golden/content_hashes.json` was written by the code before the packages moved (commit 2fd964f), from the
verdicts of the commands below. A change of a hash is a change of every published partition of that pipeline.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conftest import REPOSITORY, Home, iso

pytestmark = [pytest.mark.services]

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
EXPECTED: dict[str, Any] = json.loads((REPOSITORY / "tests" / "golden" / "content_hashes.json").read_text())


@pytest.fixture(scope="module", autouse=True)
def registry(home: Home) -> None:
    home.run("up", "registry")


@pytest.mark.parametrize("pipeline", sorted(EXPECTED))
def test_content_hashes_are_those_of_earlier_code(home: Home, pipeline: str) -> None:
    messages = ["--events", "1500", "--seed", "11", "--bad-fraction", "0.03", "--start", iso(START), "--span", "1h"]
    home.run("produce", pipeline, *messages)
    home.run("stream", pipeline, "--until-caught-up")
    verdict = home.interval(pipeline, START)
    expected = EXPECTED[pipeline]
    assert [{name: r[name] for name in expected["ranges"][0]} for r in verdict["ranges"]] == expected["ranges"]
    assert {name: verdict["records"][name] for name in expected["records"]} == expected["records"]
    registered = {
        f"{r['table']}/{r['partition']}": {"rows": r["rows"], "content_hash": r["content_hash"]}
        for r in verdict["registered"]
    }
    assert registered == expected["registered"]
