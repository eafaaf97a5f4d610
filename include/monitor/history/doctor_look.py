"""What a page shows of the doctor's last look at a pipeline's ledger, catalog and files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime


@dataclass(frozen=True)
class Found:
    """A disagreement of ledger, catalog and files."""

    kind: str
    what: str
    meaning: str
    remedy: str
    is_repairable: bool
    """Whether `./tidemark doctor --repair`, or the DAG `decide`, repairs it."""
    interval: str = ""
    """Label of the interval that it is about; empty when it is about none."""


@dataclass(frozen=True)
class Look:
    """The last look."""

    found: tuple[Found, ...] = ()
    is_cut: bool = False
    """Whether more was found than is kept."""
    looked_at: datetime | None = None
    """None before the first look."""
    error: str = ""
    """Why the doctor could not look now."""

    def about(self, interval: str) -> Look:
        """Return the part that is about one interval; where more was found than is kept, it may not be all."""
        return replace(self, found=tuple(each for each in self.found if each.interval == interval))
