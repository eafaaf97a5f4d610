"""A replay's rows reach an output, also when one of its records makes the output's function throw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.ledger.archive.row_outputs import MOST_REFUSED, Refused, Unsent
from include.ledger.streams import writers
from include.ledger.streams.writers import Lease
from include.pipelines import load_pipeline
from include.pipelines.spec import KafkaTopic, Rows
from spark_jobs.archive.schema import archive_schema
from spark_jobs.outputs import frames
from spark_jobs.spark.frames import frame_of
from spark_jobs.streaming import row_outputs
from spark_jobs.streaming.row_outputs import RowOutputs

pytestmark = pytest.mark.spark

UNSENT = Unsent(4, (), {"hits": "id-of-hits"}, 6, ("a-file",), is_replay=True)
FAR = 3_000_000_000
REPLAYED = [
    ("a", "hits", 0, 7, 0),
    ("boom", "hits", 0, FAR, 0),
    ("b", "hits", 0, FAR, 1),
    ("c", "hits", 0, FAR + 1, 0),
    ("d", "hits", 1, FAR, 0),
    (None, "hits", 1, FAR + 9, 0),
]


def made(rows: DataFrame, _: Any) -> DataFrame:
    isp = F.when(F.col("isp") == "boom", F.raise_error(F.lit("it went boom"))).otherwise(F.col("isp"))
    return rows.withColumn("isp", isp)


def test_others_of_a_replay_are_sent_when_one_of_its_records_throws(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[Any, ...]] = []
    noted: list[tuple[Unsent, Sequence[Refused], int]] = []
    unsent = [UNSENT]

    def send(rows: DataFrame, _: Unsent) -> tuple[int, list[Refused]]:
        sent.extend(sorted(map(tuple, rows.collect()), key=lambda row: row[1:]))
        return len(sent), []

    def note(_: Lease, output: str, of: Unsent, refused: Sequence[Refused], *, rows: int, seconds: float) -> None:
        noted.append((of, refused, rows))
        unsent.clear()

    output = Rows("copied", rows="made", columns="isp STRING", to=KafkaTopic("copies"))
    pipeline = replace(load_pipeline("isp_hits"), outputs=(output,))
    known = frame_of(
        spark,
        REPLAYED,
        "isp STRING, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT",
    )
    others = [field for field in archive_schema(pipeline).fields if field.name not in known.columns]
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in others]
    archived = known.select("*", *nulls, F.lit(None).cast("timestamp").alias("event_time"))
    monkeypatch.setattr(frames, "read_replayed", lambda *_: archived)
    monkeypatch.setattr(frames, "transform", lambda *_: made)
    monkeypatch.setattr(frames, "load_references", lambda *_: {})
    monkeypatch.setattr(writers, "renew", lambda _: None)
    monkeypatch.setattr(row_outputs, "opened", lambda *_: SimpleNamespace(send=send, reached=lambda: None))
    ledger = SimpleNamespace(
        next_unsent=lambda *_: next(iter(unsent), None),
        record_sent=note,
        note_waiting=lambda *_: None,
        MOST_REFUSED=MOST_REFUSED,
    )
    monkeypatch.setattr(row_outputs, "row_outputs", ledger)
    kept = SimpleNamespace(keep_target=lambda *_: None, note_sending=lambda *_: None)
    monkeypatch.setattr(row_outputs, "targets", kept)

    outputs = RowOutputs(spark, pipeline, Lease(pipeline.name, 7, "here"))
    outputs.start()
    assert outputs.end_sent(lambda: False)
    assert sent == [row for row in REPLAYED if row[2:4] != (0, FAR)]
    [(of, [refused], rows)] = noted
    assert (of, rows) == (UNSENT, 4)
    assert (refused.topic, refused.partition, refused.offset, refused.element) == ("hits", 0, FAR, -1)
    assert refused.reason == "throws"
    assert "it went boom" in refused.detail
