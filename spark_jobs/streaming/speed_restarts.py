"""When a speed query that a record made throw may start again: once the archive query has diverted that record.

Both queries decode the same stream. The archive query finds the record (`spark_jobs/sinks/landing.py`) and
commits it as diverted; a speed query leaves alone what was diverted when it started.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from include.ledger.archive import micro_batches
from pyspark.sql import Column

from include import kafka
from include.ledger.quarantine import diverted
from include.offsets import Coordinates, TopicPartition
from spark_jobs.decoding.records import withhold
from spark_jobs.spark.failures import translate

PATIENCE = 60.0
"""How long a failed speed query waits, s, once the archive query neither searches nor moves towards the record."""


@dataclass
class _Wait:
    """A failed speed query that waits."""

    ends: Mapping[TopicPartition, int]
    """Where the topics ended when it failed: what it failed on lies below."""
    since: float
    reached: Mapping[TopicPartition, int] = field(default_factory=dict)
    """How far the archive query had come when last looked at."""

    def archive_moves(self, reached: Mapping[TopicPartition, int]) -> bool:
        """Whether the archive query has come nearer to the record, as far as can be known."""
        moved, self.reached = reached != self.reached, reached
        return moved and any(reached.get(tp, 0) < end for tp, end in self.ends.items())


class SpeedRestarts:
    """Remembers what each speed query of a pipeline left alone at its start."""

    def __init__(self, pipeline: str, searching: threading.Event) -> None:
        self._pipeline = pipeline
        self._searching = searching
        self._left_alone: dict[str, list[Coordinates]] = {}
        self._waits: dict[str, _Wait] = {}

    def withheld(self, view: str) -> Column | None:
        """What `decode` must leave alone in a query of the view that starts now: diverted records ahead of it."""
        self._left_alone[view] = self._ahead(view)
        self._waits.pop(view, None)
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
        wait = self._waits.get(view)
        if wait is None:
            bounds = kafka.offset_bounds(micro_batches.positions(self._pipeline))
            wait = self._waits[view] = _Wait({tp: end for tp, (_, end) in bounds.items()}, now)
        if wait.archive_moves(micro_batches.positions(self._pipeline)) or self._searching.is_set():
            wait.since = now
        if not archive_runs or now - wait.since > PATIENCE:
            raise failed
        return False

    def _ahead(self, view: str) -> list[Coordinates]:
        positions = micro_batches.positions(self._pipeline, view)
        return diverted(self._pipeline, positions, micro_batches.stored_topics(self._pipeline))
