"""Which intervals hold a gap's offsets when retention has removed records of it; no service is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include import lake
from include.errors import OffsetsLost
from include.intervals import boundaries, missing, pinning
from include.intervals.boundaries import SourceLog
from include.intervals.missing import missing_in_order
from include.kafka import offset_search
from include.kafka.timestamps import Boundary
from include.ledger.archive.archived_offsets import CommittedSpan
from include.ledger.intervals.missing import MissingIntervals
from include.ledger.intervals.pins import Neighbours, PinnedInterval
from include.offsets import Fate, OffsetRange, TopicPartition
from include.pipelines import load_pipeline
from include.times import Interval
from tests.support.topic_log import HOUR, START, hour

NEST = load_pipeline("nest_cameras")
TP, OTHER = (TopicPartition("nest-logs", number) for number in (0, 1))
DAYS = 24


@pytest.fixture(autouse=True)
def lake_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lake, "uri", lambda path: (tmp_path / path).as_uri())
    return tmp_path


@dataclass
class History:
    """A topic with a record each hour from START on, committed in that hour, and the intervals that are pinned.

    All records lie in one file of the archive.
    """

    monkeypatch: pytest.MonkeyPatch
    lows: Mapping[TopicPartition, int] = field(default_factory=lambda: {TP: 0})
    end: int = 30 * DAYS
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of topic partitions that end elsewhere."""
    committed_from: int = 0
    """The hour of the first commit: the stream caught up then."""
    fate: Fate = Fate.ARCHIVED
    invisible: range = range(0)
    """Offsets of transaction markers."""
    pinned: dict[Interval, dict[TopicPartition, tuple[int, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        patch = self.monkeypatch.setattr
        patch(offset_search, "first_times", self._first_times)
        patch(offset_search, "find_boundaries", self._find_boundaries)
        patch(boundaries, "first_committed_offsets", lambda _: dict.fromkeys(self.lows, 0))
        patch(boundaries, "commit_of", self._commit_of)
        patch(boundaries, "files_covering", self._files_covering)
        patch(pinning, "await_archive", lambda *_: None)
        patch(pinning.pins, "find_interval", lambda _, begin: None)
        patch(pinning.pins, "find_neighbours", lambda _, interval: self.around(interval))
        patch(pinning.pins, "write_interval", self._write)
        patch(missing, "read_log", lambda _: self.log)
        patch(missing, "missing_intervals", lambda _: self._missing())
        patch(missing, "find_gaps", lambda _: self._gaps())

    @property
    def log(self) -> SourceLog:
        bounds = {tp: (low, self._end(tp)) for tp, low in self.lows.items()}
        return SourceLog(NEST, bounds, {TP.topic: "id"}, hour(self.end).to_time)

    def pin(self, number: int) -> dict[TopicPartition, tuple[int, int]]:
        pinning._Pinning(self.log, hour(number), "test").run(HOUR)
        return self.pinned[hour(number)]

    def has_pinned(self, number: int, ends: int) -> None:
        """An hour was pinned, from the end of the one before it until an offset."""
        self.pinned[hour(number)] = dict.fromkeys(self.lows, (ends - 1, ends))

    def around(self, interval: Interval) -> Neighbours:
        before = max((each for each in self.pinned if each.to_time <= interval.from_time), default=None)
        after = min((each for each in self.pinned if each.from_time >= interval.to_time), default=None)
        return Neighbours(before and self._pinned(before), after and self._pinned(after))

    def _pinned(self, interval: Interval) -> PinnedInterval:
        ranges = tuple(OffsetRange(tp, *span, "id") for tp, span in sorted(self.pinned[interval].items()))
        return PinnedInterval(1, NEST.name, interval, ranges, {TP.topic: "id"})

    def _gaps(self) -> list[Neighbours]:
        around = [(each, self.around(each).before) for each in sorted(self.pinned)]
        return [
            Neighbours(before, self._pinned(each))
            for each, before in around
            if before is None or before.interval.to_time < each.from_time
        ]

    def _missing(self) -> list[MissingIntervals]:
        spans = [(gap, self.log.spans_between(gap)) for gap in self._gaps()]
        return [
            MissingIntervals(None, gap.after.interval.from_time, 1, None)
            for gap, between in spans
            if gap.after and any(begin < end for begin, end in between.values())
        ]

    def _write(self, _name: str, interval: Interval, ranges: list[OffsetRange], *_: Any, **__: Any) -> PinnedInterval:
        self.pinned[interval] = {r.topic_partition: (r.from_offset, r.until_offset) for r in ranges}
        return self._pinned(interval)

    def _first(self, tp: TopicPartition, begin: int) -> int | None:
        return next((o for o in range(max(begin, self.lows[tp]), self._end(tp)) if o not in self.invisible), None)

    def _first_times(self, spans: Any, _rule: object) -> dict[TopicPartition, datetime]:
        firsts = {tp: (self._first(tp, begin), end) for tp, (begin, end) in spans.items()}
        return {tp: START + at * HOUR for tp, (at, end) in firsts.items() if at is not None and at < end}

    def _find_boundaries(self, moment: datetime, spans: Any, _rule: object) -> dict[TopicPartition, Boundary]:
        number = -((START - moment) // HOUR)
        firsts = {tp: (self._first(tp, max(begin, number)), end) for tp, (begin, end) in spans.items()}
        return {tp: Boundary(end if at is None else min(at, end)) for tp, (at, end) in firsts.items()}

    def _end(self, tp: TopicPartition) -> int:
        return self.ends.get(tp, self.end)

    def _commit_of(self, _name: str, _tp: object, _topic_id: str, offset: int) -> CommittedSpan:
        return CommittedSpan(offset, offset + 1, hour(max(offset, self.committed_from)).to_time)

    def _files_covering(
        self, _name: str, ranges: list[OffsetRange], fate: Fate, *, committed_from: datetime
    ) -> list[str]:
        last = hour(max(ranges[0].until_offset - 1, self.committed_from)).to_time
        return [self._write_landing()] if fate == self.fate and last >= committed_from else []

    def _write_landing(self) -> str:
        rows = [(tp.topic, tp.partition, o, START + o * HOUR) for tp in self.lows for o in range(self._end(tp))]
        names = ["kafka_topic", "kafka_partition", "kafka_offset", "kafka_timestamp"]
        table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
        pq.write_table(table, urlsplit(lake.uri("landed.parquet")).path)
        return "landed.parquet"


def in_order(count: int) -> list[Interval]:
    return list(islice(missing_in_order(NEST), count))


def test_gap_s_first_hour_takes_what_is_lost_when_kafka_holds_nothing_of_the_gap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(monkeypatch, {TP: 23 * DAYS})
    history.has_pinned(0, 1)
    history.has_pinned(23 * DAYS, 23 * DAYS + 1)
    assert in_order(9) == [hour(1)]
    assert history.pin(1) == {TP: (1, 23 * DAYS)}
    # Nothing is left to register as empty.
    assert in_order(9) == []


def test_later_hours_are_built_too_when_retention_removed_the_gap_s_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(monkeypatch, {TP: 10 * DAYS, OTHER: 9 * DAYS})
    history.has_pinned(0, 1)
    history.has_pinned(23 * DAYS, 23 * DAYS)
    exact = 10 * DAYS + 1
    assert in_order(3) == [hour(1), hour(exact), hour(exact + 1)]
    # In whatever order they are pinned.
    assert history.pin(exact) == {TP: (exact, exact + 1), OTHER: (exact, exact + 1)}
    assert history.pin(1) == {TP: (1, 10 * DAYS), OTHER: (1, 9 * DAYS)}
    assert in_order(2) == [hour(9 * DAYS), hour(9 * DAYS + 1)]
    assert history.pin(9 * DAYS) == {TP: (10 * DAYS, 10 * DAYS), OTHER: (9 * DAYS, 9 * DAYS + 1)}


def test_gap_s_first_hour_is_built_alone_when_nothing_is_retained_of_one_topic_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(monkeypatch, {TP: 23 * DAYS, OTHER: 10 * DAYS})
    history.has_pinned(0, 1)
    history.has_pinned(23 * DAYS, 23 * DAYS)
    assert in_order(9) == [hour(1)]
    history.pin(1)
    assert in_order(1) == [hour(10 * DAYS)]


def test_gap_s_first_hour_takes_them_when_its_offsets_are_transaction_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(monkeypatch, invisible=range(1, 99))
    history.has_pinned(0, 1)
    history.has_pinned(99, 100)
    assert in_order(9) == [hour(1)]
    assert history.pin(1) == {TP: (1, 99)}
    assert in_order(9) == []


def test_hour_before_the_first_pinned_one_takes_them_when_retention_removed_all_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(monkeypatch, {TP: 100})
    history.has_pinned(99, 100)
    assert in_order(9) == [hour(98)]
    assert history.pin(98) == {TP: (0, 99)}
    assert in_order(9) == []


@pytest.mark.parametrize("has_later", [True, False])
def test_lost_hour_is_refused_and_the_gap_s_first_named_when_it_lies_far_inside_of_the_gap(
    monkeypatch: pytest.MonkeyPatch, has_later: bool
) -> None:
    low = 23 * DAYS
    history = History(monkeypatch, {TP: low})
    history.has_pinned(0, 1)
    if has_later:
        history.has_pinned(low + 50, low + 51)
    for lost in (100, low - 1):
        with pytest.raises(
            OffsetsLost, match=rf"records of {hour(lost)} may be among nest-logs-0 \[1, {low}\)"
        ) as error:
            history.pin(lost)
        first = hour(1)
        assert f"--from {first.from_time:%Y-%m-%dT%H:00:00Z} --to {first.to_time:%Y-%m-%dT%H:00:00Z}" in str(
            error.value
        )
        assert "--source archive" in error.value.remedy
    # Its records were retained.
    assert history.pin(low + 20) == {TP: (low + 20, low + 21)}
    # The remedy leads on.
    assert history.pin(1) == {TP: (1, low)}
    assert history.pin(100) == {TP: (low, low)}


def test_new_hour_is_empty_when_everything_before_it_was_removed_long_after_its_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic without new records, of a schedule that was paused longer than the retention."""
    history = History(monkeypatch, {TP: 100}, end=100)
    history.has_pinned(0, 1)
    assert history.pin(20 * DAYS) == {TP: (100, 100)}
    assert in_order(1) == [hour(1)]


@pytest.mark.parametrize("fate", [Fate.ARCHIVED, Fate.EMPTY, Fate.QUARANTINED])
def test_hour_is_pinned_when_removed_records_are_older_although_they_were_committed_after_it(
    monkeypatch: pytest.MonkeyPatch, fate: Fate
) -> None:
    """A stream that was started again caught up on records that retention removed before anything was pinned."""
    history = History(monkeypatch, {TP: 0, OTHER: 100}, ends={OTHER: 100}, committed_from=200, fate=fate)
    # All that is removed is older than these, although the other topic partition's records in the same file are not.
    for number in (100, 199, 300):
        assert history.pin(number) == {TP: (number, number + 1), OTHER: (100, 100)}
        history.pinned.clear()
    with pytest.raises(OffsetsLost, match=rf"records of {hour(99)} may be among nest-logs-1 \[0, 100\)"):
        history.pin(99)


@pytest.mark.parametrize("damage", ["missing", "damaged", "no file"])
def test_hour_is_refused_when_the_archive_cannot_tell_the_times_of_removed_records(
    monkeypatch: pytest.MonkeyPatch, lake_folder: Path, damage: str
) -> None:
    history = History(monkeypatch, {TP: 0, OTHER: 100}, ends={OTHER: 100}, committed_from=200)
    if damage == "damaged":
        (lake_folder / "landed.parquet").write_bytes(b"nothing")
    landed = [] if damage == "no file" else ["landed.parquet"]
    monkeypatch.setattr(boundaries, "files_covering", lambda *_, **__: landed)
    with pytest.raises(OffsetsLost, match="may be among nest-logs-1"):
        history.pin(199)
    # Everything was committed long before.
    assert history.pin(203) == {TP: (203, 204), OTHER: (100, 100)}
