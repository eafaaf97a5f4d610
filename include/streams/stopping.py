"""Streams that are asked to stop, those included that outlive their declaration: no page and no DAG knows them."""

from __future__ import annotations

from include.ledger.streams import writers
from include.ledger.streams.writers import LiveWriter
from include.pipelines import load_pipeline, pipeline_names
from include.pipelines.spec.lines import declared_name, parse_line_source, read_from_lines


def undeclared_streams() -> dict[str, LiveWriter]:
    """Return the running drivers of pipelines that are not declared, by the pipelines' names."""
    declared = pipeline_names()
    return {
        name: live
        for name, live in sorted(writers.live_writers().items())
        if name not in declared and declared_name(name, declared) is None
    }


def request_stop(pipeline: str, line_source: str | None = None) -> bool:
    """Ask the driver of a pipeline, over lines if they are named, to stop after its micro-batch; False if none runs.

    Raises UsageError for a name that is not declared and under which no stream ever ran.
    """
    name = pipeline
    if line_source is not None:
        name = read_from_lines(load_pipeline(pipeline), parse_line_source(line_source).kind).name
    elif not writers.was_acquired(pipeline):
        name = load_pipeline(pipeline).name
    return writers.request_stop(name)
