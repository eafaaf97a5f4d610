"""Compaction of closed days: the files of empty and of quarantined records, merged into one per fate and day."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from include import lake
from include.errors import AnotherWriter, TidemarkError, one_line
from include.lake.scan import COMPACTED, scan_files
from include.ledger.archive import landing_files, removal
from include.ledger.archive.landing_files import LandingFile
from include.ledger.held_locks import Check
from include.offsets import Fate
from include.pipelines.spec import KAFKA_COLUMNS
from include.pipelines.spec.ddl import fields_of

_TEMPORARY = re.compile(r"\.\d{4}-\d{2}-\d{2}-[a-z]+")

KEPT = (Fate.EMPTY, Fate.QUARANTINED)
"""Fates whose files stay as evidence of what became of their records."""

_COLUMNS = {Fate.EMPTY: [each.name for each in fields_of(KAFKA_COLUMNS)], Fate.QUARANTINED: None}
"""Columns of a merged file; None for all. Those of the archive are null in files of empty records, and of the types
that the rows function returned on their day, which need not go together."""


@dataclass(frozen=True)
class RowDigest:
    """Rows and an order-independent hash of them: a sum, so that every duplicate counts."""

    rows: int = 0
    total: int = 0

    def plus(self, table: pa.Table) -> RowDigest:
        """Return the digest with the table's rows added; columns that are null do not count."""
        total = self.total
        for row in lake.python_rows(table):
            text = repr(sorted((name, value) for name, value in row.items() if value is not None))
            total += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest())
        return RowDigest(self.rows + table.num_rows, total % 2**128)


@dataclass(frozen=True)
class Day:
    """The files of one fate that were committed on one day."""

    fate: Fate
    day: date
    files: tuple[LandingFile, ...]

    @property
    def paths(self) -> list[str]:
        """Paths below the lake, oldest first."""
        return list(dict.fromkeys(file.path for file in self.files))


def closed_days(pipeline: str, now: datetime) -> Iterator[Day]:
    """Yield the days before today (UTC) with loose files of micro-batches that lie wholly in registered intervals.

    A file that was compacted for such a day before is merged again, so that a day has one file. Days on which a topic
    was created again are left out: in one file, two records at one offset look the same. Only some days' files are in
    memory at once.
    """
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    compacted: dict[Fate, list[str]] = {}
    for (day, fate), files in _loose_files(pipeline, midnight):
        if fate not in compacted:
            compacted[fate] = _compacted_paths(pipeline, fate)
        before = [path for path in compacted[fate] if path.rsplit("/", 1)[-1].startswith(f"{day}-")]
        files += landing_files.files_at(pipeline, before)
        if not landing_files.have_namesakes(pipeline, files):
            yield Day(fate, day, tuple(sorted(files, key=lambda file: file.id)))


def _loose_files(pipeline: str, until: datetime) -> Iterator[tuple[tuple[date, Fate], list[LandingFile]]]:
    """Yield the loose files of each day and fate, committed before `until`, as soon as a later day's files follow."""
    groups: dict[tuple[date, Fate], list[LandingFile]] = defaultdict(list)
    for batches in removal.settled_batches(pipeline, until, KEPT):
        for file in landing_files.files_of(batches, KEPT):
            if not file.is_compacted and file.committed_at is not None:
                groups[file.committed_at.astimezone(UTC).date(), file.fate].append(file)
        latest = max(groups, default=None)
        for key in sorted(groups):
            if latest and key[0] < latest[0]:
                yield key, groups.pop(key)
    yield from sorted(groups.items())


def _folder(pipeline: str, fate: Fate) -> tuple[str, ...]:
    return ("quarantine", pipeline) if fate == Fate.QUARANTINED else ("landing", pipeline, COMPACTED, fate)


def _compacted_paths(pipeline: str, fate: Fate) -> list[str]:
    return [lake.below_lake(location) for location in scan_files(*_folder(pipeline, fate))]


def compact(pipeline: str, day: Day, check: Check) -> str:
    """Merge a day's files into one, record in the ledger that their rows lie there, and return its path below the lake.

    Order: the file is written beside its place under a name that readers do not see; it is read back and
    must hold the same rows, by their order-independent hash, and as many as the ledger counts; it is moved
    to its place; one transaction moves the ledger's rows to it. The old files go later
    (`include/housekeeping/sweep.py`), because somebody may be reading them. `check` is called before each change.
    Raises TidemarkError, with nothing changed, when the rows differ, a file is damaged or not there, AnotherWriter when
    an erasure wrote one of the files anew meanwhile.
    """
    if len(day.paths) == 1:
        check()
        removal.move_into(pipeline, day.files, day.paths[0], day.files[0].bytes)
        return day.paths[0]
    noted: Counter[str] = Counter()
    for file in day.files:
        noted[file.path] += file.rows
    folder = lake.uri(*_folder(pipeline, day.fate))
    temporary = f"{folder}/.{day.day}-{day.fate}"
    try:
        target = _merged(pipeline, day, noted, temporary)
        check()
        lake.move(temporary, target)
    except Exception:
        # No reader sees it, and it may hold what is erased meanwhile.
        lake.delete_file(temporary)
        raise
    path = lake.below_lake(target)
    try:
        removal.move_into(pipeline, day.files, path, lake.size(target))
    except AnotherWriter:
        # It may hold what was erased.
        if not landing_files.files_at(pipeline, [path]):
            lake.delete_file(target)
        raise
    return path


def leftovers(pipeline: str) -> dict[str, int]:
    """Return files that killed merges left, as location to bytes; for a caller beside whom nobody merges."""
    folders = [lake.uri(*_folder(pipeline, fate)) for fate in KEPT]
    entries = ((folder, each) for folder in folders for each in lake.list_entries(folder, recursive=False))
    return {f"{folder}/{each.name}": each.bytes for folder, each in entries if _TEMPORARY.fullmatch(each.name)}


def _merged(pipeline: str, day: Day, noted: Mapping[str, int], temporary: str) -> str:
    """Write a day's files to a temporary one, and return the location at which it belongs."""
    try:
        before = _merge(pipeline, day.paths, noted, temporary, _COLUMNS[day.fate])
        after = RowDigest()
        for table in _read(temporary):
            after = after.plus(table)
    except pa.ArrowException as error:
        raise TidemarkError(
            f"the files of {day.fate} records of {day.day} cannot be merged ({one_line(str(error))}); "
            "its day was not compacted",
            remedy="./tidemark doctor lists damaged files; if it lists none, report this",
            pipeline=pipeline,
        ) from error
    if after != before:
        raise TidemarkError(
            f"the compacted file of {day.fate} on {day.day} holds {after.rows} rows, its sources {before.rows}, "
            "or other values; nothing was changed",
            remedy="report this; the files stay as they are",
            pipeline=pipeline,
        )
    folder = lake.uri(*_folder(pipeline, day.fate))
    return f"{folder}/{day.day}-{after.total:032x}"[: len(folder) + 24] + ".parquet"


def _merge(
    pipeline: str, paths: Sequence[str], noted: Mapping[str, int], target: str, columns: Sequence[str] | None = None
) -> RowDigest:
    """Write the rows of the files to one, with these columns or those of all, and return the digest of what was read.

    Raises pyarrow's errors for a damaged file, and for a column of which two files have types that do not go together.
    """
    for path in paths:
        if not lake.exists(lake.uri(path)):
            raise TidemarkError(
                f"{path} is not there; its day was not compacted: ./tidemark doctor --repair",
                remedy="restore the file, if that cannot put it back",
                pipeline=pipeline,
            )
    # Thousands of files have few different schemas.
    schemas = dict.fromkeys(_schema(lake.uri(path), columns) for path in paths)
    schema = pa.unify_schemas([*schemas], promote_options="permissive")
    system, at = lake.filesystem(target)
    lake.make_parents(target)
    digest = RowDigest()

    def portions() -> Iterator[pa.Table]:
        nonlocal digest
        for path in paths:
            before = digest.rows
            for table in _read(lake.uri(path), columns):
                digest = digest.plus(table)
                parts = [schema.empty_table(), table.replace_schema_metadata(None)]
                yield pa.concat_tables(parts, promote_options="permissive")
            if (rows := digest.rows - before) != noted[path]:
                raise TidemarkError(
                    f"{path} holds {rows} rows, the ledger counts {noted[path]}; its day was not compacted",
                    remedy="./tidemark doctor --deep; restore the file",
                    pipeline=pipeline,
                )

    with pq.ParquetWriter(at, schema, filesystem=system, compression="zstd") as writer:
        lake.write_row_groups(writer, portions())
    return digest


def _schema(location: str, columns: Sequence[str] | None) -> pa.Schema:
    with lake.open_parquet(location) as file:
        return pa.schema([each for each in file.schema_arrow if columns is None or each.name in columns])


def _read(location: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    with lake.open_parquet(location, page_by_page=True) as file:
        yield from lake.portions_of(file, columns)
