"""The declared pipelines: each module here with a `PIPELINE` is one, named like its file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache
from itertools import combinations

from include.errors import UsageError
from include.pipelines.spec import DatabaseTable, Pipeline
from include.pipelines.spec.lines import declared_name, no_offsets, read_from_lines
from include.pipelines.spec.outputs import tables_of

_NOT_PIPELINES = frozenset({"spec"})


def pipeline_names() -> tuple[str, ...]:
    """Return the names of all declared pipelines, sorted."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _NOT_PIPELINES))


@cache
def load_pipeline(name: str) -> Pipeline:
    """Return the declared pipeline of that name. Raises UsageError when there is none, or it reads lines."""
    if name not in pipeline_names():
        if declared := declared_name(name, pipeline_names()):
            raise no_offsets(name, declared)
        raise UsageError(f"unknown pipeline {name!r}", remedy=f"one of: {', '.join(pipeline_names())}")
    pipeline = importlib.import_module(f"{__name__}.{name}").PIPELINE
    if not isinstance(pipeline, Pipeline) or pipeline.name != name:
        raise UsageError(f"include/pipelines/{name}.py declares no PIPELINE named {name!r}")
    return pipeline


def has_stream(name: str) -> bool:
    """Return whether a declared pipeline streams under this name, from Kafka or from lines."""
    return name in pipeline_names() or declared_name(name, pipeline_names()) is not None


def load_line_pipeline(name: str) -> Pipeline | None:
    """Return the pipeline that runs under this name when it reads lines, e.g. `isp_hits_files`; else None."""
    declared = None if name in pipeline_names() else declared_name(name, pipeline_names())
    return read_from_lines(load_pipeline(declared), name.removeprefix(f"{declared}_")) if declared else None


@cache
def all_pipelines() -> tuple[Pipeline, ...]:
    """Return all declared pipelines, sorted by name. Raises UsageError when two write what must be of one."""
    pipelines = tuple(load_pipeline(name) for name in pipeline_names())
    check_apart(pipelines)
    return pipelines


def check_apart(pipelines: Sequence[Pipeline]) -> None:
    """Raise UsageError when two pipelines have a table in common, or one writes a topic that another reads back.

    The ledger knows a revision by its table, and an interval takes each key of a speed view's topic for one of its own.
    A database's table knows an output's row by its coordinates, so two pipelines share one only without a common topic.
    """
    for one, other in combinations(pipelines, 2):
        if tables := sorted({*one.tables} & {*other.tables}):
            _refuse(one, other, f"the table {tables[0]}")
        topics = {*one.own_topics} & other.written_topics.keys() | {*other.own_topics} & one.written_topics.keys()
        if topics:
            _refuse(one, other, f"the topic {min(topics)}")
        if tables := sorted(_of_serving(one) & other.live_tables.keys() | _of_serving(other) & one.live_tables.keys()):
            _refuse(one, other, f"the table {tables[0]} of serving")
        common, shared = one.source.common(other.source), _output_tables(one) & _output_tables(other)
        if common and shared:
            raise UsageError(
                f"outputs of {one.name} and {other.name} both write {min(map(str, shared))}, and both read {common}: "
                "rows of the same coordinates would replace each other",
                remedy=f"give the output a table of its own in include/pipelines/{other.name}.py",
            )


def _output_tables(pipeline: Pipeline) -> set[DatabaseTable]:
    return set(tables_of(pipeline.name, pipeline.outputs))


def _of_serving(pipeline: Pipeline) -> set[str]:
    """Return the tables of the database `serving` that outputs write."""
    return {each.table for each in _output_tables(pipeline) if not each.connection}


def _refuse(one: Pipeline, other: Pipeline, what: str) -> None:
    raise UsageError(
        f"{one.name} and {other.name} both write {what}", remedy=f"rename it in include/pipelines/{other.name}.py"
    )


def pipeline_of_table(table: str) -> Pipeline:
    """Return the pipeline that delivers a table. Raises UsageError when none does, or it reads lines."""
    pipelines = all_pipelines()
    for pipeline in pipelines:
        if table in pipeline.tables:
            return pipeline
    if declared := declared_name(table, [each.name for each in pipelines]):
        raise no_offsets(table, declared)
    known = ", ".join(name for each in pipelines for name in each.tables)
    raise UsageError(f"unknown table {table!r}", remedy=f"one of: {known}")
