"""What reconciliation finds: every difference with its class, its place and its evidence."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice, zip_longest
from typing import Any

EXAMPLES = 20
"""How many differences of each class are listed, shared among the comparisons."""


class DifferenceClass(StrEnum):
    """Why two sides differ."""

    PENDING = "pending"
    LATE = "late"
    QUARANTINED = "quarantined"
    GAP = "gap"
    COMPACTED_SINCE = "compacted_since"
    CODE = "code"
    ERASED = "erased"
    UNEXPLAINED = "unexplained"


MATCHED = "matched"
"""Name of the count of what both sides agree on."""

ARCHIVE_AGAINST_KAFKA = "archive against Kafka"
ARCHIVE_AGAINST_LEDGER = "archive against the ledger"
KAFKA_AGAINST_LEDGER = "Kafka against the ledger"
KAFKA_AGAINST_OFFSETS = "Kafka against its offsets"
KAFKA_READ_TWICE = "Kafka, read twice"
WRITTEN_AGAINST_ROWS = "written files against reconciled rows"

_AGAINST_ARCHIVE = " against the archive"

_OF_ROWS = (
    ARCHIVE_AGAINST_KAFKA,
    ARCHIVE_AGAINST_LEDGER,
    KAFKA_AGAINST_LEDGER,
    KAFKA_AGAINST_OFFSETS,
    KAFKA_READ_TWICE,
    WRITTEN_AGAINST_ROWS,
)
"""How comparisons begin in which no stream takes part but by what it landed."""


def against_archive(view: str) -> str:
    """Return what is compared where a batch view is compared with the archive's rows."""
    return f"{view}{_AGAINST_ARCHIVE}"


@dataclass(frozen=True)
class Difference:
    """One difference between two sides that should agree."""

    cls: DifferenceClass
    what: str
    """Which sides, e.g. `archive against Kafka`."""
    where: str
    """Coordinates, or the key of a view."""
    evidence: str

    @property
    def is_of_rows(self) -> bool:
        """Whether tables and offsets differ, not what a stream keeps live: speed views, flags, outages."""
        return self.what.startswith(_OF_ROWS) or self.what.endswith(_AGAINST_ARCHIVE)

    def as_json(self) -> dict[str, str]:
        """Return its form in the verdict."""
        return {"class": self.cls.value, "what": self.what, "where": self.where, "evidence": self.evidence}

    @classmethod
    def of_json(cls, kept: Mapping[str, Any]) -> Difference:
        """Return the difference that `as_json` gave."""
        return cls(DifferenceClass(kept["class"]), kept["what"], kept["where"], kept["evidence"])


@dataclass(frozen=True)
class ReconciliationCounts:
    """The counts under `reconciliation` in the verdict."""

    matched: int = 0
    pending: int = 0
    late: int = 0
    """Late rows, each once per window and view that it is late for."""
    unexplained: int = 0


@dataclass(frozen=True)
class Reconciliation:
    """Counts per class, and the first examples of each. Those of several comparisons add up."""

    counts: ReconciliationCounts = ReconciliationCounts()
    differences: tuple[Difference, ...] = ()
    explained: Mapping[str, int] = field(default_factory=dict)
    """How much is of each class that `counts` does not count: offsets, records, rows, flags or keys of views."""

    @classmethod
    def of(cls, differences: Iterable[Difference], counts: Mapping[str, int] | None = None) -> Reconciliation:
        """Return the differences with their counts per class, or `matched`; without counts, each counts once."""
        named = tuple(differences)
        counted = Counter(each.cls.value for each in named) if counts is None else counts
        known = {name: counted.get(name, 0) for name in ("matched", "pending", "late", "unexplained")}
        explained = {each.value: counted[each] for each in DifferenceClass if each not in known and counted.get(each)}
        return cls(ReconciliationCounts(**known), _first_of_each(named), explained)

    def __add__(self, other: Reconciliation) -> Reconciliation:
        mine, theirs = self.counts, other.counts
        return Reconciliation(
            ReconciliationCounts(
                mine.matched + theirs.matched,
                mine.pending + theirs.pending,
                mine.late + theirs.late,
                mine.unexplained + theirs.unexplained,
            ),
            _first_of_each((*self.differences, *other.differences)),
            dict(Counter(self.explained) + Counter(other.explained)),
        )

    @property
    def unexplained(self) -> int:
        """Differences that nothing explains."""
        return self.counts.unexplained

    def examples(self) -> tuple[Difference, ...]:
        """Return the differences, unexplained ones first."""
        return tuple(sorted(self.differences, key=lambda each: each.cls is not DifferenceClass.UNEXPLAINED))


def _first_of_each(differences: tuple[Difference, ...]) -> tuple[Difference, ...]:
    """Return the first differences of each class, in order, taken from the comparisons in turn."""
    places: dict[DifferenceClass, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, each in enumerate(differences):
        places[each.cls][each.what].append(place)
    kept = {place for compared in places.values() for place in islice(_in_turn(compared.values()), EXAMPLES)}
    return tuple(each for place, each in enumerate(differences) if place in kept)


def _in_turn(every: Iterable[Sequence[int]]) -> Iterator[int]:
    for together in zip_longest(*every):
        yield from (place for place in together if place is not None)
