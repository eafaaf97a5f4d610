"""Disagreements of ledger, catalog and files: the kinds, and what repairs each.

The ledger states what is committed and registered; the catalog and the lake must agree. `include/doctor/tables.py` and
`include/doctor/landing.py` find disagreements, `include/doctor/repair.py` repairs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from include.catalog.changes import CatalogRepair
from include.lake.revision_files import Damage
from include.times import Interval

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
        "landing file damaged",
        "landing unknown to the ledger",
        "Iceberg table differs",
        "Delta table lacks rows",
        "registration not finished",
        "completeness told otherwise",
        "PostgreSQL serves otherwise",
    ]
)

Repair = (
    CatalogRepair
    | Literal[
        "",
        "move aside",
        "move landing aside",
        "read from revisions",
        "put back",
        "commit to Iceberg",
        "tell completeness",
        "serve what is registered",
    ]
)
"""What `--repair` does about a disagreement; empty when it can do nothing."""

REPAIR = "./tidemark doctor --repair"

MOVES_ASIDE = f"{REPAIR} moves it aside, ./tidemark housekeeping deletes it"
"""What to do about a leftover."""


@dataclass(frozen=True)
class Disagreement:
    """One fact on which two of ledger, catalog and files disagree."""

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
    interval: Interval | None = None
    """The interval that it is about, if any."""


MEANINGS: Mapping[Kind, str] = {
    "file missing": "readers of the table fail, or miss these rows",
    "wrong size": "readers of the table fail, or read other rows than were validated",
    "changed content": "readers of the table read other rows than were validated",
    "extra file": "readers of the table may count rows twice: nobody has validated this file",
    "revision not in the catalog": "readers of the catalog do not see rows that are validated and registered",
    "catalog points elsewhere": "readers of the catalog see other rows than the registered ones",
    "partition unknown to the ledger": "readers of the catalog see rows that nobody has validated",
    "catalog lags the declaration": "readers of the catalog do not see columns that newer files have",
    "columns that files do not fit": "the next interval is refused before anything is built",
    "revision unknown to the ledger": "nobody reads it; a killed job left it behind, and it takes room",
    "file outside of a revision": "nobody reads it; it takes room",
    "interval without revisions": "the interval counts as registered, and its rows are in no table",
    "landing file missing": "intervals that need its rows stop, or decode them again from Kafka",
    "landing file of wrong size": "intervals that need its rows stop, or decode them again from Kafka",
    "landing file damaged": "intervals that need its rows stop, or decode them again from Kafka",
    "landing unknown to the ledger": "nobody reads it; a killed driver left it behind, and it takes room",
    "Iceberg table differs": "readers of the Iceberg table see other rows than the registered ones, or none",
    "Delta table lacks rows": "readers of the Delta view do not see rows that are validated and registered",
    "registration not finished": "readers of the tables see what was registered of the interval before, or nothing",
    "completeness told otherwise": "jobs that go by the table's property wait too long, or read before all is there",
    "PostgreSQL serves otherwise": "readers of live.* see other proved values than the registered ones, or miss rows",
}
"""What each kind means to those who read the tables."""
