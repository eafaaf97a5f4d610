"""Erasures that were begun and have not ended, in plain SQL (`include/ledger/connection.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from include.ledger.connection import reading
from include.pipelines import pipeline_names
from include.times import format_time


@dataclass(frozen=True)
class OpenErasure:
    """An erasure that has not ended: it is under way, or was interrupted."""

    pipeline: str
    id: int
    begun_at: datetime
    by: str

    @property
    def remedy(self) -> str:
        """The command that finishes it; it takes declared pipelines only."""
        again = "" if self.pipeline in pipeline_names() else f"declare {self.pipeline} again, then "
        return f"{again}./tidemark erase {self.pipeline} --resume"

    def __str__(self) -> str:
        return (
            f"{self.pipeline}: erasure {self.id}, begun at {format_time(self.begun_at)} by {self.by}, has not ended: "
            "files still hold what it is to erase"
        )

    def as_json(self) -> dict[str, object]:
        """Return it with the keys that `./tidemark status --json` has."""
        return {
            "pipeline": self.pipeline,
            "erasure": self.id,
            "begun_at": format_time(self.begun_at),
            "by": self.by,
        }


def open_erasures() -> list[OpenErasure]:
    """Return the erasures of all pipelines that have not ended, oldest first."""
    with reading() as ledger:
        ledger.execute("SELECT pipeline, id, begun_at, begun_by FROM erasures WHERE ended_at IS NULL ORDER BY id")
        return [OpenErasure(*row) for row in ledger.fetchall()]
