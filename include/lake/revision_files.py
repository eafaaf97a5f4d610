"""The files of a revision against what the ledger noted when they were built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from include import lake

Damage = Literal["file missing", "wrong size", "extra file", "changed content"]


@dataclass(frozen=True)
class DamagedFile:
    """A file of a revision that is not as it was built."""

    damage: Damage
    name: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.damage}: {self.name}" + (f" ({self.detail})" if self.detail else "")


def damaged_files(
    location: str, noted: Mapping[str, Any], *, deep: bool, found: Mapping[str, int] | None = None
) -> Iterator[DamagedFile]:
    """What differs between the directory and the ledger's note; `deep` reads each file and compares its sha256.

    `found` spares the listing: bytes by file name.
    """
    if found is None:
        found = {file.name: file.bytes for file in lake.list_files(location)}
    for name in sorted(found.keys() - noted.keys()):
        yield DamagedFile("extra file", name, f"{found[name]} bytes")
    for name, described in sorted(noted.items()):
        if name not in found:
            yield DamagedFile("file missing", name)
        elif found[name] != described["bytes"]:
            yield DamagedFile("wrong size", name, f"{found[name]} bytes, {described['bytes']} when built")
        elif deep and "sha256" in described and lake.sha256(f"{location}/{name}") != described["sha256"]:
            yield DamagedFile("changed content", name, "its sha256 is another than when it was built")
