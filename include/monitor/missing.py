"""Intervals that were never built, as doctor, status and metrics report them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from include.ledger.intervals.missing import MissingIntervals, missing_intervals, never_begun
from include.monitor.text import quantity
from include.pipelines.spec import Pipeline
from include.settings import settings
from include.times import Schedule, format_time


@dataclass(frozen=True)
class MissingSummary:
    """How many intervals of a pipeline were never built, and where they lie."""

    pipeline: str
    count: int
    """Time before the first pinned interval counts as one: nobody knows yet how many it has."""
    from_time: datetime | None
    """None: from the first archived record on, or no interval is missing."""
    to_time: datetime | None
    offsets: int
    """Offsets that they hold."""

    def __str__(self) -> str:
        begin = format_time(self.from_time) if self.from_time else "the first record"
        end = f" to {format_time(self.to_time)}" if self.to_time else ""
        return (
            f"{self.pipeline}: intervals that were never built: {self.count} from {begin}{end}, "
            f"with {quantity(self.offsets, 'offset')}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the summary with the keys that `./tidemark status --json` has."""
        begin, end = (format_time(each) if each else None for each in (self.from_time, self.to_time))
        return {"pipeline": self.pipeline, "count": self.count, "from": begin, "to": end, "offsets": self.offsets}


def summarize_missing(pipeline: Pipeline) -> MissingSummary:
    """Return the summary of a pipeline's missing intervals; its count is 0 when none is missing.

    When no interval was ever pinned, all are missing since the archive's first micro-batch, once one is overdue.
    """
    missing = missing_intervals(pipeline.name)
    if not missing:
        return _never_begun(pipeline) or MissingSummary(pipeline.name, 0, None, None, 0)
    count = sum(_count(each, pipeline.schedule) for each in missing)
    offsets = sum(each.offsets for each in missing)
    return MissingSummary(pipeline.name, count, missing[0].from_time, missing[-1].to_time, offsets)


def _never_begun(pipeline: Pipeline) -> MissingSummary | None:
    """Return the summary of a pipeline whose intervals never began; None when they did, or need not have."""
    schedule, begun = pipeline.schedule, never_begun(pipeline.name)
    if begun is None or begun.read_at - begun.since <= schedule.every + schedule.registered_within:
        return None
    first, end = schedule.floor(begun.since), schedule.floor(begun.read_at - schedule.registered_within)
    return MissingSummary(pipeline.name, -(-(end - first) // schedule.every), first, end, begun.offsets)


def building_commands(pipeline: Pipeline) -> str:
    """Return the command that builds the first missing interval, and Airflow's for all that are pinned next to it."""
    missing = sorted(missing_intervals(pipeline.name), key=lambda each: each.pinned is None)
    if not missing:
        begun = _never_begun(pipeline)
        if begun is None or begun.from_time is None:
            return ""
        begin, end = format_time(begun.from_time), format_time(begun.from_time + pipeline.schedule.every)
        command = f"./tidemark interval {pipeline.name} --from {begin} --to {end}"
        return f"unpause the DAG interval__{pipeline.name}; {command} builds the first"
    # It may end where an interval of another schedule begins, which is no boundary of this one.
    start = missing[0].from_time or pipeline.schedule.before(missing[0].to_time)
    width = missing[0].width
    stop = start + width if width else next(pipeline.schedule.between(start, missing[0].to_time)).to_time
    begin, end = format_time(start), format_time(stop)
    command = f"./tidemark interval {pipeline.name} --from {begin} --to {end}"
    # Not for time that was never pinned: it may be years, almost all of them empty. Nor for intervals of another
    # schedule, since Airflow runs those of the present one.
    if (missing[0].pinned or 0) < 2 or width != pipeline.schedule.every:
        return command
    last = format_time(missing[0].to_time - pipeline.schedule.every)
    # Without the behaviour Airflow passes over each interval that ever had a run, such as one that failed before it
    # pinned: the next run pins that interval on its way. Without a form each such run keeps its own, as of a dry run.
    backfill = (
        f"{settings().airflow_command()} backfill create --dag-id interval__{pipeline.name} --from-date {begin} "
        f"--to-date {last} --reprocess-behavior completed --dag-run-conf '{{}}'"
    )
    return f"{command} builds the first; {backfill} builds {missing[0].pinned}"


def _count(missing: MissingIntervals, schedule: Schedule) -> int:
    if missing.pinned is not None:
        return missing.pinned
    return -(-(missing.to_time - missing.from_time) // schedule.every) if missing.from_time else 1
