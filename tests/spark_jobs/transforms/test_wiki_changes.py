"""The transforms of wiki_changes: what is counted, and what a hostile message becomes."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from include.pipelines import load_pipeline
from include.producing.messages import nest_cameras
from tests.conftest import REPOSITORY
from tests.support.corpora import NAUGHTY
from tests.support.views import aggregated

pytestmark = pytest.mark.spark

GOLDEN = REPOSITORY / "tests" / "golden" / "wiki_changes" / "messages.jsonl"
MOMENT = datetime(2026, 11, 20, 5, 10, tzinfo=UTC)
KAFKA_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
ARCHIVE_DDL = "type STRING, user STRING, bot BOOLEAN, event_time TIMESTAMP"


def decoded(spark: Any, values: list[bytes | None]) -> list[Any]:
    """One row per value, in order."""
    from spark_jobs.decoding.records import decode

    rows = [(None, value, "wiki-changes", 0, offset, MOMENT, []) for offset, value in enumerate(values)]
    found = decode(load_pipeline("wiki_changes"), spark.createDataFrame(rows, KAFKA_DDL)).collect()
    assert [row.kafka_offset for row in sorted(found, key=lambda row: row.kafka_offset)] == list(range(len(values)))
    return sorted(found, key=lambda row: row.kafka_offset)


def change(**changes: object) -> bytes:
    first = json.loads(json.loads(GOLDEN.read_text().splitlines()[0])["value"])
    meta = {**first["meta"], **changes.pop("meta", {})}  # type: ignore[dict-item]
    return json.dumps({**first, **changes, "meta": meta}).encode()


CASES: list[tuple[str, bytes | None]] = [
    ("required_missing", b"{}"),
    ("required_missing", change(meta={"id": None})),
    ("required_missing", change(meta={"dt": None}, timestamp=None)),
    ("required_missing", change(meta={"dt": None}, timestamp=-(10**17))),
    ("wrong_type", change(meta={"dt": "noon"})),
    ("wrong_type", change(timestamp=1.5)),
    ("wrong_type", change(timestamp=10**30)),
    ("wrong_type", change(bot="perhaps")),
    ("wrong_type", change(length=[1])),
    ("event_time_out_of_bounds", change(meta={"dt": "0001-01-01T00:00:00Z"})),
    ("event_time_out_of_bounds", change(meta={"dt": "9999-12-31T23:59:59Z"})),
    ("event_time_out_of_bounds", change(meta={"dt": None}, timestamp=253_402_300_799)),
    ("unsafe_partition_value", change(server_name=None)),
    ("unsafe_partition_value", change(server_name="")),
    ("unsafe_partition_value", change(server_name="__HIVE_DEFAULT_PARTITION__")),
    ("unsafe_partition_value", change(server_name="a/../b")),
    ("unsafe_partition_value", change(server_name="a" * 101)),
    ("value_too_long", change(user="é" * 128)),
    ("value_too_long", change(user="x" * 900_000)),
    ("malformed_json", b"Traceback (most recent call last):"),
    ("null_value", None),
    # A neighbour's.
    ("required_missing", nest_cameras.message(MOMENT, random.Random(1))[1]),
]


def test_message_is_quarantined_with_its_reason_when_it_is_bad(spark: Any) -> None:
    for (reason, value), row in zip(CASES, decoded(spark, [value for _, value in CASES]), strict=True):
        assert (row.fate, row.reason) == ("quarantined", reason), value
        assert row.value == value
        assert row.detail


def test_user_is_archived_when_the_name_has_255_bytes(spark: Any) -> None:
    assert decoded(spark, [change(user="é" * 127 + "x")])[0].fate == "archived"


def test_string_is_archived_unchanged_or_quarantined_whole_when_it_is_naughty(spark: Any) -> None:
    import re

    from include.lake import SAFE_VALUE

    sent = [(field, text) for field in ("server_name", "user", "title") for text in NAUGHTY]
    values = [change(**{field: text}) for field, text in sent]
    fates: Counter[tuple[str, str]] = Counter()
    for (field, text), value, row in zip(sent, values, decoded(spark, values), strict=True):
        fits = len(text.encode()) <= 255 if field == "user" else True
        fits = re.fullmatch(SAFE_VALUE, text) is not None if field == "server_name" else fits
        assert row.fate == ("archived" if fits else "quarantined"), (field, text)
        if fits:
            assert row[field] == text
        else:
            assert row.value == value
        fates[field, row.fate] += 1
    assert all(fates[field, "archived"] > 0 for field, _ in sent)


def test_change_is_an_edit_when_a_known_user_changed_text(spark: Any) -> None:
    from spark_jobs.transforms.wiki_changes import edits

    rows = [
        ("edit", "a", False, MOMENT),
        ("new", "b", True, MOMENT),
        ("edit", "c", None, MOMENT),
        ("log", "d", False, MOMENT),
        ("categorize", "e", False, MOMENT),
        ("edit", None, False, MOMENT),
        (None, "f", False, MOMENT),
    ]
    found = edits(spark.createDataFrame(rows, ARCHIVE_DDL), {}).select("user", "bot").collect()
    assert sorted(map(tuple, found)) == [("a", False), ("b", True), ("c", False)]


def test_next_window_is_used_when_an_edit_is_at_the_tenth_minute(spark: Any) -> None:
    times = [datetime(2026, 11, 20, 5, 0), datetime(2026, 11, 20, 5, 9, 59), datetime(2026, 11, 20, 5, 10)]
    rows = [("edit", "a", False, moment) for moment in times] + [("edit", "a", True, times[0])]
    counted = aggregated("wiki_changes", "user_edits", spark.createDataFrame(rows, ARCHIVE_DDL))
    found = {(r.user, r.bot, r.window.start.minute, r.window.end.minute): r["count"] for r in counted.collect()}
    assert found == {("a", False, 0, 10): 2, ("a", False, 10, 20): 1, ("a", True, 0, 10): 1}
    assert counted.columns == ["user", "bot", "window", "count"]
