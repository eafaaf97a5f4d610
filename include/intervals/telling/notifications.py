"""Notifications to the operators: rows that a report lists and the interval before did not.

The build records what each listing holds; announcing an interval that passed sends what is new in it and marks it as
sent. A crash between the two sends a notification again: its `id` shows that it is the same one.

For a watched report the archive query notes with each micro-batch what goes down and what is up again. The stream's
driver sends it within a second of the commit; what a driver left unsent, the next one or an interval sends.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from include import kafka
from include.ledger import listings
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.listings import Listed
from include.ledger.streams import outages
from include.ledger.streams.outages import Untold
from include.pipelines.spec import Listing, Pipeline
from include.times import format_time

MOST = 10_000
"""How many rows of a listing are recorded; nobody reads more notifications than that."""


def note_listed(
    pipeline: Pipeline, pinned: PinnedInterval, listing: Listing, rows: Iterable[Mapping[str, Any]]
) -> None:
    """Record what a listing of the interval holds; what was recorded and sent before stays so."""
    listed = [Listed(listings.key_of(row, listing.key), row) for row in rows]
    listings.replace_listed(pinned.id, listing.title, listed, pipeline.archive.former_in(listing.key))


def notify(pipeline: Pipeline, pinned: PinnedInterval) -> int:
    """Send what is newly listed in the interval, once, and return how many were sent. Raises ServiceUnreachable.

    The stream notifies about watched reports; what it found but could no longer send is sent here.
    """
    reports = [report for report in pipeline.reports if isinstance(report, Listing) and report.notify]
    listed = sum(_notify(pipeline, pinned, report) for report in reports if not report.up)
    return listed + send_outages(pipeline)


def _notify(pipeline: Pipeline, pinned: PinnedInterval, listing: Listing) -> int:
    with listings.sending_new(pinned, listing.title, pipeline.archive.former_in(listing.key)) as new:
        if not new:
            return 0
        kafka.create_topic(listing.notify, 1)
        interval = format_time(pinned.interval.from_time)
        return kafka.send(listing.notify, (_message(pipeline, listing, interval, each) for each in new))


def _message(pipeline: Pipeline, listing: Listing, interval: str, listed: Listed) -> tuple[bytes, bytes]:
    body = {
        **listed.row,
        # Two listings may have one topic and equal keys.
        "id": f"{pipeline.name}/{interval}/{listing.title}/{listed.key}",
        "pipeline": pipeline.name,
        "report": listing.title,
        "interval": interval,
    }
    return listed.key.encode(), json.dumps(body, sort_keys=True).encode()


def send_outages(pipeline: Pipeline) -> int:
    """Send the changes not sent yet, each once, and return how many messages went out. Raises ServiceUnreachable."""
    topics = {report.title: report.notify for report in pipeline.watched_reports}
    sent, more = 0, bool(topics)
    while more:
        with outages.sending_new(pipeline.name) as untold:
            messages: dict[str, list[tuple[bytes, bytes]]] = defaultdict(list)
            for each in untold:
                # A report that is no longer declared has no topic: nobody waits for it.
                if topic := topics.get(each.change.report):
                    messages[topic].append(_outage_message(pipeline, each))
            for topic, of_topic in messages.items():
                kafka.create_topic(topic, 1)
                sent += kafka.send(topic, of_topic)
            more = len(untold) >= outages.MOST
    return sent


def _outage_message(pipeline: Pipeline, untold: Untold) -> tuple[bytes, bytes]:
    change = untold.change
    state = "up" if change.is_up else "down"
    body = {
        **change.row,
        "id": f"{pipeline.name}/outage-{untold.outage}/{state}",
        "pipeline": pipeline.name,
        "report": change.report,
        "state": state,
        "at": format_time(change.at),
        "kafka_topic": change.place.topic,
        "kafka_partition": change.place.partition,
        "kafka_offset": change.place.offset,
    }
    return change.key.encode(), json.dumps(body, sort_keys=True).encode()
