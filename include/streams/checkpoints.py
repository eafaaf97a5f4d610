"""Checkpoints of a generation's queries: where they lie in the lake, and whether they were begun."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from include import lake
from include.intervals.references import CONTENT, Contents
from include.lake.checkpoints import checkpoint_of
from include.ledger import reference_versions
from include.ledger.streams import generations
from include.ledger.streams.generations import StreamGeneration


def checkpoint_uri(generation: StreamGeneration, query: str) -> str:
    """Return the URI of a query's checkpoint."""
    return checkpoint_of(generation.pipeline, generation.number, query)


def has_started(generation: StreamGeneration, query: str) -> bool:
    """Return whether the query's checkpoint knows where the query began: Spark continues from it."""
    return lake.exists(f"{checkpoint_uri(generation, query)}/sources/0/0")


def facts_of_begun(generation: StreamGeneration) -> Mapping[str, Any]:
    """Return what was noted of the queries that have a checkpoint or a base that counts, by query.

    They are noted before either is made: code that fails until then may be corrected without a new generation. Some
    targets may have a base then that does not count; it is made again for all of them.
    """
    return {
        query: facts
        for query, facts in generation.fingerprints.items()
        if has_started(generation, query) or generations.has_written(generation, query)
    }


def contents_of_generation(pipeline: str) -> Contents:
    """Return, for references with a source, the SHA-256 of what the current generation's views began with.

    As their code, the content may be corrected until a view has a checkpoint, of Kafka or of lines, or a base.
    """
    generation = generations.current(pipeline)
    if generation is None:
        return {}
    begun = [facts for query, facts in generation.fingerprints.items() if _is_made(generation, query)]
    noted = {name: digest for facts in begun for name, digest in facts.items() if name.startswith(CONTENT)}
    return {
        each.name: each.sha256
        for each in reference_versions.versions(pipeline)
        if (digest := noted.get(f"{CONTENT}{each.name}")) and each.sha256.startswith(digest)
    }


def _is_made(generation: StreamGeneration, query: str) -> bool:
    has_checkpoint = lake.exists(f"{checkpoint_uri(generation, query)}/metadata")
    return has_checkpoint or generations.has_written(generation, query)
