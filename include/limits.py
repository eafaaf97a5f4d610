"""Limits that the batch layer learned and that rules of flags compare with."""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    """What a rule knows of one subject."""

    rule: str
    subject: str
    """What it is about, e.g. a category or a bidder."""
    above: str | None = None
    """A decimal number; None for a rule that only asks whether the subject is known."""
