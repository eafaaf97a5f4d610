"""Compare Iceberg and Delta tables with the ledger. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from include.catalog import DATABASE
from include.catalog.delta_view import lag_of_view
from include.doctor.disagreement import REPAIR, Disagreement
from include.ledger.intervals import revisions
from include.pipelines.spec import Pipeline
from include.times import Interval

MANY = 20
"""How many intervals that a Delta table lacks are named one by one."""


def check_open_tables(pipeline: Pipeline) -> Iterator[Disagreement]:
    """Yield how a pipeline's Iceberg tables differ from the ledger; PyIceberg is imported only if there are any."""
    if not pipeline.iceberg_tables:
        return
    from include.iceberg.examine import deviations

    for each in deviations(pipeline):
        yield Disagreement(
            "Iceberg table differs",
            pipeline.name,
            each.what,
            each.remedy or f"{REPAIR}, or the next publication of the interval",
            "commit to Iceberg" if each.can_be_restored else "",
            each.table,
        )


def check_delta_table(pipeline: Pipeline) -> Iterator[Disagreement]:
    """Yield the registered intervals that a pipeline's Delta table lacks, by what the ledger has noted, and its view.

    Many are one disagreement: the table was declared later than they were registered.
    """
    if not pipeline.archive.delta:
        return
    left_out = [each.interval for each in revisions.left_out_of_delta(pipeline.name)]
    lacks = f"{DATABASE}.{pipeline.delta_view} lacks the registered rows of"
    found: list[tuple[str, Interval | None]] = [(f"{lacks} {each}", each) for each in left_out]
    if len(found) > MANY:
        found = [(f"{lacks} {len(left_out)} intervals, the first of them {left_out[0]}", None)]
    if lag := lag_of_view(pipeline):
        found.append((lag, None))
    for what, interval in found:
        yield Disagreement(
            "Delta table lacks rows",
            pipeline.name,
            what,
            f"{REPAIR}, or the next publication of the pipeline",
            "put into Delta",
            pipeline.table,
            interval=interval,
        )
