"""Notifications to the operators: rows that a report lists and the interval before did not.

The build records what each listing holds, which counts once the build is registered; announcing an interval that
passed sends what is new in it and marks it as sent. A crash between the two sends a notification again: its `id` shows
that it is the same one.

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
from include.ledger.listings import Listed, ListedReport
from include.ledger.streams import outages
from include.ledger.streams.outages import Untold
from include.pipelines.spec import Listing, Pipeline
from include.times import format_time

Message = tuple[str, dict[str, Any]]
"""Key and body of a notification."""

_LEAST = 16
"""Bytes that are kept of every value."""

MOST = 10_000
"""How many rows of a listing are recorded; nobody reads more notifications than that."""


def listed_of(listing: Listing, rows: Iterable[Mapping[str, Any]]) -> ListedReport:
    """Return what a listing of an interval holds, as the ledger records it with the build.

    Null is shown as an empty text; a key tells the two apart.
    """
    listed = []
    for row in rows:
        shown = {name: listings.plain(value) for name, value in row.items()}
        key = {name: None if row[name] is None else shown[name] for name in listing.key}
        listed.append(Listed(listings.key_of(key, listing.key), shown))
    return ListedReport(listing.title, tuple(listed))


def notify(pipeline: Pipeline, pinned: PinnedInterval) -> int:
    """Send what is newly listed in the interval, once, and return how many were sent. Raises ServiceUnreachable.

    Also what is newly listed in the next one, where that was registered first: it was compared with an earlier one.

    The stream notifies about watched reports; what it found but could no longer send is sent here.
    """
    reports = [report for report in pipeline.reports if isinstance(report, Listing) and report.notify]
    listings_of_rows = [report for report in reports if not report.up]
    later = listings.registered_too_early(pinned) if listings_of_rows else None
    listed = sum(
        _notify(pipeline, each, report) for each in (pinned, later) if each is not None for report in listings_of_rows
    )
    return listed + send_outages(pipeline)


def _notify(pipeline: Pipeline, pinned: PinnedInterval, listing: Listing) -> int:
    former = pipeline.archive.former_in(listing.key)
    with listings.sending_new(pinned, listing.title, former, MOST, listing.key) as new:
        if not new:
            return 0
        kafka.create_topic(listing.notify, 1)
        interval = format_time(pinned.interval.from_time)
        messages = (_message(pipeline, listing, interval, each) for each in new)
        return _send(listing.notify, messages)


def _send(topic: str, messages: Iterable[Message]) -> int:
    """Send keys and bodies, shortened where one is larger than the topic takes: it would hold back all others."""
    limits = kafka.topic_limits(topic)
    fitted = ((key.encode(), fitting(body, limits.largest - len(key.encode()))) for key, body in messages)
    return kafka.send(topic, fitted, limits.batch)


def fitting(body: Mapping[str, Any], most: int) -> bytes:
    """Return the body as JSON of at most so many bytes: long values are cut, and `shortened` names their fields.

    The `id`, which identifies the notification, stays whole.
    """
    value = _json(body)
    kept = most
    while len(value) > most and kept > _LEAST:
        kept //= 2
        long = {name: each for name, each in body.items() if name != "id" and len(_json(each)) > kept}
        shortened = {name: _beginning(each, kept) for name, each in long.items()}
        value = _json({**body, **shortened, "shortened": sorted(shortened)})
    return value


def _beginning(value: object, most: int) -> str:
    whole = value.encode(errors="backslashreplace") if isinstance(value, str) else _json(value)
    return whole[:most].decode(errors="ignore") + "…"


def _json(value: object) -> bytes:
    # A lone half of a pair of surrogates has no UTF-8; its escape is JSON.
    return json.dumps(value, sort_keys=True, ensure_ascii=False).encode(errors="backslashreplace")


def _message(pipeline: Pipeline, listing: Listing, interval: str, listed: Listed) -> Message:
    body = {
        **listed.row,
        # Two listings may have one topic and equal keys.
        "id": f"{pipeline.name}/{interval}/{listing.title}/{listed.key}",
        "pipeline": pipeline.name,
        "report": listing.title,
        "interval": interval,
    }
    return listed.key, body


def send_outages(pipeline: Pipeline) -> int:
    """Send the changes not sent yet, each once, and return how many messages went out. Raises ServiceUnreachable."""
    topics = {report.title: report.notify for report in pipeline.watched_reports}
    sent, more = 0, bool(topics)
    while more:
        with outages.sending_new(pipeline.name) as untold:
            messages: dict[str, list[Message]] = defaultdict(list)
            for each in untold:
                # A report that is no longer declared has no topic: nobody waits for it.
                if topic := topics.get(each.change.report):
                    messages[topic].append(_outage_message(pipeline, each))
            for topic, of_topic in messages.items():
                kafka.create_topic(topic, 1)
                sent += _send(topic, of_topic)
            more = len(untold) >= outages.MOST
    return sent


def _outage_message(pipeline: Pipeline, untold: Untold) -> Message:
    change = untold.change
    state = "up" if change.is_up else "down"
    body = {
        **change.row,
        "id": f"{pipeline.name}/{change.report}/outage-{untold.outage}/{state}",
        "pipeline": pipeline.name,
        "report": change.report,
        "state": state,
        "at": format_time(change.at),
        "kafka_topic": change.place.topic,
        "kafka_partition": change.place.partition,
        "kafka_offset": change.place.offset,
    }
    return change.key, body
