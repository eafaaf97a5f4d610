"""Homes that were copied, or put back in part: what must hold before a server with their data starts."""

from __future__ import annotations

from pathlib import Path

from include.errors import UsageError
from include.services.process import read_state
from include.settings import settings

_SHARED = ("lake", "kafka_bootstrap", "jdbc_properties")
"""Settings of what a ledger writes outside of its home."""


def check_password_kept(name: str, data: Path) -> None:
    """Raise UsageError when the service has data, and its state file is gone: a new password does not open them."""
    if data.exists() and not read_state(name):
        raise UsageError(
            f"{data.parent} has data, and {settings().home / 'services' / name}.json "
            "is gone, which alone has their password",
            remedy="put a copy of it there",
        )


def check_shares_nothing() -> None:
    """Raise UsageError when this home's ledger is a copy, and its settings name what the original may use, too.

    Both ledgers would have the same state of one lake, and each would delete there what only the other one knows.
    """
    shared = [f"TIDEMARK_{name.upper()}" for name in _SHARED if getattr(settings(), name)]
    if not shared or not settings().service_state("postgres"):
        return
    try:
        settings().check_not_copied("postgres")
    except UsageError as error:
        state = settings().home / "services" / "postgres.json"
        raise UsageError(
            f"{error.message}: both would use {', '.join(shared)}",
            remedy="name a lake, a cluster and connections that the original does not use, or move its folder away; "
            f'then write this home as "home" into {state}',
        ) from None
