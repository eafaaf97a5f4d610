"""What a random walk over a pipeline's commands knows of its topic, and what must be true wherever the walk has ended.

It reads the topic with a consumer of its own before records go, and judges each record as `audit` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from tests.conftest import Home
from tests.support import audit
from tests.support.audit import Record
from tests.support.registered import in_catalog, in_ledger

PIPELINE, TOPIC = "nest_cameras", "nest-logs"
FATES = ("archived", "empty", "quarantined", "gaps", "erased")
Offset = tuple[str, int, int]
"""Topic id, topic partition, offset."""
Range = tuple[str, int, int, int]
"""Topic id, topic partition, first offset, offset after the last."""


@dataclass
class WalkedTopic:
    """Every record that was seen in any incarnation of the topic."""

    home: Home
    seen: dict[Offset, Record] = field(default_factory=dict)

    def topic_id(self) -> str:
        client = AdminClient({"bootstrap.servers": self.home.kafka})
        described = client.describe_topics(TopicCollection([TOPIC]), request_timeout=20)[TOPIC]
        return str(described.result(20).topic_id)

    def look(self) -> None:
        """Remember what the topic holds now."""
        incarnation = self.topic_id()
        now = audit.read_topic(self.home.kafka, TOPIC)
        self.seen |= {(incarnation, partition, offset): record for (_, partition, offset), record in now.items()}

    def check(self) -> Counter[str]:
        """Return how many offsets of each fate the archive has passed, all of them as the records say.

        Micro-batches tile each incarnation to its end as far as it is read, no interval's range meets another's, and
        what is registered holds each row of its ranges once, in the archive as in the view.
        """
        self.look()
        fates = _Fates(self)
        passed = self._check_micro_batches(fates)
        self._check_intervals(fates)
        assert in_catalog(self.home.database) == in_ledger(self.home.database, "registered")
        assert in_ledger(self.home.database, "registering") == set()
        assert self.home.ledger("SELECT count(*) FROM replays") == [(0,)]
        return passed

    def _check_micro_batches(self, fates: _Fates) -> Counter[str]:
        at: dict[tuple[str, int], int] = {}
        passed: Counter[str] = Counter()
        commits = self.home.ledger(
            f"SELECT r.topic_id, r.topic_partition, r.from_offset, r.until_offset, {_columns()} "
            "FROM micro_batch_ranges r JOIN micro_batches b ON b.id = r.micro_batch_id "
            "WHERE b.pipeline = %s AND b.query = 'archive' ORDER BY b.id",
            PIPELINE,
        )
        for topic_id, partition, begin, until, *counts in commits:
            assert at.get((topic_id, partition), begin) == begin, f"{partition} of {topic_id}: not from {begin}"
            at[topic_id, partition] = until
            passed += fates.check((topic_id, partition, begin, until), counts)
        now = self.topic_id()
        behind = [each for each in self.seen if each[0] == now and each[2] >= at.get(each[:2], 0)]
        assert behind == [], "records that no micro-batch has passed"
        return passed

    def _check_intervals(self, fates: _Fates) -> None:
        owner: dict[tuple[str, int], list[tuple[int, int]]] = {}
        registered = self.home.ledger(
            "SELECT id, verdict FROM intervals WHERE pipeline = %s AND state = 'registered' ORDER BY from_time",
            PIPELINE,
        )
        for interval, verdict in registered:
            assert verdict["reconciliation"]["unexplained"] == 0, verdict
            ranges = self.home.ledger(
                f"SELECT topic_id, topic_partition, from_offset, until_offset, {_columns()} FROM interval_ranges r "
                "WHERE interval_id = %s",
                interval,
            )
            records: dict[tuple[str, int, int], Record] = {}
            for *bounds, archived, empty, quarantined, gaps, erased in ranges:
                of = topic_id, partition, begin, until = tuple(bounds)
                owner.setdefault((topic_id, partition), []).append((begin, until))
                fates.check(of, [archived, empty, quarantined, gaps, erased])
                records |= {(TOPIC, *each[1:]): self.seen[each] for each in _offsets(of) if fates.is_archived(each)}
            self._check_rows(interval, records)
        for log, taken in owner.items():
            for (_, until), (begin, _) in zip(sorted(taken), sorted(taken)[1:], strict=False):
                assert until <= begin, f"{log}: offsets before {until} are in two intervals"

    def _check_rows(self, interval: int, records: dict[tuple[str, int, int], Record]) -> None:
        """Compare what is registered of an interval, in the archive table and in the view's, with its records."""
        locations: dict[str, list[str]] = {PIPELINE: [], f"{PIPELINE}_hourly_counts": []}
        for table, location in self.home.ledger(
            "SELECT table_name, location FROM revisions WHERE interval_id = %s AND state = 'registered'", interval
        ):
            locations.setdefault(table, []).append(location)
        rows = audit.read_parquet(locations[PIPELINE])
        found = audit.identities(rows) if rows.num_rows else Counter()
        assert found == Counter(audit.expected(records).rows.keys()), f"rows of interval {interval}"
        counts: Counter[tuple[str, str]] = Counter()
        for row in audit.read_parquet(locations[f"{PIPELINE}_hourly_counts"]).to_pylist():
            counts[row["zip_code"], row["window"]["start"].strftime("%Y-%m-%dT%H:%M:%SZ")] += row["count"]
        assert counts == audit.sightings(records, audit.zip_codes()), f"counts of interval {interval}"


class _Fates:
    """The fate of each offset, by what was seen of the topic, and by the losses and erasures that persons asked for."""

    def __init__(self, topic: WalkedTopic) -> None:
        judged = audit.expected(topic.seen)
        self._fate: dict[Offset, str] = dict.fromkeys(judged.archived, "archived")
        self._fate |= dict.fromkeys(judged.empty, "empty")
        self._fate |= dict.fromkeys(judged.bad, "quarantined")
        lost = topic.home.ledger(
            "SELECT topic_id, topic_partition, from_offset, until_offset FROM losses "
            "WHERE pipeline = %s AND accepted_at IS NOT NULL",
            PIPELINE,
        )
        for each in lost:
            self._fate |= dict.fromkeys(_offsets(each), "gaps")
        erased = "SELECT topic_id, topic_partition, record_offset FROM erased_records WHERE pipeline = %s"
        self._fate |= dict.fromkeys(topic.home.ledger(erased, PIPELINE), "erased")

    def is_archived(self, offset: Offset) -> bool:
        return self._fate.get(offset) == "archived"

    def check(self, offsets: Range, counts: list[int | None]) -> Counter[str]:
        """Compare the ledger's counts of a range with the records'; an offset without a record is a gap."""
        wanted = Counter(self._fate.get(each, "gaps") for each in _offsets(offsets))
        told = Counter(dict(zip(FATES, (count or 0 for count in counts), strict=True)))
        assert told == wanted, f"fates of {offsets}: the ledger says {told}, the records say {wanted}"
        return wanted


def _offsets(of: Range) -> Iterator[Offset]:
    topic_id, partition, begin, until = of
    return ((topic_id, partition, offset) for offset in range(begin, until))


def _columns() -> str:
    return ", ".join(f"r.{fate}" for fate in FATES)
