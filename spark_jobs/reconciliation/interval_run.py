"""What every step of an interval's jobs works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from include.ledger.intervals.attempts import AttemptSpec
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.intervals.states import Source
from include.pipelines.spec import Pipeline
from include.versions import References
from spark_jobs.archive.registered import Damaged


@dataclass(frozen=True)
class IntervalRun:
    """An attempt of an interval of a pipeline, and the session that it runs in."""

    spark: SparkSession
    pipeline: Pipeline
    attempt: AttemptSpec
    references: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the content of each reference that a build uses; the pipeline's reference files then hold it."""

    @property
    def versioned_references(self) -> References:
        """The references in the form that versions of code take."""
        return tuple(sorted(self.references.items()))

    @property
    def pinned(self) -> PinnedInterval:
        """The interval with its offset ranges."""
        return self.attempt.pinned

    @property
    def damaged(self) -> Damaged:
        """What reads of the archive do about a damaged revision that is the only copy of its rows."""
        return "decode again" if self.attempt.source is Source.KAFKA else "refuse"
