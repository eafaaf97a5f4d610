"""Rows of files as Python's values: also times, dates and texts that Python cannot hold."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.monitor.history import drill
from include.offsets import OffsetRange, TopicPartition

FAR = 1763615107000
"""Milliseconds since 1970, in seconds by mistake."""


@pytest.fixture
def rows() -> pa.Table:
    """A row that Python cannot hold, one that it can, and nulls."""
    times = pa.array([FAR * 10**6, 0, None], pa.timestamp("us", "UTC"))
    texts = pa.array([b"\xffa", b"a", None]).view(pa.string())
    return pa.table(
        {
            "at": times,
            "day": pa.array([20_412_211, 0, None], pa.int32()).cast(pa.date32()),
            "text": texts,
            "both": pa.StructArray.from_arrays([times, texts], ["at", "text"]),
            "list": pa.ListArray.from_arrays([0, 1, 2, 3], times),
            "map": pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["a", "b", "c"]), times),
            "n": [1, 2, 3],
        }
    )


def test_value_is_a_text_when_python_cannot_hold_it(rows: pa.Table) -> None:
    far, epoch = f"{FAR * 1000} ms", datetime(1970, 1, 1, tzinfo=UTC)

    def row(at: Any, day: Any, text: Any, key: str, n: int) -> dict[str, Any]:
        both = {"at": at, "text": text}
        return {"at": at, "day": day, "text": text, "both": both, "list": [at], "map": [(key, at)], "n": n}

    expected = [
        row(far, "20412211 days", "\\xffa", "a", 1),
        row(epoch, date(1970, 1, 1), "a", "b", 2),
        row(None, None, None, "c", 3),
    ]
    assert lake.python_rows(rows) == expected
    assert lake.python_rows(rows.to_batches()[0]) == expected
    assert lake.python_rows(rows.slice(1)) == rows.slice(1).to_pylist()


def test_bounds_are_unknown_when_python_cannot_hold_them(rows: pa.Table, tmp_path: Path) -> None:
    pq.write_table(rows, tmp_path / "part.parquet")
    footer = lake.read_footer((tmp_path / "part.parquet").as_uri())
    unbounded = lake.columns_with(footer, lambda each: not lake.has_bounds(each))
    assert unbounded >= {"at", "day", "text"}
    assert unbounded.isdisjoint({"n", "map.key_value.key"})
    assert [lake.column_bounds(footer, name) for name in ("at", "day", "n")] == [None, None, (1, 3)]


def test_record_is_shown_when_python_cannot_hold_a_time_of_it(rows: pa.Table, tmp_path: Path) -> None:
    place = {"kafka_topic": ["events"] * 3, "kafka_partition": [0] * 3, "kafka_offset": [5, 6, 7]}
    pq.write_table(pa.table({**place, "at": rows["at"], "both": rows["both"]}), tmp_path / "part.parquet")
    facts = {"part.parquet": {"kafka_offset": [5, 7]}}
    revision: Any = SimpleNamespace(state="registered", location=tmp_path.as_uri(), files=facts)
    file, (shown,) = drill._rows([revision], OffsetRange(TopicPartition("events", 0), 5, 6))
    assert file == f"{tmp_path.as_uri()}/part.parquet"
    assert (shown["at"], shown["both"]["at"]) == (f"{FAR * 1000} ms",) * 2
