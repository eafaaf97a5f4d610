"""Times to offset ranges: resolved once, clamped to the ends seen then, tiling by construction.

An interval lies between two boundaries, and a boundary that a neighbouring interval has is never resolved again. If
many intervals lie between the wanted one and the nearest pinned one, they are left for later: their offsets, bounded
by the intervals around them, stay theirs until they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from include.completeness import follow_ledger
from include.errors import ArchiveBehind, OffsetsLost, UsageError
from include.intervals.archive_wait import await_archive
from include.intervals.boundaries import Offsets, SourceLog, odd_timestamps_of, read_log
from include.intervals.lake_of_ledger import check_lake
from include.kafka.timestamps import Boundary
from include.kafka.truncation import check_unchanged
from include.ledger.archive.committed import first_committed_offsets
from include.ledger.archive.removal import removed_ranges
from include.ledger.completeness.properties import table_properties
from include.ledger.database import clock
from include.ledger.intervals import pins
from include.ledger.intervals.odd_timestamps import together
from include.ledger.intervals.pins import Neighbours, PinnedInterval
from include.ledger.streams.incarnations import closed
from include.offsets import OffsetRange, TopicPartition
from include.pipelines.spec import Pipeline, Schedule
from include.settings import settings
from include.times import Interval, format_time, parse_duration

NEAR = 48
"""How many intervals between the wanted and the nearest pinned one are pinned too, at most: two days of hours."""


def pin_interval(
    pipeline: Pipeline, interval: Interval, *, pinned_by: str, repin: bool = False, patience: timedelta | None = None
) -> PinnedInterval:
    """Return the interval's ranges: those of the ledger, else resolved now and written before anything reads them.

    Intervals between it and the nearest pinned ones, or the topic's first record, are pinned too, unless they are
    more than NEAR. Nothing is pinned beyond what the archive holds, which is waited for (`patience`, else the
    setting `archive_wait`). Now that it is open, tables may be complete only until it: both catalogs are updated. An
    error of a catalog leaves it pinned, and the next call continues there.
    Raises ArchiveBehind, also for an interval that has not passed by the ledger's clock, OffsetsLost, LogTruncated,
    UsageError (a refused `repin`, another's Iceberg table), MetadataGone, ServiceUnreachable, and UsageError for an
    interval that overlaps a pinned one of another schedule.
    """
    check_lake(pipeline)
    known = pins.find_interval(pipeline.name, interval.from_time)
    if known is not None:
        check_apart(pipeline, interval, known)
        if not repin:
            if pins.is_open(known) and table_properties(pipeline.name):
                # The run that pinned it may have ended before it updated the catalogs.
                follow_ledger(pipeline)
            return known
        check_repin(pipeline, known)
    else:
        _check_passed(pipeline, interval)
    log = read_log(pipeline)
    _check_unchanged(log, interval)
    wait = parse_duration(settings().archive_wait) if patience is None else patience
    if known is not None:
        pinned = _pin_again(log, known, pinned_by, wait)
    else:
        pinned = _Pinning(log, interval, pinned_by).run(wait)
    # By these it is told, when the next interval is pinned, that the log is still the same.
    pins.note_last_timestamps(pinned, log.last_timestamps(pinned))
    if known is not None or pins.find_neighbours(pipeline.name, pinned.interval).after is not None:
        # As long as this interval is open, tables are complete until it and no longer.
        follow_ledger(pipeline)
    return pinned


def near_steps(schedule: Schedule, begin: datetime, end: datetime) -> list[Interval]:
    """Return the intervals from one boundary to another; none when these are not near enough."""
    return list(schedule.between(begin, end)) if end - begin <= NEAR * schedule.every else []


@dataclass(frozen=True)
class _Pinning:
    """Pins an interval that was never pinned, with a transaction for each interval that it writes."""

    log: SourceLog
    wanted: Interval
    pinned_by: str

    def run(self, patience: timedelta) -> PinnedInterval:
        """Pin the intervals before the wanted one, that one, and those up to the next pinned one; return it."""
        neighbours = pins.find_neighbours(self.log.pipeline.name, self.wanted)
        for each in (neighbours.before, neighbours.after):
            if each is not None:
                check_apart(self.log.pipeline, self.wanted, each)
        first_time = self._first_time(neighbours)
        _, ends = self._resolve(self.wanted, neighbours, first_time)
        limits = _offsets(ends)
        if neighbours.after is None:
            # What lies before a pinned one is archived, also of a topic whose successor is read by now.
            await_archive(self.log.pipeline, self.wanted, limits, patience)
        schedule = self.log.pipeline.schedule
        for step in near_steps(schedule, first_time, self.wanted.from_time):
            self._pin(step, first_time, limits)
        pinned = self._pin(self.wanted, first_time, limits)
        if neighbours.after is not None:
            for step in near_steps(schedule, self.wanted.to_time, neighbours.after.interval.from_time):
                self._pin(step, first_time, {})
        return pinned

    def _first_time(self, neighbours: Neighbours) -> datetime:
        """Return the boundary from which on nothing is pinned before the wanted interval."""
        if neighbours.before is not None:
            return neighbours.before.interval.to_time
        first_time = self.log.first_time(self.log.spans_between(neighbours))
        if first_time is None:
            return self.wanted.from_time
        return min(self.wanted.from_time, self.log.pipeline.schedule.floor(first_time))

    def _pin(self, step: Interval, first_time: datetime, limits: Offsets) -> PinnedInterval:
        """Return an interval as this or another process pins it; nothing of it lies beyond the limits."""
        name = self.log.pipeline.name
        while True:
            if (known := pins.find_interval(name, step.from_time)) is not None:
                return known
            neighbours = pins.find_neighbours(name, step)
            begins, ends = self._resolve(step, neighbours, first_time)
            self._check_begin(step, neighbours, first_time, begins)
            pinned = pins.write_interval(
                name,
                step,
                [
                    OffsetRange(tp, begin, max(begin, min(ends[tp].offset, limits.get(tp, ends[tp].offset))))
                    for tp, begin in sorted(begins.items())
                ],
                neighbours.after.topic_ids if neighbours.after else self.log.topic_ids,
                pinned_by=self.pinned_by,
                between=neighbours,
                odd_timestamps=odd_timestamps_of(ends),
                delivers_replays=step == self.wanted,
            )
            if pinned is not None:
                return pinned

    def _resolve(
        self, step: Interval, neighbours: Neighbours, first_time: datetime
    ) -> tuple[Offsets, Mapping[TopicPartition, Boundary]]:
        """Return where an interval begins and ends between its neighbours.

        Next to a neighbour it begins or ends where that one ends or begins, else at the boundary of its time.
        """
        spans = self.log.spans_between(neighbours)
        begins: Offsets = {tp: begin for tp, (begin, _) in spans.items()}
        if step.from_time != (neighbours.before.interval.to_time if neighbours.before else first_time):
            begins = _offsets(self.log.boundaries(step.from_time, spans))
        rest = {tp: (begin, spans[tp][1]) for tp, begin in begins.items()}
        if neighbours.after is not None and neighbours.after.interval.from_time == step.to_time:
            return begins, {tp: Boundary(end) for tp, (_, end) in rest.items()}
        return begins, self.log.boundaries(step.to_time, rest)

    def _check_begin(self, step: Interval, neighbours: Neighbours, first_time: datetime, begins: Offsets) -> None:
        """Raise OffsetsLost when records of the interval may be among those before it that retention removed."""
        opening = neighbours.before.interval.to_time if neighbours.before else first_time
        if step.from_time == opening:
            return
        spans = self.log.spans_between(neighbours)
        removed = self.log.unknown_times(step.from_time, spans, begins)
        if not removed:
            return
        first, name = next(self.log.pipeline.schedule.between(opening, step.from_time)), self.log.pipeline.name
        words = "; ".join(f"{each} ({len(each)} offsets)" for each in removed)
        raise OffsetsLost(
            f"records of {step} may be among {words}, which are in no interval yet and gone from Kafka",
            remedy="build from the archive the interval that they are put into, then this one: ./tidemark interval "
            f"{name} --from {format_time(first.from_time)} --to {format_time(first.to_time)} --source archive",
            pipeline=name,
        )


def _check_passed(pipeline: Pipeline, interval: Interval) -> None:
    """Raise ArchiveBehind when the interval has not passed by the ledger's clock.

    A host whose clock is ahead would call it complete, and leave records that are still to come to a later one.
    """
    now = clock()
    if interval.to_time > now:
        raise ArchiveBehind(
            f"{interval} has not passed: by the ledger's clock it is {format_time(now.replace(microsecond=0))}",
            remedy="run it again after its end; if that is over, compare the clocks of this host and of PostgreSQL's",
            pipeline=pipeline.name,
        )


def _check_unchanged(log: SourceLog, interval: Interval) -> None:
    """Raise LogTruncated when Kafka holds another record than was there before the end of the interval before."""
    before = pins.find_neighbours(log.pipeline.name, interval).before
    if before is not None and (noted := pins.last_timestamps(before)):
        check_unchanged(log.pipeline.name, noted, log.last_timestamps(before))


def check_apart(pipeline: Pipeline, wanted: Interval, pinned: PinnedInterval) -> None:
    """Raise UsageError when the wanted interval overlaps a pinned one, and is not that one.

    Its offsets belong to the pinned one, which would silently be taken for it.
    """
    theirs = pinned.interval
    if wanted == theirs or wanted.to_time <= theirs.from_time or theirs.to_time <= wanted.from_time:
        return
    rest = _rest_of(pipeline, wanted)
    what, named = ("run that one as it is", theirs) if rest is None else ("run what follows the pinned ones", rest)
    begin, end = format_time(named.from_time), format_time(named.to_time)
    raise UsageError(
        f"{wanted} overlaps {theirs}, which was pinned under another schedule",
        remedy=f"{what}: --from {begin} --to {end}; ./tidemark doctor names what else is missing",
        pipeline=pipeline.name,
    )


def _rest_of(pipeline: Pipeline, wanted: Interval) -> Interval | None:
    """Return the schedule's next interval after the last pinned one in the wanted time; None when nothing is left.

    No pinned interval comes after it, so that `./tidemark doctor` does not name it as missing.
    """
    last = pins.last_before(pipeline.name, wanted.to_time)
    return next(pipeline.schedule.between(last.interval.to_time, wanted.to_time), None) if last else None


def check_repin(pipeline: Pipeline, known: PinnedInterval) -> None:
    """Raise UsageError unless the interval's ranges may be resolved again without breaking the tiling."""
    last = pins.last_interval(pipeline.name)
    if last is not None and last.id != known.id:
        reason = f"{last.interval} is pinned after it and would no longer tile"
    elif closed_topics := [t for t, topic_id in known.topic_ids.items() if topic_id in closed(pipeline.name)]:
        reason = f"topic {', '.join(closed_topics)} was deleted since, and its offsets cannot be resolved any more"
    elif removed := removed_ranges(pipeline.name, known.ranges):
        reason = f"the landing files of {removed[0]} were removed, its revisions are the archive's only copy"
    else:
        return
    raise UsageError(
        f"{known.interval} cannot be pinned again: {reason}",
        remedy="run it with the ranges it has; late records belong to a later interval",
        pipeline=pipeline.name,
    )


def _pin_again(log: SourceLog, known: PinnedInterval, pinned_by: str, patience: timedelta) -> PinnedInterval:
    """Resolve the ranges of the last pinned interval again.

    Their beginnings stay, and they never become shorter: an offset that was delivered stays delivered. Those from
    before the archive's beginning never were, and are left out.
    """
    archived = first_committed_offsets(log.pipeline.name)
    begins = {r.topic_partition: r.from_offset for r in known.ranges}
    reached = {r.topic_partition: r.until_offset for r in known.ranges}
    spans = {
        tp: (begin := max(reached.get(tp, 0), archived.get(tp, 0)), max(begin, end))
        for tp, (_, end) in log.bounds.items()
        if tp.topic in known.topic_ids
    }
    ends = log.boundaries(known.interval.to_time, spans)
    await_archive(log.pipeline, known.interval, _offsets(ends), patience)
    until = reached | _offsets(ends)
    replaced = pins.replace_ranges(
        known,
        [OffsetRange(tp, max(begins.get(tp, 0), archived.get(tp, 0)), offset) for tp, offset in sorted(until.items())],
        repinned_by=pinned_by,
        odd_timestamps=together([*known.odd_timestamps, *odd_timestamps_of(ends)]),
    )
    if replaced is None:
        check_repin(log.pipeline, known)
        raise UsageError(
            f"{known.interval} was pinned again, or the one after it was pinned, meanwhile; nothing was changed",
            remedy="run it again without --repin",
            pipeline=log.pipeline.name,
        )
    return replaced


def _offsets(boundaries: Mapping[TopicPartition, Boundary]) -> dict[TopicPartition, int]:
    return {tp: boundary.offset for tp, boundary in boundaries.items()}
