"""Expectations that must hold before a table partition of wiki_changes is registered."""

from __future__ import annotations

from great_expectations import expectations as gxe
from great_expectations.expectations.expectation import Expectation

from include.lake import SAFE_VALUE

SUITES: dict[str, list[Expectation]] = {
    "wiki_changes": [
        gxe.ExpectColumnValuesToNotBeNull(column="event_time"),
        gxe.ExpectColumnValuesToNotBeNull(column="server_name"),
        gxe.ExpectColumnValuesToMatchRegex(column="server_name", regex=rf"\A(?:{SAFE_VALUE})\z"),
        # New types of MediaWiki must not stop a run: they are archived but not counted. Of few rows a single one
        # decides about a share, so a person does.
        gxe.ExpectColumnValuesToBeInSet(
            column="type",
            value_set=["edit", "new", "log", "categorize", "external"],
            mostly=0.9,
            severity="info",
        ),
        gxe.ExpectColumnProportionOfNonNullValuesToBeBetween(column="user", min_value=0.9, severity="info"),
    ],
    "wiki_changes_user_edits": [
        gxe.ExpectColumnValuesToNotBeNull(column="user"),
        gxe.ExpectColumnValuesToNotBeNull(column="bot"),
        gxe.ExpectColumnValuesToNotBeNull(column="count"),
        gxe.ExpectColumnValuesToBeBetween(column="count", min_value=1),
        gxe.ExpectCompoundColumnsToBeUnique(column_list=["user", "bot", "window_start"]),
    ],
}
"""Expectations by table, as in expectations/nest_cameras.py."""
