"""Flags with columns of any length: each fits into Kafka, and is the same in the stream and in an interval."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from include import kafka
from include.errors import MessageRefused
from include.pipelines import load_pipeline
from include.pipelines.spec import Limit, MaxBytes, Pipeline
from include.pipelines.spec.outputs import long_columns
from tests.conftest import Home
from tests.support import audit
from tests.support.raised_flags import COLUMNS

pytestmark = [pytest.mark.spark, pytest.mark.services]

BIDS = load_pipeline("auction_bids")
LONG = ("auction_id", "seller")
LIMITS = [Limit("burst", "Zoe")]
TEXTS = [
    # auction_id, seller, columns that are left out
    ("a", "s", None),
    ("a", "s" * 600_000, None),
    ("a", "s" * 2_000_000, ["seller"]),
    ("a" * 600_000, "s" * 600_000, ["auction_id", "seller"]),
    # Each character is six in JSON.
    ("a", "\1" * 200_000, ["seller"]),
    (None, "s" * 2_000_000, ["seller"]),
]


def with_long_columns() -> Pipeline:
    """The bids, two of whose texts have no longest length."""
    rules = (rule for rule in BIDS.archive.rules if not (isinstance(rule, MaxBytes) and rule.column in LONG))
    return replace(BIDS, archive=replace(BIDS.archive, rules=tuple(rules)))


def of(pipeline: Pipeline) -> tuple[str, ...]:
    assert pipeline.flags is not None
    return long_columns(pipeline.flags, pipeline.archive_columns, pipeline.archive.all_rules)


def written(raised: Any, topic: str, folder: Path) -> None:
    """Let a stream write flags, as that of a pipeline does."""
    from pyspark.errors import StreamingQueryException

    from spark_jobs.spark.failures import end_of_query
    from spark_jobs.spark.kafka_source import write_stream

    raised.write.mode("overwrite").parquet(str(folder / "raised"))
    stream = raised.sparkSession.readStream.schema(raised.schema).parquet(str(folder / "raised"))
    writer = write_stream(stream, topic).option("checkpointLocation", str(folder / topic))
    query = writer.trigger(availableNow=True).start()
    with suppress(StreamingQueryException):
        query.awaitTermination()
    if failed := end_of_query(query):
        raise failed


def test_long_columns_are_left_out_when_a_flag_would_be_too_large_for_kafka(
    in_process: Home, spark: Any, tmp_path: Path
) -> None:
    from confluent_kafka.admin import NewTopic

    from spark_jobs.spark.failures import SPARK_FAILURES, translate
    from spark_jobs.spark.frames import frame_of
    from spark_jobs.views.flags import LARGEST, bounded_flags, flags

    pipeline = with_long_columns()
    assert (of(BIDS), of(pipeline)) == ((), LONG)
    texts = [("t", 0, n, f"b{n}", a, "toys", s, "Zoe", "20.00", "EUR") for n, (a, s, _) in enumerate(TEXTS)]
    rows = frame_of(spark, texts, COLUMNS.replace("DECIMAL(9, 2)", "STRING"))
    rows = rows.withColumn("amount", rows["amount"].cast("DECIMAL(9, 2)"))
    raised = bounded_flags(pipeline, rows, LIMITS, 1)
    whole = {row.key: row.value for row in flags(pipeline, rows, LIMITS, 1).collect()}
    bounded = {row.key: row.value for row in raised.collect()}
    assert bounded.keys() == whole.keys()
    for key, value in bounded.items():
        assert len(value.encode()) <= LARGEST
        left_out = TEXTS[json.loads(key)["kafka_offset"]][2]
        if left_out is None:
            assert value == whole[key]
        else:
            kept = {name: field for name, field in json.loads(whole[key]).items() if name not in left_out}
            assert json.loads(value) == {**kept, "left_out": left_out}

    kafka.create_topic("long-flags", 1)
    written(raised, "long-flags", tmp_path)
    found = audit.read_topic(in_process.kafka, "long-flags").values()
    assert {(each.key or b"").decode(): (each.value or b"").decode() for each in found} == bounded

    topic = NewTopic("small-flags", 1, config={"max.message.bytes": "100000"})
    client = kafka.admin()
    client.create_topics([topic])["small-flags"].result(30)
    with pytest.raises(SPARK_FAILURES) as failed:
        written(raised, "small-flags", tmp_path)
    meaning = translate(failed.value)
    assert isinstance(meaning, MessageRefused)
    assert "max.message.bytes" in meaning.remedy
