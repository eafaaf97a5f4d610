"""What events of assets tell: the interval, its partitions, and until when tables were complete."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.execution_time.context import OutletEventAccessors

from include.airflow.assets import UNKEYED, emit, table_asset
from include.ledger.completeness import completeness
from include.times import format_time
from tests.conftest import Home
from tests.support.attempts import begin_attempt, build_and_register, hour

pytestmark = pytest.mark.services

PIPELINE = "wiki_changes"


def times_of(number: int) -> dict[str, str]:
    """An hour as a verdict tells it."""
    return {"from": format_time(hour(number).from_time), "to": format_time(hour(number).to_time)}


def told_of(number: int, **more: Any) -> dict[str, Any]:
    return {"interval": times_of(number), "report": "file:///report.html", **more}


def test_both_events_tell_until_when_tables_are_complete(postgres: Home) -> None:
    for number in (0, 1):
        build_and_register(PIPELINE, hour(number))
    begin_attempt(PIPELINE, hour(2))
    until = completeness(PIPELINE).as_json()["until"]
    assert until == times_of(1)["to"]
    events, asset = OutletEventAccessors(), table_asset(PIPELINE)
    partitions = {"registered": [{"partition": "date=2026-11-20"}], "dropped": [{"partition": "date=2026-11-19"}]}
    emit(events, asset, told_of(1, complete_until=until, **partitions))
    extra = {
        "interval": times_of(1),
        "partitions": [{"partition": "date=2026-11-20"}],
        "dropped": [{"partition": "date=2026-11-19"}],
        "report": "file:///report.html",
        "complete_until": times_of(1)["to"],
    }
    assert events[asset].extra == extra
    (unkeyed,) = events[UNKEYED].asset_alias_events
    assert unkeyed.extra == extra


def test_event_has_no_time_and_nothing_dropped_when_earlier_code_ran() -> None:
    events, asset = OutletEventAccessors(), table_asset(PIPELINE)
    emit(events, asset, told_of(0, registered=[]))
    assert (events[asset].extra["complete_until"], events[asset].extra["dropped"]) == (None, [])
