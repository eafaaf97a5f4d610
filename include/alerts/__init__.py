"""Telling the operators: what is wrong, where, since when, what to do; once, and once more when it is over."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from include.alerts.channels import configured_channels
from include.errors import UsageError
from include.ledger import alerts
from include.ledger.alerts import Alert

_log = logging.getLogger(__name__)

__all__ = ["Alert", "recover", "tell", "tell_untold"]


def tell(alert: Alert) -> bool:
    """Tell of an alert unless one of its key is open; return whether it is new. A channel that fails is tried again.

    Raises ServiceUnreachable when the ledger cannot be reached.
    """
    is_new = alerts.note_alert(alert)
    tell_untold()
    return is_new


def recover(key: str, facts: Mapping[str, Any] | None = None) -> bool:
    """Tell that something is over, and `facts` of its end, where it was told of; return whether it was open."""
    was_open = alerts.close_alert(key, facts)
    if was_open:
        tell_untold()
    return was_open


def tell_untold() -> int:
    """Tell what some channel was not told yet, and return how many messages went out."""
    return alerts.tell_untold(configured_channels(), _report)


def _report(channel: str, error: Exception) -> None:
    # Of the type only: an address in its text may hold a token.
    said = error if isinstance(error, UsageError) else type(error).__name__
    _log.error("the alert was not sent by %s, it is tried again: %s", channel, said)
