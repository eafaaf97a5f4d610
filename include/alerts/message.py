"""What every channel sends of an alert: what it says, and of which installation it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from include.settings import settings

if TYPE_CHECKING:
    from include.ledger.alerts import Alert


def message_of(alert: Alert) -> dict[str, Any]:
    """Return the alert as JSON with `lake` and `ledger`: several installations may have the same receivers."""
    current = settings()
    return {**alert.as_json(), "lake": current.lake_uri, "ledger": current.database_host()}
