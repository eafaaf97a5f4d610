"""The ledger of streams: leases, launches, generations, incarnations of topics, losses, flags, lines."""

from __future__ import annotations

from include.ledger.connection import reading

_LEASES = "SELECT pipeline FROM writers WHERE holder <> '' AND expires_at > clock_timestamp() ORDER BY pipeline"


def leases() -> list[str]:
    """Return whose leases have not run out, though a driver may be dead; in plain SQL. Raises ServiceUnreachable."""
    with reading() as ledger:
        ledger.execute(_LEASES)
        return [pipeline for (pipeline,) in ledger.fetchall()]
