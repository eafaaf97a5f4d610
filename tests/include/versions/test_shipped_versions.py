"""Versions of the shipped pipelines: a changed one makes all that was landed and counted before be of other code."""

from __future__ import annotations

import sys

import pytest

from include import versions
from include.pipelines import load_pipeline
from tests.support.shipped import SHIPPED

DECODERS = {
    "auction_bids": "d9159c504584",
    "gps_positions": "821cb0fc4635",
    "isp_hits": "cab8bf7d3280",
    "nest_cameras": "76bf2f51079f",
    "wiki_changes": "9fdac00ea994",
}
VIEWS = {
    "auction_bids": {"category_hours": "51b4021b67aa", "pair_hours": "dc01a05695b7"},
    "gps_positions": {"hourly_counts": "5ad8fea40108"},
    "isp_hits": {
        "by_zip": "0467f45c81e9",
        "by_isp": "9fa47f1a4226",
        "zip_totals": "604d281f7168",
        "isp_totals": "16243f1f7ba8",
    },
    "nest_cameras": {"hourly_counts": "3fa85a0396ae"},
    "wiki_changes": {"user_edits": "3b019d862536"},
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
    assert versions.rules_version("auction_bids") == "a606418c2728"
