"""Which pipelines Tidemark ships. A checkout may declare others, and its tests pass beside them."""

from include.pipelines import declarations
from include.pipelines.spec import Pipeline

SHIPPED = ("auction_bids", "gps_positions", "isp_hits", "nest_cameras", "wiki_changes")

UNUSED = "nobodys_bells"
"""A name for a pipeline without files: one that the pages show is what a checkout's own would be called."""


def all_pipelines() -> tuple[Pipeline, ...]:
    """Return all declared pipelines, sorted by name.

    Raises UsageError when one cannot be loaded, or when two write what must be of one.
    """
    for error in declarations().refused.values():
        raise error
    return declarations().pipelines
