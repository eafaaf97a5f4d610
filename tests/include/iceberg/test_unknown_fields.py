"""What a message's schema does not name is a column of the Iceberg table, also where it is kept from now on only."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

from include.iceberg.examine import deviations
from include.pipelines.spec import Json, Pipeline
from tests.support.open_tables import OpenTable, pipeline_named, rows_of

pytestmark = pytest.mark.services

LEFT = ['{"n":1E400}', None, '{"a":"\\n","b":[ ]}', "{}"]


def keeping(pipeline: Pipeline, unknown: str) -> Pipeline:
    decoder = Json(schema="device STRING", unknown=unknown)  # type: ignore[arg-type]
    return replace(pipeline, decoder=decoder)


def rows_with_unknown(hour: int) -> pa.Table:
    return rows_of(hour, len(LEFT)).append_column("unknown_fields", pa.array(LEFT, pa.string()))


def test_column_is_followed_when_fields_are_kept_from_now_on(pipeline: str) -> None:
    declared = pipeline_named(f"t_{pipeline[-40:]}")
    archive = OpenTable(keeping(declared, "ignore"))
    archive.run(0, {"2026-11-18": rows_of(0, 3)})
    archive.pipeline = keeping(declared, "keep")
    archive.run(1, {"2026-11-18": rows_with_unknown(1)})
    table = archive.load()
    assert isinstance(table.schema().find_type("unknown_fields"), StringType)
    found = table.scan(selected_fields=("kafka_offset", "unknown_fields")).to_arrow().sort_by("kafka_offset")
    assert found["unknown_fields"].to_pylist() == [None, None, None, *LEFT]
    assert list(deviations(archive.pipeline)) == []
