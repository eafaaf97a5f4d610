"""Each pipeline's golden messages: the fate of every one, its rows, what views count of them, what is flagged.

`tests/golden/<pipeline>/messages.jsonl` holds a message a line: the value as text, and the record's timestamp.
`./tidemark test tests/spark_jobs/transforms/test_golden.py --write-golden` writes `expected.json` anew
(for a new pipeline begin with an empty one); read the difference.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from include.pipelines import load_pipeline
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.spark

GOLDEN = REPOSITORY / "tests" / "golden"
PIPELINES = sorted(path.parent.name for path in GOLDEN.glob("*/expected.json"))


def found_of(spark: Any, name: str) -> dict[str, Any]:
    from spark_jobs.decoding.records import archive_columns, archive_rows, decode, load_references
    from spark_jobs.spark.frames import frame_of
    from spark_jobs.spark.kafka_source import KAFKA_COLUMNS
    from spark_jobs.views.aggregate import aggregate_view
    from spark_jobs.views.flags import flags, learn_limits

    pipeline = load_pipeline(name)
    lines = (GOLDEN / name / "messages.jsonl").read_text(encoding="utf-8").splitlines()
    records = [
        (None, message["value"].encode(), "golden", 0, offset, datetime.fromisoformat(message["timestamp"]), 0, [])
        for offset, message in enumerate(map(json.loads, lines))
    ]
    decoded = decode(pipeline, frame_of(spark, records, KAFKA_COLUMNS)).persist()
    columns = ["kafka_offset", "kafka_element", "fate", "reason", *archive_columns(pipeline), "date"]
    rows = archive_rows(pipeline, decoded)
    references = load_references(spark, pipeline)
    views = {view.name: aggregate_view(pipeline, view, rows, references) for view in pipeline.views}
    found = {
        "rows": plain(decoded.select(*columns).orderBy("kafka_offset", "kafka_element")),
        "views": {view.name: plain(views[view.name].orderBy(*view.key)) for view in pipeline.views},
    }
    if pipeline.flags:
        learned = learn_limits(pipeline, {name: views[name] for name in pipeline.flags.learned_from})
        flagged = flags(pipeline, rows, learned, version=1).orderBy("key").collect()
        found |= {"limits": list(map(list, learned)), "flags": [json.loads(row.value) for row in flagged]}
    decoded.unpersist()
    return found


def plain(rows: Any) -> list[Any]:
    """Rows as JSON values, without the nulls."""
    return [json.loads(text) for text in rows.toJSON().collect()]


@pytest.mark.parametrize("name", PIPELINES)
def test_golden_messages_come_out_as_expected_when_they_are_decoded(
    spark: Any, name: str, request: pytest.FixtureRequest
) -> None:
    expected = GOLDEN / name / "expected.json"
    found = found_of(spark, name)
    if request.config.getoption("--write-golden"):
        expected.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(expected.read_text(encoding="utf-8"))


def test_pipeline_is_declared_when_it_has_golden_messages() -> None:
    assert {"auction_bids", "isp_hits", "nest_cameras", "wiki_changes"} <= set(PIPELINES)
