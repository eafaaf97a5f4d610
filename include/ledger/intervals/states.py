"""The states of intervals and revisions, and which of them may follow which."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum

from include.errors import TidemarkError

QUIET = timedelta(hours=1)
"""How long an attempt may be without a process after one of its jobs began, until it counts as lost."""


class Source(StrEnum):
    """Where an interval's ranges are read from."""

    KAFKA = "kafka"
    ARCHIVE = "archive"


class IntervalState(StrEnum):
    """What became of an interval."""

    PINNED = "pinned"
    REGISTERED = "registered"
    FAILED = "failed"


class RevisionState(StrEnum):
    """What became of a revision."""

    BUILT = "built"
    VALIDATED = "validated"
    REGISTERING = "registering"
    REGISTERED = "registered"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    DISCARDED = "discarded"
    REMOVED = "removed"


RETIRED = frozenset({RevisionState.SUPERSEDED, RevisionState.REJECTED, RevisionState.DISCARDED})
"""States in which a revision only waits for housekeeping."""

PUBLISHABLE = frozenset({RevisionState.BUILT, RevisionState.VALIDATED, RevisionState.REJECTED})
"""States from which a revision can be validated; a rejected one may pass another suite."""

_GIVEN_UP = frozenset({RevisionState.REJECTED, RevisionState.DISCARDED, RevisionState.REMOVED})

_FOLLOWING: Mapping[RevisionState, frozenset[RevisionState]] = {
    RevisionState.BUILT: _GIVEN_UP | {RevisionState.VALIDATED},
    RevisionState.VALIDATED: _GIVEN_UP | {RevisionState.REGISTERING, RevisionState.SUPERSEDED},
    # The latter for a table that is no longer declared: the catalog was not changed.
    RevisionState.REGISTERING: frozenset({RevisionState.REGISTERED, RevisionState.SUPERSEDED}),
    # By a registration only: no failure and no rejection reaches what readers see.
    RevisionState.REGISTERED: frozenset({RevisionState.SUPERSEDED}),
    RevisionState.SUPERSEDED: frozenset({RevisionState.REMOVED}),
    RevisionState.REJECTED: frozenset({RevisionState.VALIDATED, RevisionState.DISCARDED, RevisionState.REMOVED}),
    RevisionState.DISCARDED: frozenset({RevisionState.REMOVED}),
    RevisionState.REMOVED: frozenset(),
}


def check_transition(what: str, before: str, after: RevisionState) -> None:
    """Raise TidemarkError when a revision may not pass from one state to the other."""
    if before != after and after not in _FOLLOWING[RevisionState(before)]:
        raise TidemarkError(
            f"{what} is {before} and cannot become {after}; nothing was changed", remedy="run the interval again"
        )
