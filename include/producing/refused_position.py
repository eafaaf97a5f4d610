"""What a follower does when the service refuses its position as too old: it stops, or goes on where the user said.

The gap is noted in the ledger: when the position is refused, and again with its end, before the first event after it
is written to Kafka. The stored position moves only past events in Kafka, so a follower that is killed in between is
refused again, and its gap grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from include.errors import PositionTooOld, ServiceUnreachable, TidemarkError, UsageError
from include.ledger.streams import event_gaps
from include.ledger.streams.event_gaps import RefusedAt
from include.pipelines.spec import Pipeline
from include.processes import user_at_host
from include.producing.event_stream import EventStream
from include.producing.position import Reached
from include.times import describe_duration, format_time, parse_time


@dataclass(frozen=True)
class GoOn:
    """Where to go on."""

    since: datetime | None
    """None: with the stream's next event."""


def parse_go_on(text: str) -> GoOn:
    """Return where `--accept-gap` says to go on: `present`, or a time in the past. Raise UsageError."""
    if text.strip().lower() == "present":
        return GoOn(None)
    since = parse_time(text)
    if since > datetime.now(UTC):
        raise UsageError(f"{text} has not passed yet", remedy="--accept-gap present, or a time that the service has")
    return GoOn(since)


@dataclass
class RefusedPosition:
    """The position of a run that was refused, until the first event after it."""

    pipeline: Pipeline
    go_on: GoOn | None
    _refused: RefusedAt | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next event is the first one after a gap."""
        return self._refused is not None

    def go_past(self, stream: EventStream, reached: Reached, answer: str) -> str:
        """Let the stream begin again where the user said, and return the line to report.

        Raise PositionTooOld when nobody said where to go on, or the service refuses that too, and ServiceUnreachable
        when the service refused something other than a position.
        """
        from_at = reached.at if reached.last_event_id else _parse_since(stream.since)
        if from_at is None:
            raise ServiceUnreachable(f"{stream.address} answers {answer}", remedy="correct the URL or ask its owner")
        where = format_time(from_at.replace(microsecond=0))
        missing = describe_duration(datetime.now(UTC) - from_at)
        problem = f"{stream.address} no longer has the events after {where} ({answer}): {missing} are missing so far"
        position = f"{stream.address} {reached.last_event_id or stream.since}"
        refused = self._refused or RefusedAt(self.pipeline.name, stream.address, position, from_at, answer)
        if self._refused or self.go_on is None:
            raise self._too_old(problem + _note(refused))
        self._refused = refused
        # Events before the position are in Kafka: a time before it, as of an earlier gap, must not bring them again.
        since = max(self.go_on.since, from_at) if self.go_on.since else None
        stream.begin_anew(since)
        begin = f"the events since {format_time(since)}" if since else "its next event"
        return f"{self.pipeline.name}: {problem}; going on with {begin}"

    def close(self, first_event_at: datetime) -> float:
        """Note that the stream goes on with an event of this time, and return the seconds that are missing."""
        assert self._refused is not None
        missing = event_gaps.note_gap(self._refused, first_event_at, user_at_host())
        self._refused = None
        return missing.total_seconds()

    def _too_old(self, problem: str) -> PositionTooOld:
        remedy = "say where to go on: --accept-gap present, or --accept-gap TIME with a time that it still has"
        if self._refused:
            problem += "; it also refuses the position of --accept-gap"
            remedy = "name a later time with --accept-gap, or --accept-gap present"
        return PositionTooOld(problem, remedy=remedy, pipeline=self.pipeline.name)


def _note(refused: RefusedAt) -> str:
    """Note the refusal in the ledger; return why that failed, empty when it did not."""
    try:
        event_gaps.note_refused(refused)
    except TidemarkError as error:
        return f"; not noted in the ledger: {error.message}"
    return ""


def _parse_since(since: str | None) -> datetime | None:
    """Return the time of a URL's `since`, in ISO 8601 or as milliseconds since 1970; None when it is not a time."""
    try:
        if since and since.isdecimal():
            return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=int(since))
        return parse_time(since) if since else None
    except (UsageError, OverflowError):
        return None
