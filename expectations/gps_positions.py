"""Expectations that must hold before a table partition of gps_positions is registered."""

from __future__ import annotations

from great_expectations import expectations as gxe
from great_expectations.expectations.expectation import Expectation

SUITES: dict[str, list[Expectation]] = {
    "gps_positions": [
        gxe.ExpectColumnValuesToNotBeNull(column="deviceId"),
        gxe.ExpectColumnValuesToNotBeNull(column="event_time"),
        gxe.ExpectColumnValuesToNotBeNull(column="latitude"),
        gxe.ExpectColumnValuesToNotBeNull(column="longitude"),
        gxe.ExpectColumnValuesToBeBetween(column="latitude", min_value=-90, max_value=90),
        gxe.ExpectColumnValuesToBeBetween(column="longitude", min_value=-180, max_value=180),
        gxe.ExpectColumnValuesToNotBeNull(column="accuracy"),
        gxe.ExpectColumnValuesToBeBetween(column="accuracy", min_value=-1),
    ],
    "gps_positions_hourly_counts": [
        gxe.ExpectColumnValuesToNotBeNull(column="deviceId"),
        gxe.ExpectColumnValuesToBeBetween(column="positions", min_value=1),
        gxe.ExpectColumnValuesToBeBetween(column="moving", min_value=0),
        gxe.ExpectColumnPairValuesAToBeGreaterThanB(column_A="positions", column_B="moving", or_equal=True),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["deviceId", "window_start"]),
    ],
}
"""Expectations by table, as in expectations/nest_cameras.py."""
