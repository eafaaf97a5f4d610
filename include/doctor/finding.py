"""What the examination tells of each thing that it looked at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and whether it is as it should be."""

    ok: bool
    what: str
    remedy: str = ""
    kind: str = ""
    """The kind of a disagreement between ledger, catalog and files (`include/doctor/disagreement.py`)."""
    notice: bool = False
    """Whether the operator should know it although nothing is wrong."""
