"""Compare tables' properties of completeness with the ledger. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from include.completeness import differences
from include.doctor.disagreement import REPAIR, Disagreement
from include.errors import MetadataGone, UsageError
from include.ledger.intervals.builds import begun_registrations
from include.pipelines.spec import Pipeline


def check_completeness(pipeline: Pipeline) -> Iterator[Disagreement]:
    """Yield the tables with other times than the ledger, unless an interval is being registered.

    An Iceberg table of somebody else, or without its metadata, is reported by `check_open_tables`.
    """
    if begun_registrations(pipeline.name):
        return
    try:
        for table, what in differences(pipeline):
            yield Disagreement(
                "completeness told otherwise",
                pipeline.name,
                what,
                f"{REPAIR}, or the next publication",
                "tell completeness",
                table,
            )
    except (UsageError, MetadataGone):
        return
