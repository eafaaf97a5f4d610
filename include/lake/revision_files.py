"""Compare the files of a revision with those that the ledger noted when it was built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from include import lake

Damage = Literal["file missing", "wrong size", "extra file", "changed content"]


@dataclass(frozen=True)
class DamagedFile:
    """A file of a revision that differs from the one that was built."""

    damage: Damage
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.damage}: {self.name}" + (f" ({self.detail})" if self.detail else "")


def damaged_files(
    location: str, noted: Mapping[str, Any], *, deep: bool, on_disk: Mapping[str, int] | None = None
) -> Iterator[DamagedFile]:
    """Yield the differences between a directory and the ledger's note; `deep` also compares each file's SHA-256.

    `on_disk`, bytes by file name, replaces a listing of the directory.
    """
    if on_disk is None:
        on_disk = {file.name: file.bytes for file in lake.list_files(location)}
    for name in sorted(on_disk.keys() - noted.keys()):
        yield DamagedFile("extra file", name, f"{on_disk[name]} bytes")
    for name, facts in sorted(noted.items()):
        if name not in on_disk:
            yield DamagedFile("file missing", name)
        elif on_disk[name] != facts["bytes"]:
            yield DamagedFile("wrong size", name, f"{on_disk[name]} bytes, {facts['bytes']} when built")
        elif deep and "sha256" in facts and not lake.has_sha256(f"{location}/{name}", facts["sha256"]):
            yield DamagedFile("changed content", name, "its sha256 differs from the one noted when it was built")


class RevisionDirectory(Protocol):
    """The directory of a revision, and the files noted when it was built."""

    @property
    def table(self) -> str:
        """Name of the table."""

    @property
    def partition(self) -> str:
        """Path of the table partition."""

    @property
    def location(self) -> str:
        """URI of the directory."""

    @property
    def files(self) -> Mapping[str, Any]:
        """Files as noted when they were built, by name."""


def damage_of(revisions: Sequence[RevisionDirectory], *, records: int | None) -> str:
    """Return the first damage of revisions that should hold `records` records; empty when their files are as built.

    `records` is None when nobody has counted them: then nothing shows that the revisions hold them all.
    """
    if records is None:
        return "no published run of it has counted its records"
    if records and not revisions:
        return "its records have rows, but no revision of the archive table is registered"
    held = _records_in(revisions)
    if held is not None and held != records:
        return f"its registered revisions hold {held} records, {records} have rows"
    for revision in revisions:
        for damaged in damaged_files(revision.location, revision.files, deep=True):
            return described(revision, damaged)
    return ""


def _records_in(revisions: Sequence[RevisionDirectory]) -> int | None:
    """Return how many records the revisions' rows come from, as counted by the build; None when it did not count."""
    files = [facts for revision in revisions for facts in revision.files.values()]
    return sum(facts["records"] for facts in files) if all("records" in facts for facts in files) else None


def described(revision: RevisionDirectory, damaged: DamagedFile) -> str:
    """Return one line that names a damaged file and its revision."""
    return f"{revision.table} {revision.partition}: {damaged} in {revision.location}"
