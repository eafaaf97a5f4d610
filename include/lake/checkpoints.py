"""Checkpoints in the lake: a folder for each generation of a stream, in it one for each query, as Spark fills them."""

from __future__ import annotations

import json
import re

from include import lake

_GENERATION = re.compile(r"g(\d+)")


def checkpoint_of(pipeline: str, generation: int, query: str) -> str:
    """Return the URI of a query's checkpoint."""
    return lake.uri("checkpoints", pipeline, f"g{generation}", query)


def generation_folders(pipeline: str) -> dict[int, str]:
    """Return the folders with checkpoints of a pipeline's stream, by the number of their generation."""
    below = lake.uri("checkpoints", pipeline)
    named = [(_GENERATION.fullmatch(entry.name), entry.name) for entry in lake.list_entries(below, recursive=False)]
    return {int(match[1]): f"{below}/{name}" for match, name in named if match}


def checkpoint_id(checkpoint: str) -> str | None:
    """Return Spark's id of the query that the checkpoint belongs to; None when there is no checkpoint yet."""
    if not lake.exists(f"{checkpoint}/metadata"):
        return None
    return str(json.loads(lake.read_text(f"{checkpoint}/metadata"))["id"])


def newest_commit(checkpoint: str) -> int:
    """Return the last micro-batch that a checkpoint has as committed; -1 without one."""
    commits = lake.list_entries(f"{checkpoint}/commits", recursive=False)
    return max((int(entry.name) for entry in commits if entry.name.isdecimal()), default=-1)
