"""Gaps of followed event streams: time whose events a service no longer had. They are noted and never forgotten.

They are read in plain SQL (`include/ledger/connection.py`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from include.ledger.connection import reading
from include.times import describe_duration, format_time


@dataclass(frozen=True)
class RefusedAt:
    """A position that a service refused."""

    pipeline: str
    stream: str
    """URL without secrets and query."""
    position: str
    """The stream and the last event id, or `since`; only its hash is kept."""
    from_at: datetime
    """Time of the last event that was followed."""
    answer: str

    @property
    def digest(self) -> str:
        """Hash by which the gap is found again."""
        return hashlib.sha256(self.position.encode("utf-8", "replace")).hexdigest()


@dataclass(frozen=True)
class EventGap:
    """Time of an event stream that is missing."""

    pipeline: str
    stream: str
    answer: str
    from_at: datetime
    until_at: datetime | None
    """Time of the first event after it; None until somebody lets the follower go on."""
    found_at: datetime
    accepted_at: datetime | None
    accepted_by: str

    @property
    def length(self) -> timedelta:
        """How much time is missing, up to now while the gap is open."""
        return max((self.until_at or datetime.now(UTC)) - self.from_at, timedelta(0))

    def __str__(self) -> str:
        begin, length = format_time(self.from_at), describe_duration(self.length)
        if self.until_at is None:
            return (
                f"{self.pipeline}: {self.stream} no longer has the events after {begin}: {length} are missing so far; "
                "nothing is followed from there until somebody says where to go on"
            )
        return (
            f"{self.pipeline}: events of {self.stream} from {begin} to {format_time(self.until_at)} are missing "
            f"({length}), accepted by {self.accepted_by}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the gap with the keys that `./tidemark status --json` has."""
        return {
            "pipeline": self.pipeline,
            "stream": self.stream,
            "from": format_time(self.from_at),
            "until": format_time(self.until_at) if self.until_at else None,
            "seconds": int(self.length.total_seconds()),
            "accepted_by": self.accepted_by,
        }


_OF_PIPELINE = """
    SELECT pipeline, stream, answer, from_at, until_at, found_at, accepted_at, coalesce(accepted_by, '')
    FROM event_gaps WHERE pipeline = %s ORDER BY from_at, id
"""


def note_refused(refused: RefusedAt) -> None:
    """Record a position that was refused; an earlier record of it stays. Raise ServiceUnreachable."""
    from sqlalchemy.dialects.postgresql import insert

    from include.ledger.database import session
    from include.ledger.models import EventGapRow

    with session() as ledger:
        ledger.execute(insert(EventGapRow).values(**_columns(refused)).on_conflict_do_nothing())


def note_gap(refused: RefusedAt, until_at: datetime, accepted_by: str) -> timedelta:
    """Record that the follower went on at a time, and return how much is missing. Raise ServiceUnreachable.

    A position has one gap even if a follower that went on from it was killed: the last one to go on sets its end.
    """
    from sqlalchemy import func
    from sqlalchemy.dialects.postgresql import insert

    from include.ledger.database import session
    from include.ledger.models import EventGapRow

    until_at = max(until_at, refused.from_at)
    accepted = {"until_at": until_at, "accepted_at": func.now(), "accepted_by": accepted_by}
    statement = insert(EventGapRow).values(**_columns(refused), **accepted)
    with session() as ledger:
        ledger.execute(statement.on_conflict_do_update(index_elements=["pipeline", "position"], set_=accepted))
    return until_at - refused.from_at


def gaps_of(pipeline: str) -> tuple[EventGap, ...]:
    """Return the gaps of the streams that the pipeline followed, in order of time. Raise ServiceUnreachable."""
    with reading() as ledger:
        ledger.execute(_OF_PIPELINE, [pipeline])
        return tuple(EventGap(*row) for row in ledger.fetchall())


def _columns(refused: RefusedAt) -> dict[str, object]:
    return {
        "pipeline": refused.pipeline,
        "stream": refused.stream,
        "position": refused.digest,
        "answer": refused.answer,
        "from_at": refused.from_at,
    }
