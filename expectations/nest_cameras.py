"""Expectations that must hold before a table partition of nest_cameras is registered."""

from __future__ import annotations

from great_expectations import expectations as gxe
from great_expectations.expectations.expectation import Expectation

SUITES: dict[str, list[Expectation]] = {
    "nest_cameras": [
        gxe.ExpectColumnValuesToNotBeNull(column="device_id"),
        gxe.ExpectColumnValuesToNotBeNull(column="event_time"),
        gxe.ExpectColumnValueLengthsToBeBetween(column="device_id", min_value=1, max_value=200),
        # Optional, and absent from whole deployments: told, and registered.
        gxe.ExpectColumnProportionOfNonNullValuesToBeBetween(column="is_online", min_value=0.99, severity="info"),
    ],
    "nest_cameras_hourly_counts": [
        gxe.ExpectColumnValuesToNotBeNull(column="zip_code"),
        gxe.ExpectColumnValuesToMatchRegex(column="zip_code", regex=r"\A[0-9]{5}\z"),
        gxe.ExpectColumnValuesToNotBeNull(column="count"),
        gxe.ExpectColumnValuesToBeBetween(column="count", min_value=1),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["zip_code", "window_start"]),
    ],
}
"""Expectations by table. DataFrames have the table's columns and `event_time`; those of views also have `window_start`
and `window_end`. Row counts and unique row identities are checked for every table before these expectations."""
