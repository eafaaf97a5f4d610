"""kill -9 between any two steps of an interval: nothing half visible, and a rerun converges."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg2
import pytest

from tests import audit
from tests.conftest import Home, iso, last_hours

pytestmark = [pytest.mark.services, pytest.mark.faults]

START = last_hours(2)
BEFORE_REGISTRATION = ("interval_pinned", "revision_staged", "revision_written", "revisions_noted")


def catalog(home: Home) -> set[tuple[str, str, str]]:
    """Table, partition and location of everything registered, from the metastore's own tables."""
    with psycopg2.connect(home.database.replace("/ledger", "/catalog")) as connection, connection.cursor() as cursor:
        cursor.execute(
            'SELECT t."TBL_NAME", p."PART_NAME", s."LOCATION" FROM "PARTITIONS" p '
            'JOIN "TBLS" t ON t."TBL_ID" = p."TBL_ID" JOIN "SDS" s ON s."SD_ID" = p."SD_ID"'
        )
        return {(table, part, location.replace("file:///", "file:/")) for table, part, location in cursor.fetchall()}


def revisions(home: Home, state: str) -> set[tuple[str, str, str]]:
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT table_name, table_partition, location FROM revisions WHERE state = %s", (state,))
        return {(table, part, location.replace("file:///", "file:/")) for table, part, location in cursor.fetchall()}


def kill_interval(home: Home, moment: str) -> None:
    bounds = ("--from", iso(START), "--to", iso(START + timedelta(hours=1)))
    killed = home.run("interval", "nest_cameras", *bounds, expect=None, TIDEMARK_CRASH_AT=moment)
    assert killed.returncode not in (0, 1, 2, 3), f"not killed at {moment}: {killed.stderr[-2000:]}"


def test_rerun_converges_when_the_interval_is_killed_between_any_two_steps(home: Home) -> None:
    arguments = ("--events", "1200", "--bad-fraction", "0.05", "--start", iso(START), "--span", "59m")
    home.run("produce", "nest_cameras", *arguments)
    home.run("stream", "nest_cameras", "--until-caught-up")
    for moment in BEFORE_REGISTRATION:
        kill_interval(home, moment)
        assert catalog(home) == set(), f"something is visible after a kill at {moment}"
        assert revisions(home, "registered") == set()

    # In the middle of the registration: what is visible passed its checkpoint, and the intent is noted.
    kill_interval(home, "partition_registered")
    begun = revisions(home, "registering")
    assert len(catalog(home)) == 1 < len(begun)
    assert catalog(home) < begun
    assert revisions(home, "registered") == set()

    # Whoever publishes next finishes it; killed again after that, before the verdict.
    kill_interval(home, "interval_published")
    assert revisions(home, "registering") == set()
    assert catalog(home) == revisions(home, "registered") == begun

    verdict: dict[str, Any] = home.interval("nest_cameras", START)
    assert {(r["table"], r["partition"]) for r in verdict["registered"]} == {(t, p) for t, p, _ in begun}
    assert catalog(home) == begun
    records = audit.in_ranges(audit.read_topic(home.kafka, "nest-logs"), verdict["ranges"])
    assert len(records) == 1200
    table = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras")
    assert audit.identities(table) == Counter(audit.expected(records).rows.keys())
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        # Every build that lived long enough to be noted holds the same rows.
        cursor.execute("SELECT table_name, count(DISTINCT content_hash), count(*) FROM revisions GROUP BY 1")
        assert {distinct for _, distinct, count in cursor.fetchall() if count > 2} == {1}
