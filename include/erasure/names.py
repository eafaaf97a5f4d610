"""Erased keys that name table partitions: folders, the catalog, proofs and the ledger repeat them.

The ledger's revisions have these names until the erasure's last step, and the erasure keeps a salted hash of each key.
So a resumed run finds them again without the keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from include.erasure.keys import FORGOTTEN, Keys, hashes_of
from include.ledger.erasures import named_partitions, unfinished
from include.ledger.erasures.unfinished import Begun
from include.pipelines.spec import Pipeline


class Names:
    """Parts of table partitions that name an erased key, e.g. `zip=10001`."""

    def __init__(self, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        listed = "|".join(re.escape(each) for each in sorted(self.parts))
        self._pattern = re.compile(rf"(?<![A-Za-z0-9_])(?:{listed})(?![A-Za-z0-9._+-])") if listed else None
        self._keys = Keys([part.partition("=")[2] for part in sorted(self.parts)])

    def __bool__(self) -> bool:
        return bool(self.parts)

    def named_in(self, value: str) -> bool:
        """Return whether a text names one of the partitions."""
        return self._pattern is not None and self._pattern.search(value) is not None

    def text(self, value: str) -> str:
        """Return a text in which a note replaces the value of each such part; the column's name stays."""
        if self._pattern is None:
            return value
        return self._pattern.sub(lambda found: f"{found[0].partition('=')[0]}={FORGOTTEN}", value)

    def without(self, value: Any) -> Any:
        """Return a JSON value whose texts name none of the partitions."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.without(each) for each in value]
        if isinstance(value, dict):
            return {self.text(name): self.without(each) for name, each in value.items()}
        return value

    def without_keys(self, value: Any) -> Any:
        """Return a JSON value that neither names the partitions nor holds their keys in a text."""
        return self._keys.without(self.without(value)) if self.parts else value


NONE = Names(())


def columns_now(pipeline: Pipeline, columns: Iterable[str]) -> set[str]:
    """Return erased columns, which are paths inside archive rows, by the names that they are declared with now."""
    now = {before: name for name, olds in pipeline.archive.formerly.items() for before in olds}
    paths = (each.partition(".") for each in columns)
    return {"".join((now.get(name, name), *inner)) for name, *inner in paths}


def columns_of(pipeline: Pipeline, columns: Iterable[str]) -> list[str]:
    """Return the partition columns of the archive table whose values come from one of the erased columns."""
    asked = columns_now(pipeline, columns)
    return [name for name, source in pipeline.archive.partition_by.items() if source in asked]


def names_of(pipeline: Pipeline, erasure: Begun) -> Names:
    """Return the names that partitions built before an erasure have from its keys; none once they were removed."""
    return Names(_parts_of_keys(pipeline, erasure, columns_of(pipeline, erasure.columns)))


def namesakes_of(pipeline: Pipeline, erasure: Begun) -> set[str]:
    """Return the partition columns by which partitions built before an erasure have its keys, as values of others.

    These are declared to come from a column that was not erased. They may be what another column has in common with the
    key, or what was built while the declaration named an erased one.
    """
    others = [*pipeline.archive.partition_by.keys() - set(columns_of(pipeline, erasure.columns))]
    return {each.partition("=")[0] for each in _parts_of_keys(pipeline, erasure, others)}


def _parts_of_keys(pipeline: Pipeline, erasure: Begun, columns: Sequence[str]) -> Iterator[str]:
    """Yield the parts, by the partition columns, of partitions built before an erasure that have one of its keys."""
    parts = named_partitions.parts_before(pipeline.table, columns, erasure.last_build) if columns else ()
    hashes = frozenset(erasure.key_hashes)
    for each in parts:
        if not hashes.isdisjoint(hashes_of([each.partition("=")[2]], erasure.salt)):
            yield each


def names_being_erased(pipeline: Pipeline) -> Names:
    """Return the names of the pipeline's unfinished erasure; none without one."""
    if not pipeline.archive.partition_by or (begun := unfinished.unfinished(pipeline.name)) is None:
        return NONE
    return names_of(pipeline, begun)
