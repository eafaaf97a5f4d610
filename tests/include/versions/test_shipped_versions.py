"""Versions of the shipped pipelines: a changed one makes all that was landed and counted before be of other code."""

from __future__ import annotations

import sys

import pytest

from include import versions
from include.pipelines import load_pipeline
from tests.support.shipped import SHIPPED

DECODERS = {
    "auction_bids": "999ea479f6f6",
    "gps_positions": "830299769bf7",
    "isp_hits": "97aa72e8bed6",
    "nest_cameras": "3dc3d0ba21fa",
    "wiki_changes": "97a4049b4549",
}
VIEWS = {
    "auction_bids": {"category_hours": "f527f091cf5f", "pair_hours": "fca41dfe1f5c"},
    "gps_positions": {"hourly_counts": "d9b013a10e5c"},
    "isp_hits": {
        "by_zip": "e75972dcc12a",
        "by_isp": "f117624e2597",
        "zip_totals": "f3434b475ecb",
        "isp_totals": "329ffa95235f",
    },
    "nest_cameras": {"hourly_counts": "024eacbffd81"},
    "wiki_changes": {"user_edits": "7ddcc18fc46d"},
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
    assert versions.rules_version("auction_bids") == "69dcc10db4ef"
