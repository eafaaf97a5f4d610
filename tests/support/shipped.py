"""Which pipelines Tidemark ships. A checkout may declare others, and its tests pass beside them."""

SHIPPED = ("auction_bids", "gps_positions", "isp_hits", "nest_cameras", "wiki_changes")

UNUSED = "nobodys_bells"
"""A name for a pipeline without files: one that the pages show is what a checkout's own would be called."""
