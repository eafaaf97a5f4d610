"""The daily roll-up: a day's registered intervals, summed up; a day with a hole in it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from include.airflow.daily import parse_day, roll_up
from include.errors import TidemarkError, UsageError
from include.pipelines import load_pipeline
from include.times import every
from tests.conftest import Home

pytestmark = [pytest.mark.services]

DAY = datetime(2026, 11, 20, tzinfo=UTC)

# 25 hours, of which the last is another day's; each has 10 offsets and a partition of 7 rows, but hour 3 has no row.
REGISTERED = """
INSERT INTO intervals (id, pipeline, from_time, to_time, pinned_by, state)
  SELECT h + 1, 'nest_cameras', '2026-11-20Z'::timestamptz + h * interval '1 hour',
    '2026-11-20Z'::timestamptz + (h + 1) * interval '1 hour', 'somebody', 'registered' FROM generate_series(0, 24) h;
INSERT INTO interval_ranges (interval_id, topic, topic_partition, topic_id, from_offset, until_offset,
    archived, empty, quarantined, gaps)
  SELECT id, 'nest-logs', 0, 'a', id * 10, id * 10 + 10, 6, 1, 2, 1 FROM intervals;
INSERT INTO attempts (id, interval_id, run_by, code_version, source)
  SELECT id, id, 'somebody', 'v', 'kafka' FROM intervals;
INSERT INTO revisions (id, table_name, table_partition, interval_id, attempt_id, location, rows, content_hash,
    code_version, state, files)
  SELECT 'r' || id, 'nest_cameras', 'date=2026-11-20/interval=' || id, id, id, 'file:///x', 7, 'h', 'v',
    'registered', '{}' FROM intervals WHERE id <> 4;
INSERT INTO revisions (id, table_name, table_partition, interval_id, attempt_id, location, rows, content_hash,
    code_version, state, files)
  VALUES ('old', 'nest_cameras', 'date=2026-11-20/interval=1', 1, 1, 'file:///x', 100, 'h', 'v', 'superseded', '{}');
"""


@pytest.fixture(scope="module")
def day(in_process: Home) -> Home:
    in_process.ledger(REGISTERED)
    return in_process


def test_day_is_summed_up_from_current_registrations_when_it_runs(day: Home) -> None:
    summary = roll_up(load_pipeline("nest_cameras"), DAY)
    file = day.lake / "reports" / "nest_cameras" / "2026-11-20.json"
    assert summary == {**json.loads(file.read_text()), "file": str(file)}
    assert summary["records"] == {
        "in_ranges": 240,
        "archived": 144,
        "empty": 24,
        "quarantined": 48,
        "gaps": 24,
        "erased": 0,
    }
    assert summary["tables"] == {"nest_cameras": {"partitions": 23, "rows": 161}}
    assert summary["intervals"] == 24


@pytest.mark.parametrize("duration", ["15m", "6h"])
def test_day_is_complete_when_the_schedule_changed_since(day: Home, duration: str) -> None:
    pipeline = replace(load_pipeline("nest_cameras"), schedule=every(duration))
    assert roll_up(pipeline, DAY)["intervals"] == 24


def test_first_hole_and_its_command_are_named_when_a_day_is_not_complete(day: Home) -> None:
    day.ledger("UPDATE intervals SET state = 'pinned' WHERE id IN (6, 9)")
    with pytest.raises(TidemarkError) as refused:
        roll_up(load_pipeline("nest_cameras"), DAY)
    assert "2 intervals of 2026-11-20 not registered" in refused.value.message
    again = "./tidemark interval nest_cameras --from 2026-11-20T05:00:00Z --to 2026-11-20T06:00:00Z"
    assert refused.value.remedy == again


def test_day_is_refused_when_it_is_none() -> None:
    with pytest.raises(UsageError):
        parse_day("2026-11-20T05")
