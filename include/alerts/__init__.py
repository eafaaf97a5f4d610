"""Notify the operators: what is wrong, where, since when, what to do; once, and once more when it is over."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from include.alerts.channels import configured_channels, failure_of
from include.errors import UsageError
from include.ledger.alerts import DISMISSED, noted
from include.ledger.alerts import Alert as Alert

_log = logging.getLogger(__name__)

MOST_FAILURES = 10
"""For how many alerts, of those sent together, a receiver may answer with a failure before it is not tried further.

Refusals of a message that was never tried before do not count: they say nothing about the next one."""

_sent_later: ContextVar[bool] = ContextVar("sent_later", default=False)


def raise_alert(alert: Alert) -> bool:
    """Raise an alert unless one of its key is open; return whether it is new. A channel that fails is tried again.

    Raises ServiceUnreachable when the ledger cannot be reached.
    """
    is_new = noted.note_alert(alert)
    if not _sent_later.get():
        send_unsent()
    return is_new


def recover(key: str, facts: Mapping[str, Any] | None = None) -> bool:
    """Close an alert with `facts` of its end, and send that where the alert was sent; return whether it was open."""
    was_open = noted.close_alert(key, facts)
    if was_open and not _sent_later.get():
        send_unsent()
    return was_open


@contextmanager
def sent_together() -> Iterator[None]:
    """Send at the end of this block, once, what it raises and closes and what was not sent before, if it fails too.

    So a receiver that is away is waited for once, not for each alert of the block. Raises ServiceUnreachable when the
    ledger cannot be reached.
    """
    token = _sent_later.set(True)
    try:
        yield
    finally:
        _sent_later.reset(token)
        send_unsent()


def dismiss(key: str, *, by: str, reason: str) -> None:
    """Close an alert whose end no check will find, and send who did it and why: of an abandoned interval, for instance.

    Its cause raises no alert again; the same failure does when it recurs. Raises UsageError without such an open alert
    or without a reason.
    """
    if not reason.strip():
        raise UsageError("dismissing an alert needs its reason in words", remedy='--reason "…"')
    if not recover(key, dict(zip(DISMISSED, (by, reason.strip()), strict=True))):
        raise UsageError(f"no alert {key!r} is open", remedy="./tidemark alerts list")


def send_unsent() -> int:
    """Send what some channel has not sent yet, and return how many messages went out."""
    answered: Counter[str] = Counter()

    def is_away(channel: str, error: Exception, has_failed: bool) -> bool:
        """Log that a channel failed; return whether it is not tried for the other alerts now."""
        # The type only: an address in the error's text may hold a token.
        said = error if isinstance(error, UsageError) else type(error).__name__
        _log.error("the alert was not sent by %s, it is tried again: %s", channel, said)
        failure = failure_of(error)
        answered[channel] += failure == "answered" or (failure == "refused" and has_failed)
        return failure == "away" or answered[channel] >= MOST_FAILURES

    return noted.send_unsent(configured_channels(), is_away)
