"""Until when tables and topic partitions are complete, by the ledger's views, in plain SQL.

Complete is what lies in consecutive registered intervals. An interval that failed, is only pinned, or was never pinned
although offsets lie in it ends that, however many are registered after it; the rest of a topic that was deleted ends it
until the next interval is registered. An hour without any record is complete as soon as its end was pinned. A rerun
leaves its interval registered; one that is pinned again is open until it is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from psycopg2.extensions import cursor

from include.ledger.connection import reading
from include.offsets import TopicPartition
from include.times import format_time

Kind = Literal["pinned", "failed", "missing", "rest", "built without it"]


@dataclass(frozen=True)
class Open:
    """The first thing that is not registered."""

    kind: Kind
    """`missing`: time that nobody has pinned, with offsets in it; `rest`: registered with the rest of a topic that was
    deleted, and no interval after it is registered, which has the other records of that time; `built without it`:
    registered, by code that did not declare the table; else the state of the interval."""
    from_time: datetime
    to_time: datetime

    def __str__(self) -> str:
        what = "the rest of a deleted topic, completed by the next interval" if self.kind == "rest" else self.kind
        return f"{format_time(self.from_time)} to {format_time(self.to_time)}, which is {what}"

    def as_json(self) -> dict[str, str]:
        """Return a JSON object."""
        return {"state": self.kind, "from": format_time(self.from_time), "to": format_time(self.to_time)}


@dataclass(frozen=True)
class PartitionCompleteness:
    """Until when a topic partition's records are in the tables; for topic partitions of the last pinned interval."""

    topic_partition: TopicPartition
    topic_id: str
    complete_until: datetime | None
    complete_offset: int
    """All offsets below are registered."""


@dataclass(frozen=True)
class Completeness:
    """Until when the tables of a pipeline are complete."""

    pipeline: str
    complete_from: datetime | None = None
    """Beginning of the time in question: by default the first pinned interval's."""
    complete_until: datetime | None = None
    """None when nothing is registered there, or its first interval is open."""
    waits_for: Open | None = None
    """None when every pinned interval since is registered; the next one is not pinned yet."""
    begins: datetime | None = None
    """Where a table begins that has nothing of its pipeline's earlier intervals."""

    def __str__(self) -> str:
        until = format_time(self.complete_until) if self.complete_until else "no time yet"
        begins = f", from {format_time(self.begins)} on" if self.begins else ""
        waits = f"; waits for {self.waits_for}" if self.waits_for else ""
        return f"{self.pipeline}: complete until {until}{begins}{waits}"

    def reaches(self, moment: datetime) -> bool:
        """Return whether everything before the moment is in the tables, and there is something of it."""
        has_begun = self.begins is None or self.begins < moment
        return has_begun and self.complete_until is not None and self.complete_until >= moment

    def as_json(self) -> dict[str, object]:
        """Return a JSON object."""
        begin, end = (format_time(each) if each else None for each in (self.complete_from, self.complete_until))
        waits = self.waits_for.as_json() if self.waits_for else None
        return {"pipeline": self.pipeline, "from": begin, "until": end, "waits_for": waits}


_OF_PIPELINE = """
    SELECT complete_from, complete_until, waits_for, waits_from, waits_to
    FROM pipeline_completeness WHERE pipeline = %s
"""

_SINCE = """
    SELECT p.last_end, w.kind, w.from_time, w.to_time, w.before_end
    FROM (
        SELECT min(from_time) AS first_begin, max(to_time) AS last_end FROM intervals WHERE pipeline = %(pipeline)s
    ) p
    LEFT JOIN LATERAL (
        SELECT kind, from_time, to_time, before_end FROM waiting_spans
        WHERE pipeline = %(pipeline)s AND to_time > %(since)s ORDER BY to_time LIMIT 1
    ) w ON TRUE
    WHERE p.first_begin <= %(since)s AND p.last_end > %(since)s
"""

_OF_PARTITIONS = """
    SELECT topic, topic_partition, topic_id, complete_until, complete_offset
    FROM topic_partition_completeness WHERE pipeline = %s ORDER BY topic, topic_partition
"""


def completeness(pipeline: str, since: datetime | None = None) -> Completeness:
    """Return until when the pipeline's tables are complete from `since` on, by default from its first interval.

    With `since`, what lies before it does not count: last year's hole does not hold up a reader of this year.
    """
    with reading() as ledger:
        if since is not None:
            return _since(ledger, pipeline, since)
        ledger.execute(_OF_PIPELINE, [pipeline])
        row = ledger.fetchone()
        return Completeness(pipeline, row[0], row[1], _open(*row[2:])) if row else Completeness(pipeline)


def _since(ledger: cursor, pipeline: str, since: datetime) -> Completeness:
    ledger.execute(_SINCE, {"pipeline": pipeline, "since": since})
    row = ledger.fetchone()
    if row is None:
        return Completeness(pipeline)
    last_end, kind, from_time, to_time, before_end = row
    first = _open(kind, from_time, to_time)
    until = last_end if first is None else before_end
    if until is None or until <= since:
        return Completeness(pipeline, waits_for=first)
    return Completeness(pipeline, since, until, first)


def _open(kind: Kind | None, from_time: datetime, to_time: datetime) -> Open | None:
    return Open(kind, from_time, to_time) if kind is not None else None


def partition_completeness(pipeline: str) -> list[PartitionCompleteness]:
    """Return until when each topic partition of the last pinned interval is complete, in order."""
    with reading() as ledger:
        ledger.execute(_OF_PARTITIONS, [pipeline])
        return [
            PartitionCompleteness(TopicPartition(topic, number), *rest) for topic, number, *rest in ledger.fetchall()
        ]
