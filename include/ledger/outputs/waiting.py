"""Outputs of rows that cannot send now, in plain SQL (`include/ledger/connection.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from include.ledger.connection import reading
from include.times import format_time

_WAITING = """
    SELECT pipeline, output, waits_for, waits_since FROM row_outputs WHERE waits_for <> '' ORDER BY pipeline, output
"""


@dataclass(frozen=True)
class WaitingOutput:
    """An output that cannot send."""

    pipeline: str
    output: str
    waits_for: str
    since: datetime

    def __str__(self) -> str:
        return (
            f"{self.pipeline}: the output {self.output} has sent nothing since {format_time(self.since)}: "
            f"{self.waits_for}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the form that `--json` prints."""
        return {
            "pipeline": self.pipeline,
            "output": self.output,
            "waits_for": self.waits_for,
            "since": format_time(self.since),
        }


def waiting_outputs() -> list[WaitingOutput]:
    """Return the outputs that cannot send, by what their drivers noted last. Raises ServiceUnreachable."""
    with reading() as ledger:
        ledger.execute(_WAITING)
        return [WaitingOutput(*row) for row in ledger.fetchall()]
