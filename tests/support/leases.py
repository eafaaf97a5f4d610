"""Leases of drivers that tests stand in for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from include.ledger.streams import writers


@contextmanager
def held_lease(pipeline: str) -> Iterator[writers.Lease]:
    """The pipeline's lease, which nobody renews."""
    lease = writers.acquire(pipeline)
    try:
        yield lease
    finally:
        writers.release(lease)
