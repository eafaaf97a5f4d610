"""Records after the watermark: the speed view drops them, the batch view counts them, nothing is unexplained."""

from __future__ import annotations

from datetime import timedelta

import pytest

from include.pipelines import load_pipeline
from tests.conftest import Home, iso, last_hours
from tests.support import audit

pytestmark = [pytest.mark.services, pytest.mark.slow]


def test_late_rows_are_counted_row_by_row_when_the_speed_view_dropped_them(home: Home) -> None:
    start = last_hours(3)
    for seed in ("1", "2"):
        home.run("produce", "nest_cameras", "--events", "1500", "--seed", seed, "--start", iso(start), "--span", "3h")
        home.run("stream", "nest_cameras", "--until-caught-up")
    verdict = home.interval("nest_cameras", start + timedelta(hours=2))
    assert verdict["reconciliation"]["unexplained"] == 0

    # The oracle: records of the topic that the speed view's last values do not count.
    lines = load_pipeline("nest_cameras").references["device_locations"].path.read_text().splitlines()[1:]
    places = dict(line.split(",") for line in lines)
    rows = audit.expected(audit.read_topic(home.kafka, "nest-logs")).rows.values()
    sightings = sum(row["last_event"]["has_person"] and row["device_id"] in places for row in rows)
    counted = sum(value["count"] for value in audit.last_values(home.kafka, "nest-camera-stats").values())
    assert sightings > counted
    assert verdict["reconciliation"]["late"] == sightings - counted
