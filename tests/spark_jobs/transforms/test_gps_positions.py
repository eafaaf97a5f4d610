"""The transforms of gps_positions on a few rows each, always with a null."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.support.views import aggregated

pytestmark = pytest.mark.spark

ARCHIVE = "deviceId BIGINT, speed DOUBLE, accuracy DOUBLE, event_time TIMESTAMP"
MESSAGE = (
    "message STRUCT<timestamp: BIGINT, deviceId: BIGINT, latitude: DOUBLE, longitude: DOUBLE, altitude: DOUBLE, "
    "speed: DOUBLE, accuracy: DOUBLE>"
)


def test_time_becomes_the_nearest_valid_one_when_a_position_s_is_beyond_the_years(
    spark: Any,
) -> None:
    from spark_jobs.transforms.gps_positions import positions

    times = [1_763_616_600_123, 2**63 - 1, -(2**63), None]
    rows = [((time, 1, 45.0, 3.0, 300.0, 50.0, -1.0),) for time in times]
    found = spark.createDataFrame(rows, MESSAGE).select(positions(_column("message")).alias("row"))
    # As text: Python's own datetime cannot be made of the first hours of year 1.
    assert [row[0] for row in found.selectExpr("CAST(row.timestamp AS STRING)").collect()] == [
        "2025-11-20 05:30:00.123",
        "9999-12-31 23:59:59.999",
        "0001-01-01 00:00:00",
        None,
    ]
    names = found.select("row.*").columns
    assert names == ["timestamp", "deviceId", "latitude", "longitude", "altitude", "speed", "accuracy"]


def test_hourly_counts_count_positions_when_some_are_in_motion(spark: Any) -> None:
    from spark_jobs.transforms.gps_positions import counted_positions

    five, six = datetime(2026, 11, 20, 5, 59, 59), datetime(2026, 11, 20, 6)
    rows = [(1, 50.0, 1.0, five), (1, 2.9, 1.0, five), (1, None, 1.0, five), (1, 3.0, 1.0, six), (2, 0.0, 1.0, six)]
    positions = counted_positions(spark.createDataFrame(rows, ARCHIVE), {})
    counted = aggregated("gps_positions", "hourly_counts", positions)
    found = {(r["deviceId"], r["window"]["start"].hour): (r["positions"], r["moving"]) for r in counted.collect()}
    assert found == {(1, 5): (3, 1), (1, 6): (1, 1), (2, 6): (1, 0)}
    assert counted.columns == ["deviceId", "window", "positions", "moving"]


def test_device_is_imprecise_when_more_than_half_of_its_positions_are(spark: Any) -> None:
    from spark_jobs.transforms.gps_positions import imprecise_devices

    moment = datetime(2026, 11, 20, 5)
    rows = [(1, 0.0, 50.0, moment), (1, 0.0, 50.0, moment), (1, 0.0, -1.0, moment)]
    rows += [(2, 0.0, 80.0, moment), (2, 0.0, 49.9, moment), (3, 0.0, None, moment)]
    found = imprecise_devices(spark.createDataFrame(rows, ARCHIVE)).collect()
    assert [tuple(row) for row in found] == [(1, 3, 2)]


def _column(name: str) -> Any:
    from pyspark.sql import functions as F

    return F.col(name)
