"""The view of a Delta archive as the metastore has it, compared with the ledger, without Spark."""

from __future__ import annotations

from include import lake
from include.catalog import DATABASE
from include.catalog.properties import properties
from include.lake.delta_log import commit_id
from include.ledger import inventory
from include.pipelines.spec import Pipeline

VERSION = "tidemark.version"
"""Key of the version of the Delta table that the view shows."""

COMMIT = "tidemark.commit"
"""Key of what tells the version's commit from another one of the same number."""


def lag_of_view(pipeline: Pipeline) -> str:
    """Return how the view lags what publications have noted; empty when it does not.

    Somebody dropped it, or the metastore, or the table, was put back from a copy.
    """
    last, view = inventory.last_delta(pipeline.name), pipeline.delta_view
    if last is None:
        return ""
    _, noted = last
    found = properties([view], [VERSION, COMMIT])
    if view not in found:
        return f"the view {DATABASE}.{view} is missing"
    shown = int(found[view].get(VERSION, -1))
    if shown < noted:
        return f"the view {DATABASE}.{view} shows version {shown}, but {noted} was published"
    commit = commit_id(lake.uri("delta", pipeline.name), shown)
    if commit is None or commit != found[view].get(COMMIT, commit):
        return f"the view {DATABASE}.{view} shows version {shown}, which is gone, or is another commit by now"
    return ""
