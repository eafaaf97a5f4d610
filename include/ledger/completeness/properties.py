"""Completeness as properties of tables: for readers who look at the catalog alone."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import cast

from psycopg2.extensions import cursor

from include.ledger.completeness import PartitionCompleteness, partition_completeness
from include.ledger.connection import asking_by, reading
from include.ledger.database import session
from include.ledger.intervals import builds
from include.ledger.intervals.builds import Registration
from include.times import format_time

UNTIL = "tidemark.complete_until"
"""Key of the time until which a table is complete; a table that is not complete until any time has none."""

BY_PARTITION = "tidemark.complete_until_by_partition"
"""Key of the times per topic partition, as JSON: topic to runs of partitions, like `0-9`, to time."""

KEYS = (UNTIL, BY_PARTITION)

LONGEST = 32_000
"""Maximum length of a value: the most characters that the Hive metastore allows for a property."""

Properties = dict[str, dict[str, str]]
"""The properties of each table in which something was ever registered."""

_OF_TABLES = "SELECT table_name, complete_until FROM table_completeness WHERE pipeline = %s"


def table_properties(pipeline: str) -> Properties:
    """Return the properties that the pipeline's tables must have, by the ledger."""
    with reading() as ledger:
        ledger.execute(_OF_TABLES, [pipeline])
        until = dict(ledger.fetchall())
        by_partition = _runs(partition_completeness(pipeline))
    also = {BY_PARTITION: by_partition} if len(by_partition) <= LONGEST else {}
    return {table: {UNTIL: format_time(time), **also} if time is not None else {} for table, time in until.items()}


def properties_after(registration: Registration) -> Properties:
    """Return the properties that they must have once a registration is finished. Nothing is changed."""
    with session() as ledger:
        builds.finish(ledger, registration)
        ledger.flush()
        with asking_by(cast(cursor, ledger.connection().connection.cursor())):
            told = table_properties(registration.pinned.pipeline)
        ledger.rollback()
    return told


def _runs(partitions: Iterable[PartitionCompleteness]) -> str:
    """Join adjacent partitions with the same time: the value stays short for wide topics too."""
    topics: dict[str, dict[str, str]] = {}
    known = [each for each in partitions if each.complete_until is not None]
    begins = [0, *(n for n, (a, b) in enumerate(pairwise(known), 1) if not _go_together(a, b)), len(known)]
    for first, beyond in pairwise(begins if known else ()):
        begin, end = known[first].topic_partition, known[beyond - 1].topic_partition
        time = known[first].complete_until
        assert time is not None
        run = str(begin.partition) if begin == end else f"{begin.partition}-{end.partition}"
        topics.setdefault(begin.topic, {})[run] = format_time(time)
    return json.dumps(topics, separators=(",", ":"), sort_keys=True)


def _go_together(one: PartitionCompleteness, other: PartitionCompleteness) -> bool:
    a, b = one.topic_partition, other.topic_partition
    return (a.topic, a.partition + 1, one.complete_until) == (b.topic, b.partition, other.complete_until)
