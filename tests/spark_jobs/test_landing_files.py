"""Landing files: how their columns are encoded, and that they hold what was decoded."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from include.pipelines import load_pipeline
from include.produce import messages
from include.settings import settings

pytestmark = pytest.mark.spark

START = datetime(2026, 11, 20, 5, tzinfo=UTC)


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of a lake without services."""
    monkeypatch.setenv("TIDEMARK_LAKE", tmp_path.as_uri())
    settings.cache_clear()
    yield tmp_path / "landing"
    settings.cache_clear()


def test_only_columns_whose_values_repeat_have_a_dictionary(spark: Any, landing: Path) -> None:
    from spark_jobs.decoding.records import decode
    from spark_jobs.kafka_source import KAFKA_COLUMNS
    from spark_jobs.local_frames import frame_of
    from spark_jobs.sinks.landing import write_landing

    pipeline = load_pipeline("nest_cameras")
    made = messages(pipeline, events=50, seed=3, bad_fraction=0.1, start=START, span=timedelta(minutes=50))
    # Each so often that Parquet would keep a dictionary of any column.
    rows = [
        (key, value, "nest-logs", 0, n, moment, 0, [])
        for n, (moment, key, value, _) in enumerate(made)
        for _ in range(20)
    ]
    decoded = decode(pipeline, frame_of(spark, rows, KAFKA_COLUMNS)).persist()
    write_landing(decoded, landing.as_uri())
    encoded: dict[str, set[bool]] = {}
    for path in (landing / "outcome=archived").rglob("*.parquet"):
        group = pq.ParquetFile(path).metadata.row_group(0)
        for column in (group.column(number) for number in range(group.num_columns)):
            if column.statistics.null_count < column.num_values:
                encoded.setdefault(column.path_in_schema, set()).add(column.has_dictionary_page)
    unlike = {"kafka_offset", "kafka_timestamp", "last_event.start_time", "last_event.end_time"}
    assert {name: encoded[name] for name in unlike} == {name: {False} for name in unlike}
    alike = {"kafka_topic", "kafka_partition", "device_id", "name_long"}
    assert {name: encoded[name] for name in alike} == {name: {True} for name in alike}
    written = spark.read.schema(decoded.schema).parquet(landing.as_uri())
    order = ["kafka_offset", "kafka_element"]
    assert written.select(decoded.columns).orderBy(order).collect() == decoded.orderBy(order).collect()
    decoded.unpersist()
