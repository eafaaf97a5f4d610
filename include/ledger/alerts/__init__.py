"""Alerts: what operators are notified of, once when it begins and once when it is over; read in plain SQL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from include.ledger.connection import reading
from include.times import format_time

DISMISSED = "dismissed_by", "dismissed_because"
"""Facts of an alert that a person closed although its cause may persist."""

CAUSE_OVER = "cause_over_at"
"""Fact of a dismissed alert whose cause was over later: the same failure raises another one."""

FAILED_AT = "failed_at"
"""Fact of an open alert whose task has failed again: when it last did, by the ledger's clock."""

_EVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Alert:
    """Something that operators are notified of, or, with `over_at`, its end."""

    key: str
    """What it is about: one alert per key is open at a time."""
    pipeline: str
    what: str
    place: str
    """Where it was seen: an interval, a run, a stream."""
    since: datetime
    todo: str
    """What to do about it."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further facts that a channel may pass on, e.g. Airflow's dag, run and task."""
    over_at: datetime | None = None
    raised_at: datetime | None = field(default=None, compare=False)
    """When it was noted, by the ledger's clock; `since` is by the clock of the process that noticed it."""

    @property
    def state(self) -> str:
        """`raised`, or `recovered`."""
        return "raised" if self.over_at is None else "recovered"

    @property
    def extent(self) -> str:
        """Where it was seen, and until when it reaches by now, where that is known: of overdue intervals, the end."""
        until = self.facts.get("until", "")
        return f"{self.place}, until {until}" if until else self.place

    def as_json(self) -> dict[str, Any]:
        """Return what every channel sends of it: state, pipeline, what, where, since, todo, over_at, and the facts."""
        said = {
            "state": self.state,
            "pipeline": self.pipeline,
            "what": self.what,
            "where": self.place,
            "since": format_time(self.since),
            "todo": self.todo,
        }
        over = {"over_at": format_time(self.over_at)} if self.over_at else {}
        return {**self.facts, **said, **over}


_COLUMNS = "key, pipeline, alert, since, closed_at, raised_at"

_OPEN = f"SELECT {_COLUMNS} FROM alerts WHERE closed_at IS NULL AND starts_with(key, %s) ORDER BY id"

_LATEST = f"SELECT {_COLUMNS} FROM alerts WHERE pipeline = %s OR %s = '' ORDER BY id DESC LIMIT %s"

_DISMISSED = f"""
    SELECT {_COLUMNS} FROM alerts
    WHERE closed_at >= %s AND starts_with(key, %s) AND alert -> 'facts' ? '{DISMISSED[0]}'
        AND NOT alert -> 'facts' ? '{CAUSE_OVER}'
    ORDER BY id
"""


def open_alerts(prefix: str = "") -> list[Alert]:
    """Return the open alerts whose keys begin with the prefix, in order of raising. Raises ServiceUnreachable."""
    return _asked(_OPEN, prefix)


def latest_alerts(pipeline: str, most: int) -> list[Alert]:
    """Return the latest alerts of a pipeline, or of all with an empty name, open and over, newest first."""
    return _asked(_LATEST, pipeline, pipeline, most)


def dismissed_alerts(prefix: str, since: datetime = _EVER) -> list[Alert]:
    """Return the alerts whose keys begin with the prefix and that a person has dismissed, since a time if it is given.

    Those are left out whose cause was over later.
    """
    return _asked(_DISMISSED, since, prefix)


def _asked(statement: str, *values: object) -> list[Alert]:
    with reading() as ledger:
        ledger.execute(statement, values)
        return [alert_of(*row) for row in ledger.fetchall()]


def alert_of(
    key: str, pipeline: str, kept: Mapping[str, Any], since: datetime, over_at: datetime | None, raised_at: datetime
) -> Alert:
    """Return an alert by the columns of its row."""
    return Alert(
        key, pipeline, kept["what"], kept["place"], since, kept["todo"], kept.get("facts", {}), over_at, raised_at
    )
