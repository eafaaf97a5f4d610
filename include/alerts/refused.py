"""Pipelines whose declaration is refused: they have no DAGs, so none of their other alerts would tell."""

from __future__ import annotations

from datetime import datetime

from include import alerts
from include.ledger.alerts import Alert, open_alerts
from include.pipelines import Declarations

_PREFIX = "declaration/"


def watch(found: Declarations, now: datetime) -> int:
    """Alert once about each pipeline that is refused; return how many such alerts are over."""
    over = [each.key for each in open_alerts(_PREFIX) if each.key.removeprefix(_PREFIX) not in found.refused]
    for (name, error), reason in zip(found.refused.items(), found.reasons, strict=True):
        alert = Alert(
            f"{_PREFIX}{name}",
            name,
            f"its declaration is refused, so nothing launches its stream or builds its intervals: {reason}",
            f"include/pipelines/{name}.py",
            now,
            error.remedy or "correct the declaration",
        )
        alerts.raise_alert(alert)
    return sum(alerts.recover(key) for key in over)
