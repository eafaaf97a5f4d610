"""The sample of a pipeline as records of its topic, decoded."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.scaffold.schema import value_at
from tests.conftest import REPOSITORY


def decoded_sample(spark: Any, name: str) -> Any:
    """Return the decoded messages (`spark_jobs/decoding/records.py`); a record's timestamp is its event's time.

    The tests that `./tidemark new` writes use it.
    """
    from spark_jobs.decoding.records import decode
    from spark_jobs.spark.frames import frame_of
    from spark_jobs.spark.kafka_source import KAFKA_COLUMNS

    pipeline = load_pipeline(name)
    text = (REPOSITORY / "tests" / "golden" / name / "sample.jsonl").read_text(encoding="utf-8")
    rows = [
        (None, line.encode(), pipeline.source.subscribe[0], 0, offset, event_time(pipeline, json.loads(line)), 0, [])
        for offset, line in enumerate(lines_of(text))
    ]
    return decode(pipeline, frame_of(spark, rows, KAFKA_COLUMNS))


def lines_of(text: str) -> list[str]:
    """The lines of a file of JSON objects: `splitlines` also splits at characters that a value may have, as U+2028."""
    return [line for line in text.split("\n") if line]


def event_time(pipeline: Pipeline, message: dict[str, Any]) -> datetime:
    """The event time of a message of the sample."""
    # The archive's column may have another name than the message's field, if Tidemark has a column of that name.
    path = pipeline.archive.event_time
    top, _, rest = path.partition(".")
    found = value_at(message, path) or value_at(message, ".".join(filter(None, (top.removesuffix("_"), rest))))
    return datetime.fromisoformat(found)
