"""Disagreements of ledger, catalog and files: the kinds, and what repairs each.

The ledger says what is committed and registered; the catalog and the lake have to agree. `include/doctor/tables.py` and
`include/doctor/landing.py` find disagreements, `include/doctor/repair.py` repairs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from include.lake.revision_files import Damage

Kind = (
    Damage
    | Literal[
        "revision not in the catalog",
        "catalog points elsewhere",
        "partition unknown to the ledger",
        "catalog lags the declaration",
        "columns that files do not fit",
        "revision unknown to the ledger",
        "file outside of a revision",
        "interval without revisions",
        "landing file missing",
        "landing file of wrong size",
        "landing unknown to the ledger",
    ]
)

Repair = Literal[
    "",
    "move aside",
    "move landing aside",
    "point the catalog",
    "drop from the catalog",
    "follow the declaration",
    "read from revisions",
]
"""What `--repair` does about a disagreement; empty: nothing can be done here."""

REPAIR = "./tidemark doctor --repair"


@dataclass(frozen=True)
class Disagreement:
    """One fact that two of ledger, catalog and files tell differently."""

    kind: Kind
    pipeline: str
    what: str
    remedy: str
    repair: Repair = ""
    table: str = ""
    partition: str = ""
    location: str = ""
    """What is to be moved, or where the ledger's revision lies."""
    micro_batch: int = 0
