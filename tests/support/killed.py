"""How a command ends when a crash point has killed it, or its driver; and what must hold after a stream's was."""

from __future__ import annotations

from collections import Counter
from subprocess import CompletedProcess
from typing import Any

import psycopg2

from tests.conftest import Home
from tests.support import audit


def was_killed(ended: CompletedProcess[str]) -> bool:
    """Return whether the command's own process was killed, or its driver, which it reports."""
    return ended.returncode < 0 or (ended.returncode == 1 and "the driver was killed (signal 9)" in ended.stderr)


def check_landed(home: Home, verdict: dict[str, Any]) -> None:
    """Compare an interval of nest_cameras, the quarantine and the ledger's commits with Kafka: all are there once."""
    everything = audit.read_topic(home.kafka, "nest-logs")
    records = audit.in_ranges(everything, verdict["ranges"])
    expected = audit.expected(records)
    assert verdict["records"]["in_ranges"] == len(records)
    assert verdict["reconciliation"]["unexplained"] == 0
    table = audit.read_parquet(r["location"] for r in verdict["registered"] if r["table"] == "nest_cameras")
    assert audit.identities(table) == Counter(expected.rows.keys())
    with psycopg2.connect(home.database) as connection, connection.cursor() as cursor:
        # The ledger decides: beside committed files there may be one that a killed driver wrote last.
        cursor.execute("SELECT path FROM landing_files WHERE fate = 'quarantined'")
        quarantine = audit.read_files(home.lake / path for (path,) in cursor.fetchall())
        assert audit.coordinates_of(quarantine) == Counter(audit.expected(everything).bad)
        # Its commits tile per topic partition, and both queries reached the same end.
        cursor.execute(
            "SELECT b.query, r.topic_partition, r.from_offset, r.until_offset FROM micro_batch_ranges r "
            "JOIN micro_batches b ON b.id = r.micro_batch_id ORDER BY b.query, r.topic_partition, b.id"
        )
        at: dict[tuple[str, int], int] = {}
        for query, partition, begin_offset, until_offset in cursor.fetchall():
            assert at.get((query, partition), 0) == begin_offset
            at[query, partition] = until_offset
    assert sum(at[query, p] for query, p in at if query == "archive") == len(everything)
    assert sum(at[query, p] for query, p in at if query == "hourly_counts") == len(everything)
