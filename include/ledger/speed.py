"""What the ledger knows of a speed view's micro-batches: how far, and with which watermark."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from include.offsets import OffsetRange


@dataclass(frozen=True)
class LateBound:
    """In this range the speed view dropped rows whose window ended at or before the watermark."""

    range: OffsetRange
    watermark: datetime
