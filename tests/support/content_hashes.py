"""Fixed messages, and what earlier code made of them: the same ranges are to give the same bytes.

`tests/golden/content_hashes.json` was written by the code before the packages moved (commit 2fd964f), from the
verdicts of intervals over these messages; for nest_cameras, whose generated messages changed since, by commit 1d3cfd6f
over the new ones. A change of a hash is a change of every published partition of that pipeline.

That code hashed each row's JSON text. The registered rows are hashed here by that algorithm, which is kept for
partitions that were registered with it. `typed_hash`, of the algorithm in use, was added later.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from include.pipelines import load_pipeline
from tests.conftest import REPOSITORY, iso

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
MESSAGES = ("--events", "1500", "--seed", "11", "--bad-fraction", "0.03", "--start", iso(START), "--span", "1h")
"""Arguments of `produce` for the messages of the hour from `START`, the first of their topic."""

EXPECTED: dict[str, Any] = json.loads((REPOSITORY / "tests" / "golden" / "content_hashes.json").read_text())

_SINCE = {"isp_hits_isp_totals", "isp_hits_zip_totals"}
"""Tables that were declared after that code."""


def check_hashes(spark: Any, pipeline: str, verdict: dict[str, Any]) -> None:
    """Compare the verdict of the hour, and what it registered, with those of earlier code."""
    expected = EXPECTED[pipeline]
    assert [{name: r[name] for name in expected["ranges"][0]} for r in verdict["ranges"]] == expected["ranges"]
    assert {name: verdict["records"][name] for name in expected["records"]} == expected["records"]
    registered = {
        f"{r['table']}/{r['partition']}": {
            "rows": r["rows"],
            "content_hash": hash_of_texts(spark, pipeline, r),
            "typed_hash": r["content_hash"],
        }
        for r in verdict["registered"]
    }
    of_earlier = {place: found for place, found in registered.items() if place.split("/")[0] not in _SINCE}
    assert of_earlier == expected["registered"]


def hash_of_texts(spark: Any, pipeline: str, registered: dict[str, Any]) -> str:
    """Return the content hash of a registered partition as earlier code made it."""
    from spark_jobs.archive.content_hash import HashVersion, content_hash, row_hashes, sums
    from spark_jobs.archive.schema import table_schema

    schema = table_schema(load_pipeline(pipeline), registered["table"])
    rows = spark.read.schema(schema).parquet(registered["location"])
    (found,) = rows.agg(*sums(*row_hashes(schema, HashVersion.JSON))).collect()
    return content_hash(schema.names, found["rows"], found["sum_1"], found["sum_2"], HashVersion.JSON)
