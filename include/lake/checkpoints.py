"""Checkpoints in the lake: a folder for each generation of a stream, in it one for each query, as Spark fills them."""

from __future__ import annotations

import json
import re

from include import lake
from include.errors import CheckpointDamaged

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
    """Return Spark's id of the query that the checkpoint belongs to; None when there is no checkpoint yet.

    Raises CheckpointDamaged when the file that holds it cannot be read.
    """
    file = f"{checkpoint}/metadata"
    if not lake.exists(file):
        return None
    try:
        return str(json.loads(lake.read_text(file))["id"])
    except (ValueError, KeyError, TypeError):
        raise damaged(file) from None


def newest_commit(checkpoint: str) -> int:
    """Return the last micro-batch that a checkpoint has as committed; -1 without one."""
    return _newest(f"{checkpoint}/commits")


def newest_plan(checkpoint: str) -> int:
    """Return the last micro-batch that a checkpoint has as planned, which comes before all else; -1 without one."""
    return _newest(f"{checkpoint}/offsets")


def _newest(folder: str) -> int:
    entries = lake.list_entries(folder, recursive=False)
    return max((int(entry.name) for entry in entries if entry.name.isdecimal()), default=-1)


def check_logs(checkpoint: str) -> None:
    """Raise CheckpointDamaged when a plan or commit cannot be read from which Spark takes up the query.

    Spark itself names no file, and fails on a truncated one as on a message that is no JSON.
    """
    planned, committed = newest_plan(checkpoint), newest_commit(checkpoint)
    for number in (planned - 1, planned):
        if number >= 0:
            _check_log(f"{checkpoint}/offsets/{number}", at_least=2)
    if committed >= 0:
        _check_log(f"{checkpoint}/commits/{committed}", at_least=1)


def _check_log(file: str, *, at_least: int) -> None:
    """Raise CheckpointDamaged unless a version is followed by so many lines of JSON, or more."""
    try:
        _, *lines = lake.read_text(file).rstrip("\n").split("\n")
        # For a source that has no offset yet, Spark writes a dash.
        parsed = [json.loads(line) for line in lines if line != "-"]
    except FileNotFoundError:
        raise damaged(file, "is missing") from None
    except ValueError:
        raise damaged(file) from None
    if len(lines) < at_least or not parsed:
        raise damaged(file)


def damaged(location: str, what: str = "cannot be read, it is damaged") -> CheckpointDamaged:
    """Return the error of a checkpoint whose file, or folder, at a location is lost or cannot be read."""
    below = lake.below_lake(location)
    folder, pipeline, *_ = (*below.split("/"), "")
    pipeline = pipeline if folder == "checkpoints" else ""
    return CheckpointDamaged(
        f"{below}, of a stream's checkpoint, {what}",
        remedy="put it back from a copy of the lake of the same moment, or begin without it: "
        f'./tidemark new-generation {pipeline or "PIPELINE"} --reason "…"',
        pipeline=pipeline,
    )
