"""A pipeline's event time stays what it was once rows are archived.

Landing files and table partitions are found by the event times that they had when they were written. With another
column as event time, views and their comparison would miss rows, and tables would have rows by two times.
"""

from __future__ import annotations

from include.catalog.renames import by_any_name
from include.errors import UsageError
from include.ledger.archive import micro_batches
from include.ledger.streams import generations
from include.pipelines.spec import Pipeline


def check_event_time(pipeline: Pipeline) -> None:
    """Raise UsageError when rows are archived whose event time was another column, renamed ones apart."""
    declared = pipeline.archive.event_time
    noted = generations.event_time(pipeline.name)
    if noted is None or noted in by_any_name(pipeline, declared) or not micro_batches.positions(pipeline.name):
        return
    raise UsageError(
        f"the event time was {noted} and is {declared} now, but archived rows are found by the former one",
        remedy="take the change back and run it again; to go by the other time, declare a pipeline of another name "
        "that reads the topic from its beginning",
        pipeline=pipeline.name,
    )
