"""What reconciliation finds: every difference with its class, its place and its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

DifferenceClass = Literal["pending", "late", "quarantined", "gap", "code", "unexplained"]

EXAMPLES = 20
"""How many differences of each class are named one by one."""


@dataclass(frozen=True)
class Difference:
    """One difference between two sides that should agree."""

    cls: DifferenceClass
    what: str
    """Which sides, e.g. `archive against Kafka`."""
    where: str
    """Coordinates, or the key of a view."""
    evidence: str

    def as_json(self) -> dict[str, str]:
        """Its form in the verdict."""
        found = asdict(self)
        return {"class": found.pop("cls"), **found}


@dataclass
class Reconciliation:
    """Counts per class, and the first examples."""

    matched: int = 0
    pending: int = 0
    late: int = 0
    unexplained: int = 0
    differences: list[Difference] = field(default_factory=list)

    def add(self, difference: Difference, count: int = 1) -> None:
        """Count a difference and keep it as an example while there are few of its class."""
        self.count(difference.cls, count)
        if sum(d.cls == difference.cls for d in self.differences) < EXAMPLES:
            self.differences.append(difference)

    def count(self, cls: str, count: int) -> None:
        """Count differences of a class, or keys that are `matched`, without an example."""
        if cls in ("matched", "pending", "late", "unexplained"):
            setattr(self, cls, getattr(self, cls) + count)

    def counts(self) -> dict[str, int]:
        """The contract's `reconciliation`."""
        return {
            "matched": self.matched,
            "pending": self.pending,
            "late": self.late,
            "unexplained": self.unexplained,
        }

    def examples(self) -> list[dict[str, Any]]:
        """The differences, unexplained ones first."""
        return [d.as_json() for d in sorted(self.differences, key=lambda d: d.cls != "unexplained")]
