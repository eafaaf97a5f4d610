"""Notifications to the operators: rows that a report lists and the interval before did not.

The build records what each listing holds; announcing an interval that passed sends what is new in it and marks it as
sent. A crash between the two sends a notification again: its `id` tells that it is the same one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from include import kafka
from include.ledger import listings
from include.ledger.intervals.pins import PinnedInterval
from include.ledger.listings import Listed
from include.pipelines.spec import Listing, Pipeline
from include.times import format_time

MOST = 10_000
"""Rows of a listing that are recorded; nobody reads more notifications than that."""


def note_listed(pinned: PinnedInterval, listing: Listing, rows: Iterable[Mapping[str, Any]]) -> None:
    """Record what a listing of the interval holds; what was recorded and sent before stays so."""
    listed = [Listed(listings.key_of(row, listing.key), row) for row in rows]
    listings.replace_listed(pinned.id, listing.title, listed)


def notify(pipeline: Pipeline, pinned: PinnedInterval) -> int:
    """Send what is newly listed in the interval, once, and return how many were sent. Raises ServiceUnreachable."""
    reports = [report for report in pipeline.reports if isinstance(report, Listing) and report.notify]
    return sum(_notify(pipeline, pinned, listing) for listing in reports)


def _notify(pipeline: Pipeline, pinned: PinnedInterval, listing: Listing) -> int:
    with listings.sending_new(pinned, listing.title) as new:
        if not new:
            return 0
        kafka.create_topic(listing.notify, 1)
        interval = format_time(pinned.interval.from_time)
        return kafka.send(listing.notify, (_message(pipeline, listing, interval, each) for each in new))


def _message(pipeline: Pipeline, listing: Listing, interval: str, listed: Listed) -> tuple[bytes, bytes]:
    body = {
        "id": f"{pipeline.name}/{interval}/{listed.key}",
        "pipeline": pipeline.name,
        "report": listing.title,
        "interval": interval,
        **listed.row,
    }
    return listed.key.encode(), json.dumps(body, sort_keys=True).encode()
