"""A view's topic with totals that outgrew the type of their measure, or with others' messages, without services."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.pipelines.spec.views import VERSION_HEADER
from spark_jobs.spark.kafka_source import KAFKA_COLUMNS
from spark_jobs.views import speed_topic
from spark_jobs.views.speed_topic import key_places, speed_values


@pytest.mark.spark
@pytest.mark.parametrize(("kind", "most"), [("INT", 2**31 - 1), ("DECIMAL(12,2)", Decimal("9999999999.99"))])
def test_total_is_read_from_its_topic_when_it_has_more_digits_than_declared(
    spark: Any, monkeypatch: pytest.MonkeyPatch, kind: str, most: Any
) -> None:
    declared = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
    view = replace(declared, columns=f"zipcode STRING, hits {kind}")
    sent = [("94103", f"{most + 1}"), ("10001", "7"), ("foreign", '"seven"')]
    rows = [
        (key.encode(), f'{{"hits":{hits},"version":1}}'.encode(), "t", 0, offset, None, 0, [])
        for offset, (key, hits) in enumerate(sent)
    ]
    topic = spark.createDataFrame(rows, KAFKA_COLUMNS)
    monkeypatch.setattr(speed_topic, "read_topic", lambda *_: topic)
    found = {row["key"]: row["hits"] for row in speed_values(spark, view, 1).collect()}
    assert found == {"94103": most + 1, "10001": 7, "foreign": None}


@pytest.mark.spark
def test_base_deletes_no_key_that_only_others_wrote(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    view = next(view for view in load_pipeline("isp_hits").views if view.name == "zip_totals")
    header = [(VERSION_HEADER, b"1")]
    sent: list[tuple[str, str | None, Any]] = [
        ("customer", '{"name":"Ada"}', []),
        ("unreadable", "no object", [("version", b"none")]),
        ("gone", None, []),
        ("94103", '{"hits":3,"version":1}', []),
        # Of the first generation's base.
        ("81001", '{"hits":3,"version":-1}', []),
        ("10001", None, header),
        # Others wrote over a value of the view.
        ("60601", '{"hits":3,"version":1}', []),
        ("60601", '{"name":"Ada"}', []),
        # Of a lost ledger, which had more generations.
        ("73301", '{"hits":3,"version":9000000000000}', []),
    ]
    rows = [
        (key.encode(), None if value is None else value.encode(), "t", 0, offset, None, 0, headers)
        for offset, (key, value, headers) in enumerate(sent)
    ]
    topic = spark.createDataFrame(rows, KAFKA_COLUMNS)
    monkeypatch.setattr(speed_topic, "read_topic", lambda *_: topic)
    assert {row["key"] for row in key_places(spark, view).collect()} == {"94103", "81001", "10001", "60601", "73301"}
    # The first generation's base takes over what no stream but its own wrote.
    assert {row["key"] for row in key_places(spark, view, -1).collect()} == {"81001"}
