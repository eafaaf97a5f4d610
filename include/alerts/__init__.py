"""Telling the operators: what is wrong, where, since when, what to do; once, and once more when it is over."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from include.alerts.channels import configured_channels
from include.errors import UsageError
from include.ledger.alerts import DISMISSED, Alert, noted

_log = logging.getLogger(__name__)

__all__ = ["Alert", "dismiss", "recover", "tell", "tell_untold"]


def tell(alert: Alert) -> bool:
    """Tell of an alert unless one of its key is open; return whether it is new. A channel that fails is tried again.

    Raises ServiceUnreachable when the ledger cannot be reached.
    """
    is_new = noted.note_alert(alert)
    tell_untold()
    return is_new


def recover(key: str, facts: Mapping[str, Any] | None = None) -> bool:
    """Tell that something is over, and `facts` of its end, where it was told of; return whether it was open."""
    was_open = noted.close_alert(key, facts)
    if was_open:
        tell_untold()
    return was_open


def dismiss(key: str, *, by: str, reason: str) -> None:
    """Close an alert whose end nobody will find, and tell who did and why: an interval that is given up, for instance.

    What it is about is not told again; the same failure, when it comes again, is. Raises UsageError without such an
    open alert or without a reason.
    """
    if not reason.strip():
        raise UsageError("dismissing an alert needs its reason in words", remedy='--reason "…"')
    if not recover(key, dict(zip(DISMISSED, (by, reason.strip()), strict=True))):
        raise UsageError(f"no alert {key!r} is open", remedy="./tidemark alerts list")


def tell_untold() -> int:
    """Tell what some channel was not told yet, and return how many messages went out."""
    return noted.tell_untold(configured_channels(), _report)


def _report(channel: str, error: Exception) -> None:
    # Of the type only: an address in its text may hold a token.
    said = error if isinstance(error, UsageError) else type(error).__name__
    _log.error("the alert was not sent by %s, it is tried again: %s", channel, said)
