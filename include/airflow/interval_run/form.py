"""The form of an interval's run: which interval, from which source, pinned again or not, or only a dry run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow.sdk import Param

from include.ledger.intervals.states import Source

_WHICH, _HOW = "Which interval", "How"


def interval_form() -> dict[str, Param]:
    """Return the parameters of a run, in the order in which the form shows them."""
    return {
        "from": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="From",
            section=_WHICH,
            description="Start of the interval. Empty: the run's own, or the last complete one.",
        ),
        "to": Param(
            None,
            type=["null", "string"],
            format="date-time",
            title="To",
            section=_WHICH,
            description="End of that interval; given with its start, or not at all.",
        ),
        "source": Param(
            Source.KAFKA.value,
            type="string",
            enum=[each.value for each in Source],
            title="Source",
            section=_HOW,
            description="Where the pinned ranges are read from: Kafka, or the archive when Kafka holds them no longer.",
        ),
        "repin": Param(
            False,
            type="boolean",
            title="Pin again",
            section=_HOW,
            description="Resolve the ranges again, of the last pinned interval only; they never become shorter.",
        ),
        "new_references": Param(
            False,
            type="boolean",
            title="New references",
            section=_HOW,
            description="Build a registered interval with what the references hold now, not with its former content.",
        ),
        "dry_run": Param(
            False,
            type="boolean",
            title="Dry run",
            section=_HOW,
            description="Only report, in the log of pin_ranges, what would be read and replaced; change nothing.",
        ),
        "build_missing": Param(
            None,
            type=["null", "integer"],
            minimum=0,
            title="Build missing intervals",
            section="Missing intervals",
            description="How many intervals that were never built are built too, the oldest first; some 20 at a time.",
        ),
    }


@dataclass(frozen=True)
class Wishes:
    """How a run is to be done."""

    source: Source = Source.KAFKA
    repin: bool = False
    dry_run: bool = False
    new_references: bool = False

    @classmethod
    def of_run(cls, params: Any) -> Wishes:
        """Return the form's wishes; parameters that an older run does not have get their defaults."""
        source = Source(params.get("source") or Source.KAFKA)
        repin, dry_run, new_references = (bool(params.get(name)) for name in ("repin", "dry_run", "new_references"))
        return cls(source, repin, dry_run, new_references)
