"""Versions of code: a hash of what a pipeline's rows are a function of, and of nothing else.

Two things are hashed. The *code* that is executed: all definitions that the roots below reach, whatever their files
are called (`include/versions/executed_code.py`). And the *facts* of the declaration that decide about rows; names of
transforms are among the roots instead.

| version         | code                                            | facts                                          |
|-----------------|-------------------------------------------------|------------------------------------------------|
| decoder_version | decoding, rules, the archive's rows transform   | decoder; archive's columns, event time, rules  |
| view_version    | that; a view's transforms, its aggregation, its | those; the view's key, measures, columns and   |
|                 | keys and values as messages                     | windows; references with their content         |
| code_version    | decoding, transforms of all views, aggregation, | those of decoder and all views; references;    |
|                 | writing, content hash, suite and checkpoint     | the archive's partition columns and format     |
| suite_version   | suite, what is usual, checkpoint                | Great Expectations' version                    |
| rules_version   | decoding, the flags' rules transform, flags     | those of the decoder; a flag's columns, topic  |

Other declared facts change no row: names, descriptions, source, schedule, retention, reports, the Delta
archive, Iceberg tables, sinks and topics of views, how flags learn their limits (those in force are in the ledger).
Spark's version is in every hash. The boundary is what cannot change a row.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from include.errors import UsageError
from include.ledger import reference_versions
from include.pipelines import load_pipeline
from include.pipelines.spec import AdditiveView, Avro, Csv, Json, KafkaDeserializer, Pipeline, Text, UserDefined
from include.pipelines.spec.outputs import long_columns
from include.settings import REPOSITORY
from include.spark.compiled_jars import jars_content
from include.versions.executed_code import executed_code, is_defined

DECODING_MODULES: Mapping[type, str] = {
    Json: "spark_jobs.decoding.strict_json",
    Text: "spark_jobs.decoding.utf8_text",
    Csv: "spark_jobs.decoding.strict_csv",
    UserDefined: "spark_jobs.decoding.user_defined.python_function",
    KafkaDeserializer: "spark_jobs.decoding.user_defined.kafka_deserializer",
    Avro: "spark_jobs.decoding.avro_wire",
}
"""The decoding module of each decoder: for a pipeline, the others are outside the boundary."""

DECODING = ("spark_jobs.decoding.records:decode", "spark_jobs.decoding.records:archive_rows")
AGGREGATION = ("spark_jobs.decoding.records:load_references", "spark_jobs.views.aggregate:aggregate_view")
SPEED_MESSAGES = ("spark_jobs.views.values:key_json", "spark_jobs.views.values:value_json")
REVISIONS = (
    "spark_jobs.archive.schema:archive_schema",
    "spark_jobs.archive.schema:with_partition_columns",
    "spark_jobs.intervals.write:write_revisions",
    "include.times:Interval",
)
VALIDATION = (
    "expectations.checkpoint:expectations_of",
    "expectations.checkpoint:checkpoint_passed",
    "expectations.usual:usual_of",
    "spark_jobs.publication.validate:named_for_suite",
)
"""Used besides a pipeline's own suite."""
FLAGS = ("spark_jobs.views.flags:flags",)
LONG_FLAGS = ("spark_jobs.views.flags:bounded_flags",)
"""Of pipelines whose flags have columns of any length: all other flags are as without it."""

BOUNDARY = (
    # Where rows and schemas are kept, queried and reported, and what is refused.
    "include.crash_points",
    "include.errors",
    "include.lake",
    "include.ledger",
    "include.schemas.registry",
    "include.settings",
    "spark_jobs.archive.field_ids",
    "spark_jobs.spark.thrown",
    "spark_jobs.spark.worker_code",
    "spark_jobs.views.analysed",
    # These import what is declared by its name: it is among the roots.
    "spark_jobs.decoding.records:transform",
    "spark_jobs.decoding.user_defined.python_function:_function",
)
"""Packages, modules and definitions that cannot change a row; their constants count where they are named."""


References = tuple[tuple[str, str], ...]
"""Names of references with the SHA-256 of their content, in order, where it is not what they hold now."""


@cache
def code_version(pipeline: str, references: References = ()) -> str:
    """Return twelve hex digits that change when the revisions of an interval, or their validation, may."""
    declared = load_pipeline(pipeline)
    archive = declared.archive
    transforms = (name for view in declared.views for name in _transforms(declared, view))
    roots = (*AGGREGATION, *REVISIONS, *_suite(declared), *transforms)
    views = {view.name: _view(view) for view in declared.views}
    used = _references(declared, references)
    facts = [decoder_version(pipeline), used, views, dict(archive.partition_by), archive.file_format]
    return _digest(declared, roots, facts)


@cache
def suite_version(pipeline: str) -> str:
    """Return twelve hex digits that change when what is expected of an interval may."""
    declared = load_pipeline(pipeline)
    return _digest(declared, _suite(declared), [version("great-expectations")])


@cache
def decoder_version(pipeline: str) -> str:
    """Return twelve hex digits that change when a record's fate, or the rows it decodes to, may."""
    declared = load_pipeline(pipeline)
    archive = declared.archive
    roots = [*DECODING, _transform(declared, archive.rows)]
    decoder = _facts(declared.decoder)
    if isinstance(declared.decoder, KafkaDeserializer):
        decoder["jar"] = jars_content(declared.decoder)
    if isinstance(declared.decoder, UserDefined) and _is_ours(declared.decoder.function):
        roots.append(declared.decoder.function)
        del decoder["function"]
    rows = [archive.takes_record, _ddl(archive.columns), archive.event_time, _facts(archive.all_rules)]
    return _digest(declared, tuple(roots), [decoder, rows])


@cache
def view_version(pipeline: str, view: str, references: References = ()) -> str:
    """Return twelve hex digits that change when what a view adds up may."""
    declared = load_pipeline(pipeline)
    view_of_name = next(each for each in declared.views if each.name == view)
    facts = [decoder_version(pipeline), _references(declared, references), _view(view_of_name)]
    return _digest(declared, (*AGGREGATION, *SPEED_MESSAGES, *_transforms(declared, view_of_name)), facts)


@cache
def rules_version(pipeline: str) -> str:
    """Return twelve hex digits that change when a record's flags may, under the same limits, or the topic they are in.

    Flags that were raised before are in the topic of then, where no interval looks for them any more.
    """
    declared = load_pipeline(pipeline)
    if declared.flags is None:
        return decoder_version(pipeline)
    is_long = long_columns(declared.flags, declared.archive_columns, declared.archive.all_rules)
    roots = (*(LONG_FLAGS if is_long else FLAGS), _transform(declared, declared.flags.rules))
    return _digest(declared, roots, [decoder_version(pipeline), _facts(declared.flags.columns), declared.flags.topic])


def _transform(pipeline: Pipeline, name: str) -> str:
    return f"spark_jobs.transforms.{pipeline.code}:{name}"


def _transforms(pipeline: Pipeline, view: AdditiveView) -> tuple[str, str]:
    return _transform(pipeline, view.rows), _transform(pipeline, view.aggregate)


def _suite(pipeline: Pipeline) -> tuple[str, ...]:
    own = (f"expectations.{pipeline.code}:{name}" for name in ("SUITES", "USUAL"))
    return (*VALIDATION, *(root for root in own if is_defined(root, REPOSITORY) or root.endswith("SUITES")))


def _is_ours(function: str) -> bool:
    return function.split(".")[0] in ("include", "spark_jobs", "expectations")


def _view(view: AdditiveView) -> Any:
    windows = view.windows
    seconds = [windows.length_seconds, windows.slide_seconds, windows.start_seconds] if windows else []
    return [view.key, view.measures, _ddl(view.columns), view.window, seconds]


def _references(pipeline: Pipeline, contents: References) -> Any:
    known = dict(contents)
    return {
        name: [_ddl(each.columns), known.get(name) or _now(pipeline, name)]
        for name, each in pipeline.references.items()
    }


def _now(pipeline: Pipeline, name: str) -> str:
    """Return the SHA-256 of what a reference's file holds; for one with a source, of what was last read there."""
    reference = pipeline.references[name]
    if reference.source is not None:
        return reference_versions.newest(pipeline.name).get(name, "")
    return hashlib.sha256(reference.path.read_bytes()).hexdigest()


def _facts(declared: Any) -> Any:
    """Return a declared value as JSON can hold it: its kind, and its fields by their names, without files."""
    if is_dataclass(declared):
        values = {each.name: getattr(declared, each.name) for each in fields(declared)}
        said = {name: _facts(value) for name, value in values.items() if not isinstance(value, Path)}
        kept = {name: _schema(value) if name == "schema" else value for name, value in said.items()}
        return {"kind": type(declared).__name__, **kept}
    return [_facts(each) for each in declared] if isinstance(declared, tuple) else declared


def _schema(text: str) -> Any:
    """Return a decoder's schema without its layout, and an Avro schema without its documentation."""

    def undocumented(node: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in node.items() if name != "doc"} if "type" in node else node

    try:
        return json.loads(text, object_hook=undocumented)
    except ValueError:
        return _ddl(text)


def _ddl(columns: str) -> str:
    """Return columns without their layout; what stands in quotes is kept."""
    return re.sub(r"(`[^`]*`|'[^']*')|\s+", lambda match: match[1] or " ", columns.strip())


def _digest(pipeline: Pipeline, roots: tuple[str, ...], facts: Any) -> str:
    unused = [module for kind, module in DECODING_MODULES.items() if kind is not type(pipeline.decoder)]
    if not pipeline.keeps_unknown_fields:
        unused.append("spark_jobs.decoding.unknown_fields")
    _check_own(pipeline, roots)
    code = executed_code(roots, (*BOUNDARY, *unused), REPOSITORY)
    said = json.dumps([version("pyspark"), facts], sort_keys=True)
    return hashlib.sha256(f"{said}\n{code}".encode()).hexdigest()[:12]


def _check_own(pipeline: Pipeline, roots: tuple[str, ...]) -> None:
    """Raise UsageError when a function or the suite that the pipeline is declared with is not there."""
    own = (f"spark_jobs.transforms.{pipeline.code}:", f"expectations.{pipeline.code}:")
    for root in roots:
        if root.startswith(own) and not is_defined(root, REPOSITORY):
            module, _, name = root.partition(":")
            file = f"{module.replace('.', '/')}.py"
            raise UsageError(
                f"{file} has no {name}",
                remedy=f"write it there, or correct its name in include/pipelines/{pipeline.code}.py",
                pipeline=pipeline.name,
            )
