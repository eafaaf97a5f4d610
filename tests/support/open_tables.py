"""Registered intervals of a pipeline with Iceberg tables: real ledger, real catalog, files as Spark lays them down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from include import lake
from include.iceberg import catalog as iceberg_catalog
from include.iceberg import tables
from include.ledger.database import session
from include.ledger.intervals import attempts, builds, revisions
from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.builds import Changes
from include.ledger.intervals.findings import BuildFindings, FateCounts, IcebergSnapshot, RecordCounts, Validation
from include.ledger.lineage import BuiltRevision
from include.ledger.models import Attempt
from include.pipelines import load_pipeline
from include.pipelines.spec import Pipeline
from include.reconciliation import ReconciliationCounts
from tests.support.committed import DAY, TP, register

COLUMNS = (
    "device STRING, speed INT, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, price DECIMAL(10,2), small TINYINT, "
    "raw BINARY, tags ARRAY<STRING>, place STRUCT<zip: STRING, lat: DOUBLE>, facts MAP<STRING, BIGINT>"
)
PASSED = Validation(True, "suite")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def pipeline_named(name: str, columns: str = COLUMNS, **archive: Any) -> Pipeline:
    """A pipeline of that name whose archive is an Iceberg table, without views."""
    declared = load_pipeline("nest_cameras")
    kept = replace(declared.archive, columns=columns, event_time="at", rules=(), subject="", iceberg=True, **archive)
    return replace(declared, name=name, archive=kept, views=(), references={}, reports=(), declared_as="")


def rows_of(hour: int, count: int, first: int = 0, speed: pa.DataType | None = None) -> pa.Table:
    """Rows with distinct coordinates, and nulls in every third."""
    numbers = range(first, first + count)

    def every(value: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if n % 3 == 2 else value(n) for n in numbers], kind)

    at = DAY + timedelta(hours=hour)
    return pa.table(
        {
            "device": pa.array([f"d{n}" for n in numbers]),
            "speed": every(lambda n: n, speed or pa.int32()),
            "at": pa.array([at + timedelta(seconds=n) for n in numbers], pa.timestamp("us", "UTC")),
            "local": every(lambda n: at.replace(tzinfo=None), pa.timestamp("us")),
            "day": every(lambda n: at.date(), pa.date32()),
            "price": every(lambda n: Decimal(n) / 4, pa.decimal128(10, 2)),
            "small": every(lambda n: n % 100, pa.int8()),
            "raw": every(lambda n: b"\x00" * n, pa.binary()),
            "tags": every(lambda n: [str(n), None], pa.list_(pa.field("element", pa.string()))),
            "place": every(
                lambda n: {"zip": "0123", "lat": n / 8}, pa.struct({"zip": pa.string(), "lat": pa.float64()})
            ),
            "facts": every(lambda n: [("n", n)], pa.map_(pa.string(), pa.int64())),
            "kafka_topic": pa.array(["events"] * count),
            "kafka_partition": pa.array([0] * count, pa.int32()),
            "kafka_offset": pa.array([hour * 1000 + n for n in numbers], pa.int64()),
            "kafka_timestamp": pa.array([at] * count, pa.timestamp("us", "UTC")),
            "kafka_element": pa.array([0] * count, pa.int32()),
        }
    )


@dataclass
class OpenTable:
    """A pipeline's archive table, whose intervals are built and registered without Spark and Hive."""

    pipeline: Pipeline
    intervals: dict[int, int] = field(default_factory=dict)

    def build(
        self, hour: int, parts: dict[str, pa.Table], *, version: str = "1"
    ) -> tuple[AttemptSpec, list[BuiltRevision]]:
        """Build an interval of the given table partitions, by date, as a new attempt."""
        name = self.pipeline.name
        if hour not in self.intervals:
            self.intervals[hour] = register(name, hour, hour * 1000, (hour + 1) * 1000, "pinned")
        with session() as ledger:
            row = Attempt(
                interval_id=self.intervals[hour], run_by="test", code_version=version, source="kafka", verdict={}
            )
            ledger.add(row)
            ledger.flush()
            number = row.id
        spec = attempts.load_attempt(number)
        built = [self._write(spec, date, rows) for date, rows in parts.items()]
        count = sum(each.rows for each in built)
        found = BuildFindings(
            spec.pinned.ranges,
            {TP: FateCounts(archived=count, empty=1000 - count)},
            RecordCounts(in_ranges=1000, archived=count, empty=1000 - count),
            ReconciliationCounts(matched=count),
        )
        builds.note_build(spec, built, found)
        return attempts.load_attempt(number), built

    def _write(self, spec: AttemptSpec, date: str, rows: pa.Table) -> BuiltRevision:
        partition = f"date={date}/interval={spec.pinned.interval.label}"
        revision = f"r-{spec.id}"
        location = lake.uri("tables", self.pipeline.table, partition, revision)
        name = "part-00000.zstd.parquet"
        system, at = lake.filesystem(f"{location}/{name}")
        lake.make_parents(f"{location}/{name}")
        pq.write_table(rows, at, filesystem=system, store_decimal_as_integer=True)
        written = lake.read_bytes(f"{location}/{name}")
        content = str(hash(written))
        files = {name: {"rows": rows.num_rows, "bytes": len(written), "sha256": ""}}
        return BuiltRevision(self.pipeline.table, partition, revision, location, rows.num_rows, content, files)

    def changes(self, spec: AttemptSpec, built: Sequence[BuiltRevision]) -> Changes:
        """Return the changes of a registration, as publication computes them."""
        before = {(each.table, each.partition): each for each in revisions.registered_of_interval(spec.pinned.id)}
        points, kept = [], []
        for each in built:
            old = before.pop((each.table, each.partition), None)
            (kept if old is not None and old.content_hash == each.content_hash else points).append(each)
        return Changes(tuple(points), tuple(before.values()), tuple(kept))

    def publish(self, spec: AttemptSpec, built: Sequence[BuiltRevision]) -> IcebergSnapshot:
        """Register what an attempt built."""
        tables.prepare(self.pipeline)
        begun = builds.begin_registration(spec, PASSED, self.changes(spec, built))
        put = tables.put_build(self.pipeline, begun.pinned.id, begun.build, begun.changes)
        attempts.note_iceberg(begun.build, put)
        builds.finish_registration(begun)
        return put[0]

    def run(self, hour: int, parts: dict[str, pa.Table]) -> IcebergSnapshot:
        """Build and register an interval."""
        return self.publish(*self.build(hour, parts))

    def load(self) -> Table:
        """Return the current Iceberg table."""
        with iceberg_catalog.opened() as catalog:
            return catalog.load_table(("lake", self.pipeline.table))

    def registered_rows(self) -> pa.Table:
        """The rows of the registered revisions, read from their folders as Hive's table names them."""
        return rows_in(revisions.registered(self.pipeline.table))


def rows_in(built: Iterable[BuiltRevision]) -> pa.Table:
    """The rows of revisions' files, with the values that their folders name."""
    parts = []
    for each in built:
        folder = lake.filesystem(each.location)[1]
        rows = pa.concat_tables([pq.ParquetFile(f"{folder}/{name}").read() for name in sorted(each.files)])
        for part in each.partition.split("/"):
            name, value = part.split("=")
            rows = rows.append_column(name, pa.array([value] * rows.num_rows))
        parts.append(rows)
    return pa.concat_tables(parts, promote_options="permissive")


def comparable(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows as sorted tuples, moments in UTC and maps as lists."""
    listed = rows.select(list(names)).to_pylist()
    return sorted((tuple(_plain(row[name]) for name in names) for row in listed), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return sorted((key, _plain(each)) for key, each in value.items())
    if isinstance(value, list):
        return [tuple(each) if isinstance(each, list | tuple) else _plain(each) for each in value]
    return value


def lay_files(table: Table, past: int, at_once: int = 500) -> None:
    """Add files of earlier intervals, which nobody reads, so many by each commit."""
    (real,) = (task.file for task in table.scan().plan_files())
    head = table.current_snapshot()
    said = dict(head.summary.additional_properties) if head and head.summary else {}
    # As its own commits say: what others commit is left behind by the next one.
    own = {key: value for key, value in said.items() if key.startswith("tidemark.")}
    for first in range(0, past, at_once):
        with table.transaction() as transaction, transaction.update_snapshot(own).merge_append() as snapshot:
            for number in range(first, min(first + at_once, past)):
                at = LONG_AGO + timedelta(hours=number)
                file = copy(real)
                file._data = list(real._data)
                file[1] = real.file_path.replace("2026-11-18T05", f"{at:%Y-%m-%dT%H}")
                file[3] = Record(f"{at:%Y-%m-%d}", f"{at:%Y-%m-%dT%H}")
                snapshot.append_data_file(file)
