"""Versions of the shipped pipelines: a changed one makes all that was landed and counted before be of other code."""

from __future__ import annotations

import sys

import pytest

from include import versions
from include.pipelines import load_pipeline
from tests.support.shipped import SHIPPED

DECODERS = {
    "auction_bids": "8a38b7b43ea7",
    "gps_positions": "d2cce7c303d5",
    "isp_hits": "39546111c69f",
    "nest_cameras": "fe740ded8855",
    "wiki_changes": "4e757424d524",
}
VIEWS = {
    "auction_bids": {"category_hours": "06109bbe456f", "pair_hours": "ad02f957c433"},
    "gps_positions": {"hourly_counts": "c10fa2a3ce3e"},
    "isp_hits": {
        "by_zip": "65d0dced9328",
        "by_isp": "d577d8bed4a5",
        "zip_totals": "afa781371c23",
        "isp_totals": "c8a45bd4ce94",
    },
    "nest_cameras": {"hourly_counts": "ddf37c2e0830"},
    "wiki_changes": {"user_edits": "fef17c4ef53a"},
}


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="versions depend on Python's minor version")
def test_versions_are_those_of_before_when_no_row_can_differ() -> None:
    """Where they change on purpose, write the new ones here, and what users do about it in the runbook's Upgrades."""
    assert {name: versions.decoder_version(name) for name in SHIPPED} == DECODERS
    found = {
        name: {view.name: versions.view_version(name, view.name) for view in load_pipeline(name).views}
        for name in SHIPPED
    }
    assert found == VIEWS
    assert versions.rules_version("auction_bids") == "397c437ad756"
