"""Erasures that were interrupted: an alert when one has not ended after a day, and one when it has.

Streams and intervals go on meanwhile, and nobody reads the records any more, but files still hold them.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from include import alerts
from include.ledger.alerts import Alert, dismissed_alerts, open_alerts
from include.ledger.erasures.open import OpenErasure, open_erasures
from include.times import format_time

UNDER_WAY = timedelta(days=1)
"""How long an erasure may take; it builds all tables anew that had the records."""


def watch(pipeline: str, now: datetime) -> int:
    """Alert about an erasure of the pipeline that has not ended after a day; return how many such alerts are over.

    One whose alert was dismissed raises no other.
    """
    left = {_key(each): each for each in open_erasures() if each.pipeline == pipeline}
    over = [each.key for each in open_alerts(f"erasure/{pipeline}/") if each.key not in left]
    for key, each in left.items():
        # The number of an erasure may be the beginning of another's.
        is_dismissed = any(told.key == key for told in dismissed_alerts(key))
        if now - each.begun_at > UNDER_WAY and not is_dismissed:
            alerts.raise_alert(_alert(each))
    return sum(alerts.recover(key) for key in over)


def _key(erasure: OpenErasure) -> str:
    return f"erasure/{erasure.pipeline}/{erasure.id}"


def _alert(erasure: OpenErasure) -> Alert:
    return Alert(
        _key(erasure),
        erasure.pipeline,
        f"erasure {erasure.id} has not ended: files still hold what it is to erase",
        f"begun at {format_time(erasure.begun_at)} by {erasure.by}",
        erasure.begun_at,
        f"{erasure.remedy}; what it says is in the way comes first",
    )
