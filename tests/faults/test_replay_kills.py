"""kill -9 of a replay, and two at once: every record is delivered once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.conftest import Home, last_hours
from tests.support import audit
from tests.support.checkout import copy_checkout
from tests.support.killed import was_killed

pytestmark = [pytest.mark.services, pytest.mark.own_drivers, pytest.mark.faults, pytest.mark.slow]


def far_ahead(record: audit.Record) -> list[dict[str, Any]] | None:
    """The cameras of a record that is bad only because an event of theirs is dated 2099."""
    try:
        found = list(json.loads(record.value or b"")["devices"]["cameras"].values())
        years = {camera["last_event"]["start_time"][:4] for camera in found}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return found if "2099" in years else None


def test_each_record_is_delivered_once_when_replays_are_killed_and_run_at_once(home: Home, tmp_path: Any) -> None:
    start = last_hours(2)
    home.produce("nest_cameras", 600, start, "50m", bad=0.3, seed=5)
    home.run("stream", "nest_cameras", "--until-caught-up")
    checkout = copy_checkout(tmp_path / "checkout", home)
    checkout.edit("include/pipelines/nest_cameras.py", 'ahead="1h"', 'ahead="36000d"')
    records = audit.read_topic(home.kafka, "nest-logs")
    replayable = {c: rows for c, record in records.items() if (rows := far_ahead(record))}
    here = {c for c in replayable if c[1] == 0}
    assert here
    assert len(replayable) > len(here)

    def replays() -> int:
        return int(home.ledger("SELECT count(*) FROM replays")[0][0])

    replay = ("quarantine", "replay", "nest_cameras", "--reason", "event_time_out_of_bounds")
    killed = checkout.run(*replay, "--partition", "0", expect=None, TIDEMARK_CRASH_AT="replay_landed")
    assert was_killed(killed), killed.stderr[-2000:]
    assert replays() == 0
    killed = checkout.run(*replay, "--partition", "0", expect=None, TIDEMARK_CRASH_AT="replay_committed")
    assert was_killed(killed), killed.stderr[-2000:]
    assert replays() == len(here)

    both = [checkout.start(*replay) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], [errors for _, errors in said]
    found = [json.loads(output) for output, _ in said]
    assert sorted(each["replayed"] for each in found) == [0, len(replayable) - len(here)]
    assert sorted(each["already_replayed"] for each in found) == [len(here), len(replayable)]
    assert replays() == len(replayable)

    verdict = home.interval("nest_cameras", start)
    assert verdict["records"]["replayed"] == len(replayable)
    assert verdict["reconciliation"]["unexplained"] == 0
    table = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras")
    replayed = {(*c, element) for c, rows in replayable.items() for element in range(len(rows))}
    assert audit.identities(table) == Counter(audit.expected(records).rows.keys() | replayed)
