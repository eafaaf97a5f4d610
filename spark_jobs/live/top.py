"""The largest keys of a view per window, live from the landed files: a stream beside the archive query.

It keeps no state: each start reads the landing files of the last hours again, writes to no topic and no table, and
takes no lease.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from include.monitor import exact_json
from include.monitor.streams.live_windows import largest
from include.pipelines.spec import AdditiveView, Pipeline, Top
from include.pipelines.spec.views import EXACT
from include.settings import write_private
from include.times import format_time, utc
from spark_jobs.live.landing_source import read_landed
from spark_jobs.streaming.queries import Stop
from spark_jobs.views.aggregate import aggregate_stream

Key = tuple[Any, ...]
Measure = int | Decimal | None
"""None is a sum of nulls."""


@dataclass
class LiveTop:
    """Counts of the newest windows, and the file that shows them."""

    pipeline: Pipeline
    report: Top
    windows: int
    result: Path
    since: str
    """Time (ISO) of the first landed events that are read."""
    counts: dict[tuple[datetime, datetime], dict[Key, Measure]] = field(default_factory=dict)
    """By window, by key."""
    _batch: int = -1
    _watermark: str | None = None
    _late: int = 0

    @property
    def view(self) -> AdditiveView:
        """The view that the report names."""
        return next(view for view in self.pipeline.views if view.name == self.report.view)

    def aggregates(self, spark: SparkSession) -> DataFrame:
        """Return the view over the landed rows as the stream has it: late ones are left out, but in complete mode."""
        return aggregate_stream(spark, self.pipeline, self.view, read_landed(spark, self.pipeline, self.since))

    def keep(self, batch: DataFrame, batch_id: int) -> None:
        """Store the changed keys of a micro-batch that lie in the newest windows; a repetition changes nothing.

        The newest are counted back from now: a device whose clock is ahead replaces nobody's window. Later windows are
        kept until they begin.
        """
        window, measure, now = self.view.window, self.report.measure, datetime.now(UTC)
        start = F.col(window)["start"]
        changed = batch.persist()
        try:
            newest = changed.agg(F.max(F.when(start <= F.lit(now), start))).collect()[0][0]
            begun = [at for at, _ in self.counts if at <= now] + ([utc(newest)] if newest else [])
            oldest = max(begun) - self._span if begun else None
            plain = [
                F.to_json(name).alias(name) if kind.startswith(("struct", "array")) else F.col(name)
                for name, kind in changed.select(*self.plain).dtypes
            ]
            newer = changed.where(start >= F.lit(oldest)) if oldest else changed
            new: dict[tuple[datetime, datetime], dict[Key, Measure]] = {}
            # A part that is a structure or an array as JSON: an array cannot be a key here.
            for row in newer.select(window, *plain, measure).collect():
                at = (utc(row[window]["start"]), utc(row[window]["end"]))
                new.setdefault(at, {})[tuple(row[name] for name in self.plain)] = row[measure]
            merged = self.counts | {at: self.counts.get(at, {}) | counts for at, counts in new.items()}
            # In one step: another thread may be showing the former counts.
            self.counts = {at: counts for at, counts in merged.items() if not oldest or at[0] >= oldest}
        finally:
            changed.unpersist()

    @property
    def _span(self) -> timedelta:
        """How long before the newest window the oldest one begins."""
        return timedelta(seconds=self.view.time_windows.slide_seconds * (self.windows - 1))

    @property
    def plain(self) -> tuple[str, ...]:
        """The view's key without its window."""
        return self.view.plain_key

    def note(self, query: StreamingQuery) -> bool:
        """Note the progress of the query's micro-batches. Return whether there was any progress since the last call."""
        new = [each for each in query.recentProgress if each["batchId"] > self._batch]
        for each in new:
            self._batch = each["batchId"]
            self._watermark = each["eventTime"].get("watermark")
            self._late += sum(operator["numRowsDroppedByWatermark"] for operator in each["stateOperators"])
        return bool(new)

    def as_json(self) -> dict[str, Any]:
        """Return what is shown: windows from the newest to the oldest, each with its largest keys.

        Of a window that began before `since`, earlier events are missing. `ahead` counts the windows that have not
        begun, which are shown only where no other is.
        """
        now, counts = datetime.now(UTC).replace(microsecond=0), self.counts
        begun = [at for at in counts if at[0] <= now]
        newest = sorted(begun or counts, reverse=True)
        shown = [at for at in newest if at[0] >= newest[0][0] - self._span]
        return {
            "pipeline": self.pipeline.name,
            "title": self.report.title,
            "by": list(self.report.by),
            "measure": self.report.measure,
            "updated_at": format_time(now),
            "watermark": self._watermark,
            "late": self._late,
            "since": self.since,
            "ahead": len(counts) - len(begun),
            "windows": self._windows({at: counts[at] for at in shown}),
        }

    def _windows(self, counts: dict[tuple[datetime, datetime], dict[Key, Measure]]) -> list[dict[str, Any]]:
        with localcontext(EXACT):
            return [self._window(at, of_window) for at, of_window in counts.items()]

    def show(self) -> None:
        """Write the file in one step: a reader never sees a part of it."""
        write_private(self.result, exact_json.dumps(self.as_json()))

    def _window(self, at: tuple[datetime, datetime], counts: dict[Key, Measure]) -> dict[str, Any]:
        totals: dict[Key, Measure] = {}
        places = [self.plain.index(name) for name in self.report.by]
        for key, count in counts.items():
            shown = tuple(key[place] for place in places)
            totals[shown] = _added(totals.get(shown), count)
        return {
            "from": format_time(at[0]),
            "to": format_time(at[1]),
            "total": sum(count for count in totals.values() if count is not None),
            "keys": len(totals),
            "rows": [[*key, count] for key, count in largest(totals, self.report.rows)],
        }


def _added(one: Measure, other: Measure) -> Measure:
    """Return the sum as SQL has it: without nulls, and null of nothing else."""
    if one is None or other is None:
        return other if one is None else one
    return one + other


def show_top(spark: SparkSession, top: LiveTop, *, once: bool) -> int:
    """Run the stream until SIGTERM or SIGINT, or with `once` over what is landed, and keep the result file current."""
    stop = Stop()
    checkpoint = tempfile.mkdtemp(prefix="tidemark-top-")
    writer = top.aggregates(spark).writeStream.outputMode("update").foreachBatch(top.keep)
    trigger = {"availableNow": True} if once else {"processingTime": "2 seconds"}
    query = writer.queryName(f"{top.pipeline.name}.top").option("checkpointLocation", checkpoint).trigger(**trigger)
    try:
        running = query.start()
        while running.isActive and not stop.requested:
            running.awaitTermination(1)
            if top.note(running):
                top.show()
        running.stop()
        top.note(running)
        top.show()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)
    return 0
