"""Compare what PostgreSQL serves of views with the ledger. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from include.doctor.disagreement import REPAIR, Disagreement
from include.ledger.inventory import begun_intervals
from include.pipelines.spec import Pipeline
from include.serving.follow import differences, lost_tables


def check_served_views(pipeline: Pipeline) -> Iterator[Disagreement]:
    """Yield the served views whose rows are lost, or whose registered values are not the ledger's.

    None while an interval is being registered.
    """
    if begun_intervals(pipeline.name)[0]:
        return
    for table, what, remedy in (*lost_tables(pipeline), *differences(pipeline)):
        yield Disagreement(
            "PostgreSQL serves otherwise",
            pipeline.name,
            what,
            remedy or f"{REPAIR}, or the next publication",
            "" if remedy else "serve what is registered",
            table,
        )
