"""The marker of an output in the database that it writes: its last driver, and up to where its rows are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from include.ledger.archive.row_outputs import Unsent
from include.ledger.outputs.targets import Reached

MARKERS = "tidemark_outputs"

_MAKE = f"""
    CREATE TABLE IF NOT EXISTS {MARKERS} (output varchar(200) PRIMARY KEY, token bigint NOT NULL,
        micro_batch bigint NOT NULL, replay bigint NOT NULL, written_at timestamp DEFAULT CURRENT_TIMESTAMP)
"""


@dataclass(frozen=True)
class Marker:
    """What the row of an output says; without one, that nothing was written."""

    token: int
    """Fencing token of the last driver that wrote."""
    reached: Reached


UNWRITTEN = Marker(0, Reached())


def make(asked: Any) -> None:
    """Create the table of markers if it is missing."""
    asked.execute(_MAKE)


def read(asked: Any, output: str, *, to_move: bool = False) -> Marker | None:
    """Return the output's marker, locked if it is to be moved; None without one."""
    lock = " FOR UPDATE" if to_move else ""
    asked.execute(f"SELECT token, micro_batch, replay FROM {MARKERS} WHERE output = %s{lock}", [output])
    row = asked.fetchone()
    return Marker(row[0], Reached(row[1], row[2])) if row else None


def write(asked: Any, output: str, token: int) -> None:
    """Write the marker of an output that has none."""
    asked.execute(
        f"INSERT INTO {MARKERS} (output, token, micro_batch, replay) VALUES (%s, %s, 0, -1)",
        [output, token],
    )


def move(asked: Any, output: str, token: int, unsent: Unsent) -> None:
    """Move the marker to what is written now."""
    at = "replay" if unsent.is_replay else "micro_batch"
    asked.execute(
        f"UPDATE {MARKERS} SET token = %s, {at} = %s, written_at = CURRENT_TIMESTAMP WHERE output = %s",
        [token, unsent.number, output],
    )


def reset(asked: Any, outputs: Iterable[str]) -> None:
    """Move the markers of these outputs to the beginning: their table is made anew."""
    for output in outputs:
        asked.execute(f"UPDATE {MARKERS} SET micro_batch = 0, replay = -1 WHERE output = %s", [output])
