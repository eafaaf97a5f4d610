"""The parts of a total in the lake: what registered intervals hold of it, where their files are as built."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from include.lake.revision_files import damaged_files
from include.ledger.completeness.partials import Partial, Partials, registered_partials
from include.offsets import TopicPartition
from include.pipelines.spec import AdditiveView, Pipeline
from spark_jobs.spark.log import log_of


def stored_parts(
    pipeline: Pipeline,
    view: AdditiveView,
    but: Collection[int],
    *,
    read: Mapping[TopicPartition, int],
    closed: Collection[str],
) -> Partials:
    """Return the registered intervals, without those in `but`, that the speed view has read whole (as for the ledger).

    Those with a damaged part are left out, too. If it were an error, two of them would keep each other's interval from
    being run again.
    """
    left_out = set(but)
    while True:
        held = registered_partials(pipeline.name, pipeline.view_table(view), left_out, read=read, closed=closed)
        # Asked again without them: parts and their ranges are of one snapshot.
        if not (damaged := {each.interval_id for each in held.parts if _is_damaged(pipeline, view, each)}):
            return held
        left_out |= damaged


def _is_damaged(pipeline: Pipeline, view: AdditiveView, part: Partial) -> bool:
    if not part.revision:
        return False
    damage = next(damaged_files(part.location, part.files, deep=False), None)
    if damage is not None:
        log_of(pipeline.name).warning(
            "the part of the total %s that an interval registered is damaged, and is counted from the archive: "
            "%s: %s; run that interval again",
            view.name,
            part.location,
            damage,
        )
    return damage is not None
