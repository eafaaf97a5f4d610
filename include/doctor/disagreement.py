"""Where ledger, catalog and files disagree: the kinds, each with one line and what to do about it.

The ledger says what is committed and registered; the catalog and the lake have to agree. They are found by
`include/doctor/tables.py` and `include/doctor/landing.py`; `include/doctor/repair.py` does what can be done.
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
        "revision unknown to the ledger",
        "file outside of a revision",
        "interval without revisions",
        "landing file missing",
        "landing file of wrong size",
        "landing unknown to the ledger",
    ]
)

Mend = Literal["", "move aside", "point the catalog", "drop from the catalog", "read from revisions"]
"""How `--repair` mends a disagreement; empty: it cannot."""

REPAIR = "./tidemark doctor --repair"


@dataclass(frozen=True)
class Disagreement:
    """One thing that two of ledger, catalog and files say differently."""

    kind: Kind
    pipeline: str
    what: str
    remedy: str
    mend: Mend = ""
    table: str = ""
    partition: str = ""
    location: str = ""
    """What is to be moved, or where the ledger's revision lies."""
    micro_batch: int = 0
