"""Whether the views of the generation that an erasure opened are built: before that they still count erased rows."""

from __future__ import annotations

from include.errors import AnotherWriter
from include.ledger.erasures import former, unfinished
from include.ledger.erasures.coordinates import last_erasure
from include.ledger.streams import generations
from include.pipelines.spec import Pipeline


def are_built(pipeline: Pipeline) -> bool:
    """Return whether each speed view has begun in the current generation, by its base or a micro-batch."""
    current = generations.current(pipeline.name)
    return current is None or all(
        unfinished.view_is_built(
            pipeline.name,
            view.name,
            f"base-{pipeline.name}-{view.name}-g{current.number}",
            current.version(-1),
        )
        for view in pipeline.views
    )


def are_kept(pipeline: Pipeline) -> bool:
    """Return whether the stream keeps state of a view: one that it declares, or one that is not declared any more."""
    current = generations.current(pipeline.name)
    return bool(pipeline.views) or (current is not None and bool(former.views_in(current.fingerprints)))


def check_built(pipeline: Pipeline) -> int:
    """Return the number of the pipeline's last erasure, which a build knows from here on; 0 without one.

    Raises AnotherWriter before an unfinished erasure has built the views again: the old ones still count its rows.
    """
    # Asked first: an erasure that begins after the views were looked at is not known to the build.
    known = last_erasure(pipeline.name)
    begun = unfinished.unfinished(pipeline.name)
    if begun is not None and begun.generation is not None and not are_built(pipeline):
        raise AnotherWriter(
            f"erasure {begun.id} is unfinished: the speed views still count what is erased",
            remedy=f"./tidemark erase {pipeline.name} --resume, then run the interval again",
            pipeline=pipeline.name,
        )
    return known
