"""Checkpoints of a generation's queries: where they lie in the lake, and whether they were begun."""

from __future__ import annotations

from include import lake
from include.lake.checkpoints import checkpoint_of
from include.ledger.streams.generations import StreamGeneration


def checkpoint_uri(generation: StreamGeneration, query: str) -> str:
    """Return the URI of a query's checkpoint."""
    return checkpoint_of(generation.pipeline, generation.number, query)


def has_started(generation: StreamGeneration, query: str) -> bool:
    """Return whether the query's checkpoint knows where the query began: Spark continues from it."""
    return lake.exists(f"{checkpoint_uri(generation, query)}/sources/0/0")
