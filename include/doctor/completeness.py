"""Compare tables' properties of completeness with the ledger. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from include.completeness import differences
from include.doctor.disagreement import REPAIR, Disagreement
from include.errors import MetadataGone, UsageError
from include.ledger.inventory import begun_intervals
from include.monitor.history.remedies import run_command
from include.pipelines.spec import Pipeline


def check_completeness(pipeline: Pipeline) -> Iterator[Disagreement]:
    """Yield begun registrations that nobody goes on with, and the tables with other times than the ledger.

    The latter unless an interval is being registered. An Iceberg table of somebody else, or without its metadata, is
    reported by `check_open_tables`.
    """
    publishing, left = begun_intervals(pipeline.name)
    for each in left:
        yield Disagreement(
            "registration not finished",
            pipeline.name,
            f"{each.interval}: its registration was begun and is not finished",
            f"the next publication finishes it, or logs why not; then {run_command(pipeline.name, each.interval)}",
            interval=each.interval,
        )
    if publishing:
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
