"""Expectations that must hold before a table partition of isp_hits is registered."""

from __future__ import annotations

from great_expectations import expectations as gxe
from great_expectations.expectations.expectation import Expectation

SUITES: dict[str, list[Expectation]] = {
    "isp_hits": [
        gxe.ExpectColumnValuesToNotBeNull(column="zipcode"),
        gxe.ExpectColumnValuesToNotBeNull(column="event_time"),
        gxe.ExpectColumnValueLengthsToBeBetween(column="isp", max_value=200),
        # Optional, and absent from whole deployments: told, and registered.
        gxe.ExpectColumnProportionOfNonNullValuesToBeBetween(column="user", min_value=0.9, severity="info"),
    ],
    "isp_hits_by_zip": [
        gxe.ExpectColumnValuesToNotBeNull(column="zipcode"),
        gxe.ExpectColumnValuesToBeBetween(column="hits", min_value=1),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["zipcode", "window_start"]),
    ],
    "isp_hits_by_isp": [
        gxe.ExpectColumnValuesToNotBeNull(column="isp"),
        gxe.ExpectColumnValuesToBeBetween(column="hits", min_value=1),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["isp", "window_start"]),
    ],
    "isp_hits_zip_totals": [
        gxe.ExpectColumnValuesToBeUnique(column="zipcode"),
        gxe.ExpectColumnValuesToBeBetween(column="hits", min_value=1),
    ],
    "isp_hits_isp_totals": [
        gxe.ExpectColumnValuesToBeUnique(column="isp"),
        gxe.ExpectColumnValuesToBeBetween(column="hits", min_value=1),
    ],
}
"""Expectations by table, as in expectations/nest_cameras.py."""
