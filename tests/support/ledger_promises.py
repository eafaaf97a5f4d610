"""The README's promises, held against the ledger's tables, the lake and the catalog, by SQL and no code of the ledger.

Each promise is a function whose name an AssertionError begins with.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from include import lake
from include.offsets import OffsetRange, TopicPartition
from tests.support.ledger_world import Row, World, records_of

_QUERIES = {
    "batches": "SELECT b.id, b.token, r.topic_partition, r.from_offset, r.until_offset, r.archived, r.empty, "
    "r.quarantined, r.gaps FROM micro_batches b JOIN micro_batch_ranges r ON r.micro_batch_id = b.id "
    "WHERE b.pipeline = %s AND b.query = 'archive' ORDER BY b.id",
    "positions": "SELECT topic_partition, next_offset FROM positions WHERE pipeline = %s",
    "files": "SELECT b.id, f.fate, f.path, f.removed_at FROM landing_files f "
    "JOIN micro_batches b ON b.id = f.micro_batch_id WHERE b.pipeline = %s",
    "intervals": "SELECT i.id, i.from_time, i.to_time, i.state, r.topic_partition, r.from_offset, r.until_offset "
    "FROM intervals i JOIN interval_ranges r ON r.interval_id = i.id WHERE i.pipeline = %s ORDER BY i.from_time",
    "repins": "SELECT p.interval_id FROM repins p JOIN intervals i ON i.id = p.interval_id WHERE i.pipeline = %s",
    "builds": "SELECT b.id, b.attempt_id, b.interval_id, b.registering_at IS NOT NULL, b.published_at IS NOT NULL, "
    "b.findings FROM builds b JOIN intervals i ON i.id = b.interval_id WHERE i.pipeline = %s ORDER BY b.id",
    "revisions": "SELECT v.table_partition, v.id, v.state, v.location, v.attempt_id, v.build_id, v.interval_id "
    "FROM revisions v JOIN intervals i ON i.id = v.interval_id WHERE i.pipeline = %s",
}

Span = tuple[int, int]


@dataclass(frozen=True)
class Revision:
    partition: str
    id: str
    state: str
    location: str
    attempt: int
    build: int
    interval: int


@dataclass
class Pinned:
    """An interval as it is in the ledger."""

    times: tuple[datetime, datetime]
    state: str
    spans: dict[int, Span] = field(default_factory=dict)


class Seen:
    """The ledger of one pipeline as a bystander reads it."""

    def __init__(self, world: World, cursor: Any) -> None:
        self.world = world
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        for name, query in _QUERIES.items():
            cursor.execute(query, (world.pipeline.name,))
            self.rows[name] = cursor.fetchall()
        self.revisions = [Revision(*row) for row in self.rows["revisions"]]
        self.registered = {each.partition: each for each in self.revisions if each.state == "registered"}
        self.intervals: dict[int, Pinned] = {}
        for key, begin, end, state, tp, low, high in self.rows["intervals"]:
            self.intervals.setdefault(key, Pinned((begin, end), state)).spans[tp] = (low, high)
        self.begun = {interval for _, _, interval, begun, done, _ in self.rows["builds"] if begun and not done}
        """Intervals with a registration that was begun and is not finished."""
        self.published = {build for build, _, _, _, done, _ in self.rows["builds"] if done}

    def archived(self, spans: dict[int, Span]) -> set[Row]:
        """The records of the offsets that have a row."""
        topic = self.world.partitions[0].topic
        return records_of((OffsetRange(TopicPartition(topic, p), *span) for p, span in spans.items()), "archived")

    def one_writer(self) -> None:
        """Tokens grow with the commits: nobody commits after a later driver has taken the lease and committed."""
        tokens = [row[1] for row in self.rows["batches"]]
        assert tokens == sorted(tokens), f"one_writer: fencing tokens {tokens}"

    def every_offset_one_fate(self) -> None:
        """The commits tile from the beginning to the position, and count each offset by the fate that it has."""
        ends: Counter[int] = Counter()
        for _, _, tp, begin, until, *counted in self.rows["batches"]:
            assert begin == ends[tp], f"every_offset_one_fate: {tp} from {begin}, the commit before ended at {ends[tp]}"
            ends[tp] = until
            span = [OffsetRange(TopicPartition("any", tp), begin, until)]
            fates = [len(records_of(span, fate)) for fate in ("archived", "empty", "quarantined", "gap")]
            assert counted == fates, f"every_offset_one_fate: {tp} [{begin}, {until}) counted {counted}, is {fates}"
        for tp, position in self.rows["positions"]:
            assert position == ends[tp], f"every_offset_one_fate: position {position} of {tp}, committed {ends[tp]}"

    def intervals_tile(self) -> None:
        """Later intervals begin where earlier ones end, neighbours at once, and none beyond what is archived."""
        at = dict(self.rows["positions"])
        for before, after in pairwise(self.intervals.values()):
            adjacent = before.times[1] == after.times[0]
            for tp in before.spans.keys() | after.spans.keys():
                end, begin = before.spans.get(tp, (0, 0))[1], after.spans.get(tp, (0, 0))[0]
                assert begin == end if adjacent else begin >= end, f"intervals_tile: {tp} {before} {after}"
        for each in self.intervals.values():
            for tp, (_, until) in each.spans.items():
                assert until <= at.get(tp, 0), f"intervals_tile: {each} beyond the archive's {at}"

    def pinned_once(self, before: Seen) -> None:
        """Ranges stay as they are; those that are pinned again begin where they began, grow, and are on record."""
        for key, was in before.intervals.items():
            now = self.intervals[key]
            if now.spans != was.spans:
                recorded = [interval for (interval,) in self.rows["repins"]].count(key)
                known = [interval for (interval,) in before.rows["repins"]].count(key)
                assert recorded > known, f"pinned_once: {was} became {now}"
                grown = all(
                    now.spans[tp][0] == low and now.spans[tp][1] >= high for tp, (low, high) in was.spans.items()
                )
                assert grown, f"pinned_once: {was} became {now}"

    def registered_once(self) -> None:
        """At most one revision of a table partition is registered, and its files lie there."""
        partitions = Counter(each.partition for each in self.revisions if each.state == "registered")
        assert set(partitions.values()) <= {1}, f"registered_once: {partitions}"
        for each in self.registered.values():
            assert lake.exists(f"{each.location}/part.parquet"), f"registered_once: no files of {each}"

    def latest_build_counts(self) -> None:
        """Of what an attempt built, only the latest build may still be published."""
        latest = {attempt: build for build, attempt, *_ in self.rows["builds"]}
        for each in self.revisions:
            if each.state in ("built", "validated"):
                assert each.build == latest[each.attempt], f"latest_build_counts: {each}, latest {latest[each.attempt]}"

    def published_is_explained(self) -> None:
        """No registration was begun of a build that has something unexplained."""
        for build, _, _, begun, done, findings in self.rows["builds"]:
            unexplained = findings["reconciliation"]["unexplained"]
            assert not (unexplained and (begun or done)), f"published_is_explained: build {build}: {findings}"

    def visible_once(self) -> None:
        """A reader of the catalog finds no row twice; of each published interval all rows of its latest build."""
        rows: Counter[Row] = Counter()
        of_interval: dict[str, set[Row]] = defaultdict(set)
        for partition, row in self.world.visible():
            rows[row] += 1
            of_interval[partition.split("interval=")[1]].add(row)
        twice = [row for row, times in rows.items() if times > 1]
        assert not twice, f"visible_once: {twice} are there twice"
        published = {interval: findings for _, _, interval, _, done, findings in self.rows["builds"] if done}
        for key, findings in published.items():
            if key not in self.begun:
                label = self.intervals[key].times[0].strftime("%Y-%m-%dT%H")
                spans = {r["partition"]: (r["from_offset"], r["until_offset"]) for r in findings["ranges"]}
                assert of_interval[label] == self.archived(spans), f"visible_once: interval {label} of {findings}"
        for key, each in self.intervals.items():
            assert each.state != "registered" or key in published, f"visible_once: {each} was never published"

    def removed_landing_is_registered(self) -> None:
        """Every archived record lies in its landing file, or that is removed and a registered revision has its row."""
        registered = {row for each in self.registered.values() for row in self.world.rows_at[each.location]}
        spans: dict[int, dict[int, Span]] = defaultdict(dict)
        for batch, _, tp, begin, until, *_ in self.rows["batches"]:
            spans[batch][tp] = (begin, until)
        for batch, fate, path, removed in self.rows["files"]:
            if removed is not None and fate == "archived":
                gone = self.archived(spans[batch]) - registered
                assert not gone, f"removed_landing_is_registered: {gone} of {path} are nowhere"
            elif removed is None:
                assert lake.exists(lake.uri(path)), f"removed_landing_is_registered: {path} is gone"

    def failed_attempt_touches_nothing(self, before: Seen) -> None:
        """The registered revisions are those that were registered before."""
        was = {key: each.id for key, each in before.registered.items()}
        now = {key: each.id for key, each in self.registered.items()}
        assert now == was, f"failed_attempt_touches_nothing: {was} became {now}"

    def check(self, before: Seen | None) -> None:
        """Assert every promise that a state, or a step from one to the next, can break."""
        self.one_writer()
        self.every_offset_one_fate()
        self.intervals_tile()
        self.registered_once()
        self.latest_build_counts()
        self.published_is_explained()
        self.visible_once()
        self.removed_landing_is_registered()
        if before is not None:
            self.pinned_once(before)
