"""Rewrite landing and quarantine files without the erased records.

The new file lies beside the old one under another name; one transaction of the ledger puts it in the old one's place;
then the old one is deleted. After a kill in between, the next run begins with the same file again, or finds it done.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection

import pyarrow as pa
import pyarrow.parquet as pq

from include import lake
from include.crash_points import crash_point
from include.ledger.archive import landing_files
from include.ledger.archive.landing_files import LandingFile
from include.ledger.erasures import unfinished
from include.ledger.erasures.coordinates import in_file
from include.ledger.erasures.unfinished import Begun
from include.ledger.held_locks import Check
from include.offsets import Coordinates, Fate
from include.pipelines.spec import Pipeline

_COLUMNS = ["kafka_topic", "kafka_partition", "kafka_offset"]


def rewrite_files(pipeline: Pipeline, erasure: Begun, check: Check) -> int:
    """Rewrite the files that hold records of an erasure without them, and return how many files there were.

    `check` is called before each change of what readers see.
    """
    gone = unfinished.records_of(erasure.id)
    paths = unfinished.files_to_look_at(erasure)
    written = 0
    for path, topic_ids in landing_files.topic_ids_of_files(paths).items():
        written += _rewrite(pipeline, erasure.id, path, in_file(gone, topic_ids), check)
    return written


def _rewrite(pipeline: Pipeline, erasure: int, path: str, gone: Collection[Coordinates], check: Check) -> bool:
    location = lake.uri(path)
    counted = _rows_of(location, gone)
    if not counted:
        return False
    target = lake.uri(_renamed(path, erasure))
    rows = _copy(location, target, gone)
    crash_point("erased_file_written")
    with lake.open_parquet(target) as written:
        times = lake.time_bounds(written.metadata, pipeline.archive.event_time)
    # The ledger's row has its real fate.
    file = LandingFile(Fate.ARCHIVED, lake.below_lake(target), rows, lake.size(target), times)
    check()
    unfinished.swap_file(path, file, counted.keys(), counted)
    crash_point("erased_file_swapped")
    lake.delete_file(location)
    return True


def _rows_of(location: str, gone: Collection[Coordinates]) -> Counter[Coordinates]:
    """Return how many rows a file has of each of the records."""
    counted: Counter[Coordinates] = Counter()
    with lake.open_parquet(location) as file:
        for batch in file.iter_batches(columns=_COLUMNS):
            columns = [batch.column(name).to_pylist() for name in _COLUMNS]
            counted.update(each for each in zip(*columns, strict=True) if each in gone)
    return counted


def _copy(source: str, target: str, gone: Collection[Coordinates]) -> int:
    """Copy the rows of other records, and return how many there are."""
    system, at = lake.filesystem(f"{target}.tmp")
    with (
        lake.open_parquet(source, page_by_page=True) as file,
        pq.ParquetWriter(at, file.schema_arrow, filesystem=system, compression="zstd") as writer,
    ):
        rows = lake.write_row_groups(writer, (_without(gone, each) for each in lake.portions_of(file)))
    lake.move(f"{target}.tmp", target)
    return rows


def _without(gone: Collection[Coordinates], rows: pa.Table) -> pa.Table:
    columns = [rows.column(name).to_pylist() for name in _COLUMNS]
    return rows.filter(pa.array([each not in gone for each in zip(*columns, strict=True)], pa.bool_()))


def _renamed(path: str, erasure: int) -> str:
    stem = re.sub(r"(-e\d+)?\.parquet$", "", path)
    return f"{stem}-e{erasure}.parquet"
