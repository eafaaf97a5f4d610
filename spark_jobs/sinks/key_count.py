"""How many keys a view without a window has: its state, its topic and its tables hold them for ever.

The number goes to the ledger with each micro-batch, for pages, metrics and alerts (`include/alerts/key_limits.py`).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.ledger.totals import note_keys
from include.pipelines.spec import AdditiveView, Pipeline
from spark_jobs.spark.log import log_of
from spark_jobs.views.speed_topic import speed_values


class KeyCountTarget:
    """Counts the keys, by hashes of 64 bits that a driver keeps in memory: some 80 MB for a million keys."""

    def __init__(self, pipeline: Pipeline, view: AdditiveView) -> None:
        self._pipeline = pipeline
        self._view = view
        self._known: set[int] | None = None
        """None until the topic was read; a view in complete mode needs none."""
        self._is_over = False

    def write(self, values: DataFrame, version: int) -> None:
        """Count the keys after a micro-batch that changed these. Raises ServiceUnreachable."""
        if self._view.mode == "complete":
            self._note(values.count(), version)
            return
        if self._known is None:
            self._known = _hashes(speed_values(values.sparkSession, self._view, version).where(self._is_held()))
        self._known |= _hashes(values)
        self._note(len(self._known), version)

    def replace(self, values: DataFrame, version: int) -> None:
        """Count the keys after all others were deleted."""
        self._known = _hashes(values)
        self._note(len(self._known), version)

    def _is_held(self) -> Column:
        # A deletion has no values.
        return F.col(self._view.measures[0]).isNotNull()

    def _note(self, keys: int, version: int) -> None:
        note_keys(self._pipeline.name, self._view.name, keys, version)
        was_over, self._is_over = self._is_over, keys > self._view.max_keys
        if self._is_over and not was_over:
            log_of(self._pipeline.name, self._view.name).warning(
                "%s keys, %s are declared at most; all are counted, and kept for ever", keys, self._view.max_keys
            )


def _hashes(values: DataFrame) -> set[int]:
    return set(values.select(F.xxhash64("key").alias("hash")).toArrow()["hash"].to_pylist())
