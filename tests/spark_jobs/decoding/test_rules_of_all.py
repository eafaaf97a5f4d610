"""Rules that no pipeline declares: rows that other readers of the files would refuse, or that would become others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F

from include.pipelines import load_pipeline
from include.pipelines.spec import Archive, Json

pytestmark = pytest.mark.spark

NOW = datetime(2026, 11, 20, 5, 30, tzinfo=UTC)
DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
Record = tuple[bytes | None, bytes]
"""A record's key and value."""


@pytest.fixture
def fates(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Fate, reason and detail of records under an archive with such rows, in order."""
    from spark_jobs.decoding import records

    def found(columns: str, rows: Callable[..., Column], sent: Sequence[Record], **archive: Any) -> list[Any]:
        declared = replace(
            load_pipeline("nest_cameras"),
            decoder=Json(schema=columns),
            archive=Archive(rows="rows", columns=columns, event_time="at", **archive),
            views=(),
            reports=(),
        )
        monkeypatch.setattr(records, "transform", lambda pipeline, name: rows)
        frame = [(key, value, "t", 0, offset, NOW, []) for offset, (key, value) in enumerate(sent)]
        decoded = records.decode(declared, spark.createDataFrame(frame, DDL)).orderBy("kafka_offset", "kafka_element")
        return [(row.fate, row.reason, row.detail) for row in decoded.collect()]

    return found


def test_record_is_quarantined_when_a_map_of_its_row_has_a_key_twice(fates: Callable[..., list[Any]]) -> None:
    columns = "at TIMESTAMP, tags MAP<STRING, INT>, of STRUCT<list: ARRAY<MAP<STRING, INT>>>, left MAP<STRING, INT>"
    sent = [
        b'"tags": {"a": 1, "b": 1}, "of": {"list": [{"a": 1}, {"a": 2}]}',
        b'"tags": {"a": 1, "b": 1, "a": 1}',
        b'"of": {"list": [{"a": 1}, {"b": 2, "b": 3}]}',
        b'"tags": {}, "of": {"list": [null, {}]}',
        b'"tags": null, "of": null',
        b'"tags": {"": null, "A": 1, "a": 1}',
    ]

    def rows(message: Column) -> Column:
        return F.array(F.struct(*(message[name].alias(name) for name in ("at", "tags", "of", "left"))))

    at = b'{"at": "2026-11-20T05:00:00Z", '
    found = fates(columns, rows, [(b"k", at + each + b"}") for each in sent])
    good = ("archived", None, None)
    bad = [("quarantined", "value_does_not_fit", f"{each} has a map with a key twice") for each in ("tags", "of")]
    assert found == [good, *bad, good, good, good]


def test_key_twice_is_accepted_when_the_map_is_in_no_column(fates: Callable[..., list[Any]]) -> None:
    def rows(message: Column) -> Column:
        return F.array(
            F.struct(message["at"].alias("at"), F.map_filter(message["tags"], lambda k, v: v > 1).alias("tags"))
        )

    value = b'{"at": "2026-11-20T05:00:00Z", "tags": {"a": 1, "a": 2}}'
    assert fates("at TIMESTAMP, tags MAP<STRING, INT>", rows, [(b"k", value)]) == [("archived", None, None)]


def test_record_is_quarantined_when_its_row_has_a_text_of_its_key_that_is_not_utf8(
    fates: Callable[..., list[Any]],
) -> None:
    def rows(message: Column, record: Column) -> Column:
        named = F.array(record["key"].cast("string"))
        return F.array(F.struct(message["at"].alias("at"), record["key"].alias("raw"), named.alias("named")))

    value = b'{"at": "2026-11-20T05:00:00Z"}'
    keys = (b"k", b"\xff", "\N{SNOWMAN}".encode(), b"a\xe2\x98", None)
    columns = "at TIMESTAMP, raw BINARY, named ARRAY<STRING>"
    found = fates(columns, rows, [(key, value) for key in keys], takes_record=True)
    good, bad = ("archived", None, None), ("quarantined", "not_utf8", "named has a text that is not UTF-8")
    assert found == [good, bad, good, bad, good]
