"""How many snapshots a table keeps: as many as declared, because each commit reads and writes all their summaries.

An expired verdict's summary and tag are gone from the table, which notes that Tidemark did it; the ledger's verdict and
the interval's proof still state the same. Registered rows stay at the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    UpdatesAndRequirements,
    UpdateTableMetadata,
)

from include.iceberg.statement import is_own
from include.pipelines.spec import Pipeline

THROUGH = "tidemark.expired_through"
"""Property of a table: its snapshots of this build and of earlier ones may have been expired by Tidemark."""

EXPIRED = "tidemark.expired"
"""Property of a table: later builds whose snapshots Tidemark has expired, separated by commas."""

PREVIOUS_VERSIONS = "write.metadata.previous-versions-max"
"""Property of a table: how many former metadata files it keeps."""

AT_ONCE = 25
"""How many snapshots a commit expires at most: a table that has kept them all needs several commits."""

_FEWEST_VERSIONS = 20
"""Former metadata files of a table that keeps few snapshots."""

_OWN_TAG = re.compile(r"\d{4}-\d{2}-\d{2}T\d+-(\d+)")


def previous_versions(pipeline: Pipeline) -> str:
    """Return the value of `PREVIOUS_VERSIONS` by which a verdict's metadata lasts as long as its snapshot.

    Each snapshot is one commit. There is room for as many that add none: a rerun's tag on an existing one, properties.
    """
    return str(max(_FEWEST_VERSIONS, 2 * pipeline.retention.snapshots))


def build_of_tag(name: str) -> int | None:
    """Return the build that a verdict's tag names; None for the tags and branches of others."""
    match = _OWN_TAG.fullmatch(name)
    return int(match[1]) if match else None


def protected(table: Table) -> set[int]:
    """Return the snapshots that tags and branches of others name, and the head."""
    return {each.snapshot_id for name, each in table.refs().items() if build_of_tag(name) is None}


def surplus(table: Table, keep: int) -> list[Snapshot]:
    """Return the oldest snapshots beyond those to keep, as many as one commit expires.

    A snapshot that somebody else's tag or branch names stays, and so do later ones that removed files: they show which
    files it still needs.
    """
    known = table.snapshots()
    if len(known) <= keep:
        return []
    in_order = sorted(known, key=lambda each: each.sequence_number or 0)
    held, is_after = protected(table), False
    oldest: list[Snapshot] = []
    for each in in_order[: len(in_order) - keep]:
        is_after = is_after or each.snapshot_id in held
        if each.snapshot_id not in held and not (is_after and _has_removed_files(each)):
            oldest.append(each)
    return oldest[:AT_ONCE]


def _has_removed_files(snapshot: Snapshot) -> bool:
    return not is_own(snapshot) or snapshot.summary is None or bool(int(snapshot.summary["deleted-data-files"] or 0))


class Expire(UpdateTableMetadata["Expire"]):
    """Removes snapshots and their tags from a table's metadata, and notes it there; `through`: they are the oldest.

    Files stay; call `delete_lists` after the commit. All of it is one step that does not compute the new metadata:
    PyIceberg's own steps copy the metadata for each snapshot and tag.
    """

    def __init__(self, transaction: Transaction, known: TableMetadata, snapshots: Sequence[Snapshot], *, through: bool):
        """`known` is the table's whole metadata; the transaction may have less of it."""
        super().__init__(transaction)
        gone = {each.snapshot_id for each in snapshots}
        tags = (name for name, each in known.refs.items() if each.snapshot_id in gone)
        builds = {build for name in tags if (build := build_of_tag(name)) is not None}
        reached = max([expired_through(known.properties), *(builds if through else ())])
        later = sorted(each for each in {*expired_builds(known.properties), *builds} if each > reached)
        said = {THROUGH: str(reached), EXPIRED: ",".join(map(str, later))}
        told = {key: value for key, value in said.items() if value or key in known.properties}
        self._steps = (
            RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(gone)}),
            SetPropertiesUpdate(updates=told),
        )

    def _commit(self) -> UpdatesAndRequirements:
        return self._steps, ()


def delete_lists(table: Table, snapshots: Iterable[Snapshot]) -> None:
    """Delete the manifest lists of expired snapshots; somebody else may have deleted them."""
    for each in snapshots:
        with suppress(FileNotFoundError):
            table.io.delete(each.manifest_list)


def expired_through(properties: dict[str, str]) -> int:
    """Return the last build of those that may have been expired as the oldest; 0 without one."""
    return int(properties.get(THROUGH, 0))


def expired_builds(properties: dict[str, str]) -> set[int]:
    """Return the later builds whose snapshots were expired."""
    return {int(each) for each in properties.get(EXPIRED, "").split(",") if each}


def missing_verdicts(table: Table, told: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return, of intervals' labels and builds, those whose tags are gone although Tidemark has not expired them."""
    through, expired = expired_through(table.properties), expired_builds(table.properties)
    there = {build for name in table.refs() if (build := build_of_tag(name)) is not None}
    return {label: build for label, build in told if build > through and build not in expired | there}
