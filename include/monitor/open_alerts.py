"""Alerts that are open: what is wrong now, for the pages and the command."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from include.ledger.alerts import Alert, open_alerts
from include.monitor.text import clean

SHOWN = 20
"""How many alerts a page shows; the oldest, since what followed from them comes after them."""

_LONGEST = 1000
"""How many characters of an alert's text a page shows."""


@dataclass(frozen=True)
class OpenAlert:
    """An alert as a page shows it."""

    pipeline: str
    what: str
    where: str
    since: datetime
    todo: str
    dismiss: str
    """The command that closes it, without a reason yet."""
    key: str

    @classmethod
    def of(cls, alert: Alert) -> OpenAlert:
        """Return an alert with its texts cleaned and shortened."""
        what, where, todo = (clean(each, _LONGEST) for each in (alert.what, alert.extent, alert.todo))
        return cls(alert.pipeline, what, where, alert.since, todo, dismiss_command(alert), alert.key)


def alerts_of(may_read: Callable[[str], bool]) -> tuple[OpenAlert, ...]:
    """Return the open alerts of the pipelines that may be read, oldest first.

    Their declaration may be refused, or gone.
    """
    return tuple(OpenAlert.of(each) for each in open_alerts() if may_read(each.pipeline))


def dismiss_command(alert: Alert) -> str:
    """Return the command that dismisses an alert."""
    return f'./tidemark alerts dismiss {shlex.quote(alert.key)} --reason "…"'
