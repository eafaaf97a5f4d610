"""What watched reports find down, before a stream goes on: an outage ends by the key with which it began."""

from __future__ import annotations

import json
import logging

from include.errors import UsageError
from include.ledger import listings
from include.ledger.streams import outages
from include.pipelines.spec import Pipeline


def check_watched_things(pipeline: Pipeline) -> None:
    """Raise UsageError when things are down by another key than their report declares: no row would find them up.

    Warn of things that are down by a report that is no longer watched: nothing ends their outages either.
    """
    watched = [report.title for report in pipeline.watched_reports]
    for title, down in outages.open_of_others(pipeline.name, watched).items():
        logging.getLogger("tidemark").warning(
            "%s: %d outages of the report %r last, which is no longer watched: their end is not reported; "
            "to have it reported, declare the report with its title, key and `up` again until they have ended",
            pipeline.name,
            down,
            title,
        )
    for report in pipeline.watched_reports:
        former = pipeline.archive.former_in(report.key)
        keys = [json.loads(listings.present_key(k, former)) for k in outages.open_keys(pipeline.name, report.title)]
        others = [sorted(names) for names in keys if names.keys() != set(report.key)]
        if others:
            raise UsageError(
                f"the report {report.title!r} has the key {', '.join(report.key)}, but {len(others)} outages last that "
                f"began by the key {', '.join(min(others))}: nothing would end them",
                remedy="take the change back until they have ended, or give the report another title: then the end of "
                "these outages is not reported",
                pipeline=pipeline.name,
            )
