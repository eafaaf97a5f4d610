"""Versions of the shipped pipelines: a changed one makes all that was landed and counted before be of other code."""

from __future__ import annotations

import sys

import pytest

from include import versions
from include.pipelines import load_pipeline
from tests.support.shipped import SHIPPED

DECODERS = {
    "auction_bids": "3af43950bb07",
    "gps_positions": "7985548109d5",
    "isp_hits": "925833bc2753",
    "nest_cameras": "e4c4ca70147c",
    "wiki_changes": "8cdfe2f4dc8a",
}
VIEWS = {
    "auction_bids": {"category_hours": "34fc7904416b", "pair_hours": "ef80459b9a41"},
    "gps_positions": {"hourly_counts": "5a710d2c6575"},
    "isp_hits": {
        "by_zip": "882efb56c60b",
        "by_isp": "759709b31994",
        "zip_totals": "e5f51a6f9e01",
        "isp_totals": "bbe1c09b2b36",
    },
    "nest_cameras": {"hourly_counts": "8d3ca1c55891"},
    "wiki_changes": {"user_edits": "45c6dd2de143"},
}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="versions depend on Python's minor version")
def test_versions_are_those_of_before_when_no_row_can_differ() -> None:
    """Where they change on purpose, write the new ones here, and in the runbook (Between two commits) what users do."""
    assert {name: versions.decoder_version(name) for name in SHIPPED} == DECODERS
    found = {
        name: {view.name: versions.view_version(name, view.name) for view in load_pipeline(name).views}
        for name in SHIPPED
    }
    assert found == VIEWS
    assert versions.rules_version("auction_bids") == "ac14aed35e05"
