"""Compare Iceberg tables with the ledger. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from include.doctor.disagreement import REPAIR, Disagreement
from include.pipelines.spec import Pipeline


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
            "" if each.remedy else "commit to Iceberg",
            each.table,
        )
