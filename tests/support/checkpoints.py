"""Checkpoints as Spark begins them, without Spark."""

from __future__ import annotations

from include import lake
from include.ledger.streams.generations import StreamGeneration
from include.streams.checkpoints import checkpoint_uri


def begin_checkpoint(generation: StreamGeneration, query: str) -> None:
    """Write where the query began: from then on, its checkpoint is continued."""
    lake.write_text(f"{checkpoint_uri(generation, query)}/sources/0/0", "v1\n{}")
