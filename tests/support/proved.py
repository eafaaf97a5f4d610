"""Registered hours with real files and their proofs, without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from include import lake
from include.ledger.erasures.coordinates import last_erasure
from include.ledger.intervals import attempts, builds
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import BuildFindings, ExpectationResult, FateCounts, RecordCounts, Validation
from include.ledger.lineage import BuiltRevision
from include.offsets import OffsetRange
from include.reconciliation import ReconciliationCounts
from tests.support.attempts import START, begin_attempt, hour

PIPELINE = "nest_cameras"
MET = ExpectationResult(PIPELINE, "expect_table_row_count_to_be_between", "", "has rows", True, "190", 0)


def rows_of(ranges: Iterable[OffsetRange], archived: int = 95) -> pa.Table:
    """A row per archived record: the first so many offsets of each range; every other record has a second row."""
    rows = [
        {
            "kafka_topic": each.topic_partition.topic,
            "kafka_partition": each.topic_partition.partition,
            "kafka_offset": each.from_offset + n,
            "kafka_element": element,
            "kafka_timestamp": datetime.fromtimestamp(START.timestamp() + each.from_offset + n, UTC),
            "device_id": f"d-{n}",
        }
        for each in ranges
        for n in range(archived)
        for element in range(1 + n % 2)
    ]
    schema = pa.schema(
        [
            ("kafka_topic", pa.string()),
            ("kafka_partition", pa.int32()),
            ("kafka_offset", pa.int64()),
            ("kafka_element", pa.int32()),
            ("kafka_timestamp", pa.timestamp("us", "UTC")),
            ("device_id", pa.string()),
        ]
    )
    return pa.Table.from_pylist(rows, schema)


def built_revision(attempt: int, table: pa.Table, part: str = "") -> BuiltRevision:
    """A revision of the archive table with one file; `part`, e.g. `zip=10001`, is one of its partition's name."""
    interval = attempts.load_attempt(attempt).pinned.interval
    parts = (f"date={interval.from_time:%Y-%m-%d}", part, f"interval={interval.label}")
    partition = "/".join(each for each in parts if each)
    location = lake.uri("tables", PIPELINE, partition, f"r-{attempt}")
    path = Path(location.removeprefix("file://")) / "part-0.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(table, path)
    facts = {"rows": table.num_rows, "bytes": path.stat().st_size, "sha256": lake.sha256(path.as_uri())}
    files: dict[str, Any] = {path.name: facts}
    return BuiltRevision(PIPELINE, partition, f"r-{attempt}", location, table.num_rows, "v2:0123", files)


def register_hour(
    number: int,
    *,
    table: pa.Table | None = None,
    unchanged: bool = False,
    part: str = "",
    decoder_versions: tuple[str, ...] = (),
) -> int:
    """Build an hour as `begin_attempt` pins it and register it; `unchanged`: what was registered stays. Its id."""
    attempt = begin_attempt(PIPELINE, hour(number))
    spec = attempts.load_attempt(attempt)
    ranges = spec.pinned.ranges
    built = built_revision(attempt, rows_of(ranges) if table is None else table, part)
    findings = BuildFindings(
        ranges,
        {each.topic_partition: FateCounts(95, 2, 3, 0) for each in ranges},
        RecordCounts(in_ranges=200, archived=190, empty=4, quarantined=6),
        ReconciliationCounts(matched=190),
        decoder_versions=decoder_versions,
    )
    builds.note_build(spec, [built], findings, known=last_erasure(PIPELINE))
    spec = attempts.load_attempt(attempt)
    changes = Changes(kept=(built,)) if unchanged else Changes(points=(built,))
    passed = Validation(True, PIPELINE, (MET,))
    builds.finish_registration(builds.begin_registration(spec, passed, changes))
    return spec.pinned.id
