"""Expectations that must hold before a table partition of auction_bids is registered."""

from __future__ import annotations

from great_expectations import expectations as gxe
from great_expectations.expectations.expectation import Expectation

SUITES: dict[str, list[Expectation]] = {
    "auction_bids": [
        *(
            gxe.ExpectColumnValuesToNotBeNull(column=name)
            for name in ("bid_id", "auction_id", "category", "seller", "bidder", "currency", "amount", "event_time")
        ),
        gxe.ExpectColumnValuesToBeBetween(column="amount", min_value=0.01, max_value=9_999_999.99),
        gxe.ExpectColumnValueLengthsToBeBetween(column="category", min_value=1, max_value=100),
    ],
    "auction_bids_category_hours": [
        *(gxe.ExpectColumnValuesToNotBeNull(column=name) for name in ("category", "currency", "amount_squared")),
        gxe.ExpectColumnValuesToBeBetween(column="bids", min_value=1),
        gxe.ExpectColumnValuesToBeBetween(column="amount", min_value=0.01),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["category", "currency", "window_start"]),
    ],
    "auction_bids_pair_hours": [
        *(gxe.ExpectColumnValuesToNotBeNull(column=name) for name in ("bidder", "seller")),
        gxe.ExpectColumnValuesToBeBetween(column="bids", min_value=1),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["bidder", "seller", "window_start"]),
    ],
}
"""Expectations by table, as in expectations/nest_cameras.py."""
