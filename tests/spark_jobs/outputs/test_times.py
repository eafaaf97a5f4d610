"""Times in what outputs write: whole, to the microsecond."""

from __future__ import annotations

import json
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopic, Rows

pytestmark = pytest.mark.spark

ROW = """SELECT 'a' AS id,
    TIMESTAMP'2026-11-20 05:00:00.123456' AS at, TIMESTAMP_NTZ'2026-11-20 05:00:00.123456' AS local,
    named_struct('at', TIMESTAMP_NTZ'2026-11-20 05:00:00.000001') AS of,
    't' AS kafka_topic, 0 AS kafka_partition, 7L AS kafka_offset, 0 AS kafka_element"""
TIMES = {"at": "2026-11-20T05:00:00.123456Z", "local": "2026-11-20T05:00:00.123456"}
COLUMNS = "id STRING, at TIMESTAMP, local TIMESTAMP_NTZ, of STRUCT<at: TIMESTAMP_NTZ>"


def test_times_are_whole_when_rows_are_messages(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_jobs.outputs import topic

    # It would need a broker.
    monkeypatch.setattr(topic, "FencedProducer", lambda *of: None)
    to = KafkaTopic("sent", key=("at", "local"))
    pipeline, output = load_pipeline("isp_hits"), Rows("sent", rows="r", columns=COLUMNS, to=to)
    lease: Any = None
    rows = spark.sql(ROW)
    (message,) = rows.select(*topic.TopicTarget(pipeline, output, to, lease)._columns(rows)).collect()
    assert json.loads(bytes(message.m_key)) == TIMES
    assert json.loads(bytes(message.m_value)) == {"id": "a", **TIMES, "of": {"at": "2026-11-20T05:00:00.000001"}}


def test_times_are_whole_when_rows_go_to_a_table(spark: Any) -> None:
    from spark_jobs.outputs.table import _value

    rows = spark.sql(ROW)
    (row,) = rows.select(*(_value(rows.schema[name]).alias(name) for name in ("at", "local", "of"))).collect()
    assert (row["at"], row["local"]) == ("2026-11-20 05:00:00.123456", "2026-11-20 05:00:00.123456")
    assert json.loads(row["of"]) == {"at": "2026-11-20T05:00:00.000001"}
