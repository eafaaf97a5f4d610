"""When a speed query that a record made throw may start again: once the archive query has diverted that record.

Both queries decode the same stream. The archive query finds the record (`spark_jobs/sinks/landing.py`) and
commits it as diverted; a speed query leaves alone what was diverted when it started.
"""

from __future__ import annotations

import threading
import time

from pyspark.sql import Column

from include.ledger import micro_batches
from include.ledger.quarantine import diverted
from include.offsets import Coordinates
from spark_jobs.decoding.records import withhold
from spark_jobs.entry import translate

PATIENCE = 60.0
"""How long a failed speed query waits for the archive query, s, beyond a search that is under way."""


class SpeedRestarts:
    """Remembers what each speed query of a pipeline left alone at its start."""

    def __init__(self, pipeline: str, searching: threading.Event) -> None:
        self._pipeline = pipeline
        self._searching = searching
        self._left_alone: dict[str, list[Coordinates]] = {}
        self._failed_at: dict[str, float] = {}

    def withheld(self, view: str) -> Column | None:
        """What `decode` must leave alone in a query of the view that starts now: diverted records ahead of it."""
        self._left_alone[view] = self._ahead(view)
        self._failed_at.pop(view, None)
        return withhold(dict.fromkeys(self._left_alone[view], "diverted"))

    def may_start(self, view: str, failed: Exception, *, archive_runs: bool) -> bool:
        """Whether to start the view's failed query again; False: wait.

        Raises what it failed with when a service failed, or when nothing is diverted in time.
        """
        if translate(failed) is not None:
            raise failed
        if set(self._ahead(view)) - set(self._left_alone.get(view, [])):
            return True
        now = time.monotonic()
        if self._searching.is_set():
            self._failed_at[view] = now
        if not archive_runs or now - self._failed_at.setdefault(view, now) > PATIENCE:
            raise failed
        return False

    def _ahead(self, view: str) -> list[Coordinates]:
        positions = micro_batches.positions(self._pipeline, view)
        return diverted(self._pipeline, positions, micro_batches.stored_topics(self._pipeline))
