"""Finds what a micro-batch's archived rows report as down or up again, in its landing files, before it is committed.

States follow each other in the order of the log: by topic partition, offset, and position inside the message. So it
does not matter where one micro-batch ends and the next begins, as long as a thing stays in its topic partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include import lake
from include.ledger import listings
from include.ledger.archive.landing_files import LandingFile
from include.ledger.streams import outages
from include.ledger.streams.outages import Place, StateChange
from include.offsets import Fate
from include.pipelines.spec import Listing, Pipeline
from include.times import EPOCH, format_time

_PLACE = ("kafka_topic", "kafka_partition", "kafka_offset", "kafka_element")

_ROW, _IS_FIRST = "tidemark_row", "tidemark_first"
"""A row's position among those read, and whether it is its thing's first one. No column of an archive is named so."""


def find_changes(pipeline: Pipeline, files: Sequence[LandingFile]) -> list[StateChange]:
    """Return the changes of state in the rows of a micro-batch's files, by report in the log's order."""
    archived = [file for file in files if file.fate == Fate.ARCHIVED]
    return [
        change for report in pipeline.watched_reports for change in _changes(report, archived, _down(pipeline, report))
    ]


def _down(pipeline: Pipeline, report: Listing) -> dict[str, str]:
    """Return the keys of what is down, each with the one that its outage has: a column may be renamed meanwhile."""
    former = pipeline.archive.former_in(report.key)
    return {listings.present_key(key, former): key for key in outages.open_keys(pipeline.name, report.title)}


def _changes(report: Listing, files: Sequence[LandingFile], down: Mapping[str, str]) -> list[StateChange]:
    if not files or not (down or any(_may_be_down(report, file) for file in files)):
        return []
    # Mostly nothing has changed, and no other column is read.
    states = _read(files, [*_PLACE, report.up, *report.key])
    states = states.append_column(_ROW, pa.array(np.arange(states.num_rows)))
    found = _first_and_changed(report, states.filter(pc.is_valid(states[report.up])))
    if not down:
        # The first row of a thing may repeat the known state, which is up.
        found = found.filter(pc.invert(pc.and_(found[_IS_FIRST], found[report.up])))
    changed = [
        row[_ROW]
        for row in lake.python_rows(_counted(found))
        if not row[_IS_FIRST] or row[report.up] == (listings.key_of(row, report.key) in down)
    ]
    if not changed:
        return []
    rows = _read(files, [*_PLACE, "kafka_timestamp", report.up, *report.key, *report.columns]).take(changed)
    kinds = {field.name: field.type for field in rows.schema}
    changes = [_change(report, row, kinds) for row in lake.python_rows(_counted(rows))]
    told = (replace(change, key=down.get(change.key, change.key)) for change in changes)
    return sorted(told, key=lambda change: change.place)


def _read(files: Sequence[LandingFile], columns: Sequence[str]) -> pa.Table:
    """Return columns of the files' rows, always in the same order."""
    tables = []
    for file in files:
        with lake.open_parquet(lake.uri(file.path)) as parquet:
            tables.append(parquet.read(columns=list(dict.fromkeys(columns))))
    return pa.concat_tables(tables)


def _may_be_down(report: Listing, file: LandingFile) -> bool:
    """Return whether a row may report down; mostly none does, and the footer shows it."""
    return lake.constant_value(lake.read_footer(lake.uri(file.path)), report.up) is not True


def _first_and_changed(report: Listing, rows: pa.Table) -> pa.Table:
    """Return each thing's first row, and its rows whose state differs from the one before; with `_IS_FIRST`."""
    thing = np.zeros(rows.num_rows, dtype=np.int64)
    for name in report.key:
        codes = _codes(rows[name])
        thing = np.unique(thing * (codes.max(initial=0) + 1) + codes, return_inverse=True)[1]
    topic, partition, offset, element = _ranks(rows["kafka_topic"]), *(rows[name].to_numpy() for name in _PLACE[1:])
    order = np.lexsort((element, offset, partition, topic, thing))
    things, states = thing[order], rows[report.up].to_numpy()[order]
    is_first, is_changed = np.ones(len(order), dtype=bool), np.ones(len(order), dtype=bool)
    is_first[1:] = things[1:] != things[:-1]
    is_changed[1:] = states[1:] != states[:-1]
    kept = is_first | is_changed
    return rows.take(order[kept]).append_column(_IS_FIRST, pa.array(is_first[kept]))


def _codes(column: pa.ChunkedArray) -> Any:
    """Return a number for each value, the same for equal ones; a null is a value."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _ranks(names: pa.ChunkedArray) -> Any:
    """Return the position of each name among the sorted ones, as `Place` sorts them."""
    encoded = names.combine_chunks().dictionary_encode()
    return np.argsort(np.argsort(encoded.dictionary.to_pylist()))[encoded.indices.to_numpy()]


def _counted(rows: pa.Table) -> pa.Table:
    """Return the rows with times in microseconds since 1970, and dates in days: files reach further than Python."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            micros = rows.column(at).cast(pa.timestamp("us", field.type.tz), safe=False)
            rows = rows.set_column(at, field.name, micros.cast(pa.int64()))
        elif pa.types.is_date32(field.type):
            rows = rows.set_column(at, field.name, rows.column(at).cast(pa.int32()))
    return rows


def _change(report: Listing, row: dict[str, Any], kinds: Mapping[str, pa.DataType]) -> StateChange:
    shown = {name: _shown(row[name], kinds[name]) for name in report.columns}
    key = listings.key_of(row, report.key)
    place = Place(*(row[name] for name in _PLACE))
    # The ledger holds no later time than Python does.
    latest = datetime.max if row["kafka_timestamp"] > 0 else datetime.min
    at = _moment(microseconds=row["kafka_timestamp"]) or latest.replace(tzinfo=UTC)
    return StateChange(report.title, key, row[report.up], place, at, shown)


def _shown(value: Any, kind: pa.DataType) -> str | int:
    """Return a column's value as the ledger holds it; a time that Python cannot hold as its number, with the unit."""
    if value is not None and pa.types.is_timestamp(kind):
        moment = _moment(microseconds=value)
        return format_time(moment) if moment else f"{value // 1000} ms"
    if value is not None and pa.types.is_date32(kind):
        moment = _moment(days=value)
        return str(moment.date()) if moment else f"{value} days"
    return listings.plain(value)


def _moment(**since: int) -> datetime | None:
    try:
        return EPOCH + timedelta(**since)
    except OverflowError:
        return None
