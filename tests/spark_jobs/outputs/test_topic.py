"""An output's messages in real topics: what no broker takes is refused by its row, and the others are written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from include import kafka
from include.errors import UsageError
from include.ledger.archive.row_outputs import Unsent
from include.ledger.streams import writers
from include.pipelines import load_pipeline
from include.pipelines.spec import IDENTITY, DatabaseTable, KafkaTopic, Pipeline, Rows
from include.streams.written_topics import create_written_topics
from spark_jobs.outputs.frames import output_rows
from spark_jobs.outputs.topic import TopicTarget
from spark_jobs.spark.frames import frame_of
from tests.conftest import Home, settings_of
from tests.support import audit
from tests.support.leases import held_lease

pytestmark = [pytest.mark.spark, pytest.mark.services]

COLUMNS = "key STRING, value STRING, topic STRING"
FRAME = f"{COLUMNS}, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_element INT"
UNSENT = Unsent(1, (), {"source": "id-of-source"}, 1)


@pytest.fixture(scope="module")
def lease(home: Home) -> Iterator[writers.Lease]:
    # The lease is not renewed here.
    with settings_of(home, TIDEMARK_LEASE_SECONDS="600"), held_lease("sent") as held:
        yield held


def sent(spark: Any, lease: writers.Lease, to: KafkaTopic, values: list[tuple[Any, ...]], **declared: str) -> Any:
    """Send rows of key, value, topic and offset; return how many were sent, and the refused ones."""
    output = Rows(
        f"to_{abs(hash((to.topic, *to.row_topics)))}", to=to, **(declared or {"rows": "r", "columns": COLUMNS})
    )
    pipeline: Pipeline = replace(load_pipeline("isp_hits"), name="sent", outputs=(output,))
    frame = frame_of(spark, [(*row[:3], "source", 0, row[3], 0) for row in values], FRAME)
    return TopicTarget(pipeline, output, to, lease).send(frame, UNSENT)


def test_null_key_is_refused_only_when_the_topic_is_compacted(spark: Any, lease: writers.Lease) -> None:
    kafka.create_topic("rows-compacted", 1, compacted=True)
    kafka.create_topic("rows-plain", 1)
    to = KafkaTopic(row_topics=("rows-compacted", "rows-plain"))
    rows = [
        (None, "a", "rows-compacted", 0),
        ("k", "b", "rows-compacted", 1),
        ("k", None, "rows-compacted", 2),
        (None, "c", "rows-plain", 3),
        ("k", "d", "rows-elsewhere", 4),
        ("k", "e", None, 5),
    ]
    count, refused = sent(spark, lease, to, rows)
    assert count == 3
    assert [(each.offset, each.reason) for each in refused] == [
        (0, "no_key"),
        (4, "undeclared_topic"),
        (5, "undeclared_topic"),
    ]
    compacted = audit.read_topic(audited(), "rows-compacted")
    assert [(each.key, each.value) for each in compacted.values()] == [(b"k", b"b"), (b"k", None)]
    (plain,) = audit.read_topic(audited(), "rows-plain").values()
    assert plain.key is None
    assert dict(plain.headers) == {
        "kafka_topic": b"source",
        "kafka_partition": b"0",
        "kafka_offset": b"3",
        "kafka_element": b"0",
        "kafka_topic_id": b"id-of-source",
    }


def audited() -> str:
    from include.settings import settings

    return settings().kafka_address()


def test_neighbours_are_written_when_a_row_is_too_large(spark: Any, lease: writers.Lease) -> None:
    kafka.create_topic("rows-sized", 1)
    rows = [("k", "x" * size, "t", number) for number, size in enumerate((10, 998_800, 999_100, 3_000_000, 10))]
    count, refused = sent(spark, lease, KafkaTopic("rows-sized"), rows)
    assert count == 3
    assert [(each.offset, each.reason) for each in refused] == [(2, "too_large"), (3, "too_large")]
    assert "3000" in refused[1].detail
    values = [record.value or b"" for record in audit.read_topic(audited(), "rows-sized").values()]
    assert [len(value) for value in values] == [10, 998_800, 10]


def test_key_is_made_of_the_coordinates_when_no_columns_are_declared(spark: Any, lease: writers.Lease) -> None:
    kafka.create_topic("rows-keyed", 1)
    declared = {"rows": "r", "columns": "key STRING, topic STRING"}
    sent(spark, lease, KafkaTopic("rows-keyed", key=("topic", "key")), [("k", "v", None, 0)], **declared)
    kafka.create_topic("rows-archived", 1)
    sent(spark, lease, KafkaTopic("rows-archived"), [("k", "v", "t", 7)], rows="", columns="")
    (keyed,) = audit.read_topic(audited(), "rows-keyed").values()
    assert json.loads(keyed.key or b"") == {"topic": None, "key": "k"}
    (archived,) = audit.read_topic(audited(), "rows-archived").values()
    assert json.loads(archived.key or b"")["kafka_offset"] == 7
    # In the archive's rows, columns of these names are ordinary columns.
    assert json.loads(archived.value or b"") == {"key": "k", "value": "v", "topic": "t"}


def test_nothing_is_written_when_a_row_of_the_archive_has_two_messages(spark: Any, lease: writers.Lease) -> None:
    kafka.create_topic("rows-twice", 1)
    rows = [("k", "a", "t", 0), ("k", "b", "t", 1), ("k", "c", "t", 1)]
    with pytest.raises(UsageError, match=r"the transform r of the output .* more than one row for source-0 offset 1"):
        sent(spark, lease, KafkaTopic("rows-twice"), rows)
    assert audit.read_topic(audited(), "rows-twice") == {}


def test_output_is_refused_when_its_declaration_does_not_fit(lease: writers.Lease, spark: Any) -> None:
    with pytest.raises(UsageError, match=r"kafka\.acks"):
        KafkaTopic("t", options={"kafka.acks": "1"})
    with pytest.raises(UsageError, match="names no topic"):
        KafkaTopic()
    with pytest.raises(UsageError, match="columns alone"):
        Rows("r", to=KafkaTopic("t"), columns="a INT")
    hits = load_pipeline("isp_hits")
    for name in ("by_zip", "archive"):
        with pytest.raises(UsageError, match="has the name of a view"):
            replace(hits, outputs=(Rows(name, to=KafkaTopic("t")),))
    with pytest.raises(UsageError, match="no column 'zip'"):
        replace(hits, outputs=(Rows("r", to=KafkaTopic("t", key=("zip",))),))
    into = DatabaseTable("shop", table="hits")
    with pytest.raises(UsageError, match="a table of its own"):
        replace(hits, outputs=(Rows("r", to=into), Rows("s", to=into)))
    with pytest.raises(UsageError, match="writes the topic isp-hits, which the pipeline reads"):
        replace(hits, outputs=(Rows("r", to=KafkaTopic("isp-hits")),))
    wrong = replace(hits, outputs=(Rows("r", to=KafkaTopic("t", options={"kafka.linger.ms": "soon"})),))
    with pytest.raises(UsageError, match=r"linger\.ms"):
        create_written_topics(wrong)
    shaped = Rows("r", to=KafkaTopic("t"), rows="counted_hits", columns="zipcode INT")
    rows = frame_of(spark, [], "zipcode STRING, " + ", ".join(f"{name} {kind}" for name, kind in identity()))
    with pytest.raises(UsageError, match="returns zipcode as string — let it return zipcode as int"):
        output_rows(spark, hits, shaped, rows)


def identity() -> Iterator[tuple[str, str]]:
    return zip(IDENTITY, ("STRING", "INT", "BIGINT", "INT"), strict=True)
