"""What pipelines and views that are no longer declared have left in the lake. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from include import lake
from include.ledger.completeness.tables import tables_with_rows
from include.ledger.streams.generations import pipelines_with_streams
from include.pipelines import declarations, has_stream
from include.pipelines.spec import Pipeline

_OF_TABLE = ("tables", "iceberg")
_OF_PIPELINE = ("checkpoints", "delta", "landing", "proofs", "quarantine", "received", "replaced", "reports")
"""Folders of the lake with a folder for each table or pipeline."""


@dataclass(frozen=True)
class LeftFolders:
    """Folders that a removed pipeline, or removed views of a declared one, have left in the lake."""

    pipeline: str
    is_declared: bool
    sizes: Mapping[str, int | None]
    """Bytes in each, by its name below the lake; None where nobody has counted them."""

    def __str__(self) -> str:
        """Return which they are, with the sizes that are known."""
        whose = f"views that {self.pipeline} had" if self.is_declared else self.pipeline
        folders = ", ".join(at if size is None else f"{at} ({size / 1e6:,.1f} MB)" for at, size in self.sizes.items())
        return f"{whose}: no longer declared, and still in the lake: {folders}"


def left_tables(pipeline: Pipeline) -> list[str]:
    """Return the tables of views that were removed from a pipeline's declaration.

    None while some declaration is refused, for it may name them. Without those that have an Iceberg table: it does not
    follow the intervals any more, so that even its last snapshot may need files of superseded revisions.
    """
    left = _undeclared(tables_with_rows().get(pipeline.name, []), pipeline)
    return [each for each in left if not lake.exists(lake.uri("iceberg", each))]


def left_folders(*, sizes: bool) -> Iterator[LeftFolders]:
    """Yield the folders of each pipeline which the lake has and no declaration names.

    `sizes` lists all files in them, years of them perhaps: in an object store that takes minutes.
    None while some declaration is refused, for it may name them. Raises ServiceUnreachable.
    """
    if declarations().refused:
        return
    tables = tables_with_rows()
    for name in sorted({*tables, *pipelines_with_streams()}):
        parts = [(kind, each) for each in _undeclared(tables.get(name, [])) for kind in _OF_TABLE]
        parts += [] if has_stream(name) else [(kind, name) for kind in _OF_PIPELINE]
        left = [(kind, each) for kind, each in parts if lake.exists(lake.uri(kind, each))]
        if left:
            counted = {f"{kind}/{each}": _bytes(kind, each) if sizes else None for kind, each in left}
            yield LeftFolders(name, has_stream(name), counted)


def _undeclared(tables: list[str], *others: Pipeline) -> list[str]:
    declared = {table for each in (*others, *declarations().loaded) for table in each.tables}
    return [] if declarations().refused else [each for each in tables if each not in declared]


def _bytes(kind: str, name: str) -> int:
    return sum(each.bytes for each in lake.list_entries(lake.uri(kind, name)) if not each.is_folder)
