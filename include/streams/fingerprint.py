"""What a query's checkpoint depends on, as facts that can be compared and named.

The archive query keeps no state: only its sources count. A speed view's state is a function of what is
decoded, selected and aggregated, so all of that counts; of the transforms, and of the pipeline's own code that they
import, only what the view reaches, and neither comments nor docstrings; of the references' content only what its rows
function takes.

Generations outlive versions of Tidemark: the form of a fact stays, and one that is added is noted later (`unnoted`).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

from include.errors import UsageError
from include.intervals.references import CONTENT
from include.ledger.archive.micro_batches import ARCHIVE
from include.ledger.streams.flags import FLAGS
from include.pipelines.spec import AdditiveView, JdbcTable, KafkaDeserializer, Pipeline, UserDefined
from include.pipelines.spec.decoders import Decoder
from include.pipelines.spec.references import content_hash
from include.settings import REPOSITORY
from include.spark.compiled_jars import jars_content
from include.spark.submission import SHUFFLE_PARTITIONS
from include.streams.imported_code import code_hash, definitions_of, imported_code
from include.times import in_words
from include.versions.syntax import parse

Facts = dict[str, Any]
"""Name of a fact to its value, as JSON holds it."""

_SHOWN = 60

CODE = "code of "
"""Prefix of the names of facts about code that a pipeline's functions import."""

DECODER = "decoder's "
"""Prefix of the names of facts about a decoder's options."""

_JAR = f"{DECODER}jar"

TABLE = "table in serving"
"""Name of the fact whether a view in update mode keeps a table, which gets only keys that change: one that is declared
later would lack all others. In complete mode each micro-batch writes all keys."""

KEPT = "kept"
"""Value of the fact `TABLE` where one is kept."""

_NOTED_LATER = (CONTENT, CODE, DECODER, TABLE)
"""How the names of facts begin that earlier versions of Tidemark did not note."""

_HASHED = ("transform ", CONTENT, CODE, _JAR)
"""How the names of facts begin whose values mean nothing to a reader."""


_DECLARED = frozenset(
    {
        *("source topics", "number of sources", "key", "measures", "columns", "window", "window length", "mode", TABLE),
        *("watermark", "speed topic", "shuffle partitions", "decoder schema", "archive columns", "event time"),
        *("archive rules", f"{DECODER}kind", f"{DECODER}config", _JAR),
        *(f"{DECODER}{option.name}" for kind in get_args(Decoder) for option in fields(kind)),
    }
)
"""Names of the facts that this code notes, besides those that begin as follows."""

_NAMED = ("reference ", "transform ", CONTENT, CODE)


def archive_fingerprint(pipeline: Pipeline) -> Facts:
    """Return what the checkpoint of the archive query depends on."""
    source = pipeline.source
    declared: Any = sorted(source.subscribe)
    if not declared:
        declared = source.pattern or {topic: sorted(numbers) for topic, numbers in sorted(source.assign.items())}
    return {"source topics": declared, "number of sources": 1}


def view_fingerprint(pipeline: Pipeline, view: AdditiveView) -> Facts:
    """Return what the checkpoint of a speed view's query depends on.

    Raises UsageError for a reference without a file.
    """
    definitions = _reached(pipeline.code, (pipeline.archive.rows, view.rows, view.aggregate))
    taken = _references_taken(definitions.get(view.rows), pipeline.references)
    return {
        **archive_fingerprint(pipeline),
        "key": list(view.key),
        "measures": list(view.measures),
        "columns": _words(view.columns),
        "window": view.window,
        "window length": str(view.windows or "none"),
        **({"mode": view.mode} if view.mode != "update" else {TABLE: _table(view)}),
        "watermark": in_words(view.speed.watermark) if view.speed.watermark else "none",
        "speed topic": view.speed.topic,
        "shuffle partitions": SHUFFLE_PARTITIONS,
        "decoder schema": _words(pipeline.decoder.schema),
        "archive columns": _words(pipeline.archive_columns),
        "event time": pipeline.archive.event_time,
        "archive rules": [str(rule) for rule in pipeline.archive.all_rules],
        **{f"reference {name}": _words(each.columns) for name, each in sorted(pipeline.references.items())},
        **{f"{CONTENT}{name}": content_hash(name, pipeline.references[name]) for name in sorted(taken)},
        **{f"transform {name}": code_hash(node) for name, node in sorted(definitions.items())},
        **_imported(pipeline, definitions),
        **_options(pipeline.decoder),
    }


def _table(view: AdditiveView) -> str:
    return KEPT if any(isinstance(sink, JdbcTable) for sink in view.sinks) else "none"


def _imported(pipeline: Pipeline, definitions: Mapping[str, ast.stmt]) -> Facts:
    """Return the code of the pipeline's own that its functions import, and that of a decoder in Python."""
    decoder = pipeline.decoder
    others = [decoder.function.partition(":")[::2]] if isinstance(decoder, UserDefined) else []
    code = imported_code(f"spark_jobs.transforms.{pipeline.code}", definitions, others, REPOSITORY)
    return {f"{CODE}{name}": digest for name, digest in sorted(code.items())}


def _options(decoder: Decoder) -> Facts:
    """Return what a decoder declares besides its schema, as far as it decides about rows.

    Unknown fields that are kept are a column of the archive. An Avro subject tells only which schemas are fetched
    early, and FAILFAST only ends the stream.
    """
    names = [each.name for each in fields(decoder) if each.name not in ("schema", "unknown", "subject", "mode")]
    noted: Facts = {f"{DECODER}{name}": getattr(decoder, name) for name in names}
    if isinstance(decoder, KafkaDeserializer):
        # Not the class that calls it: that is Tidemark's own.
        noted[_JAR] = jars_content(decoder)[0][:12]
        noted[f"{DECODER}config"] = dict(decoder.config)
    return {f"{DECODER}kind": type(decoder).__name__, **noted}


def fingerprints_of(pipeline: Pipeline) -> dict[str, Facts]:
    """Return what the checkpoint of each query depends on. Raises UsageError like `view_fingerprint`."""
    facts = {ARCHIVE: archive_fingerprint(pipeline)}
    facts.update({view.name: view_fingerprint(pipeline, view) for view in pipeline.views})
    if pipeline.flags:
        # Stateless like the archive query: only its sources count.
        facts[FLAGS] = archive_fingerprint(pipeline)
    return facts


def _words(ddl: str) -> str:
    return " ".join(ddl.split())


def _reached(pipeline: str, roots: tuple[str, ...]) -> dict[str, ast.stmt]:
    """Return the definitions in the transforms module that the roots reach, by name."""
    source = (REPOSITORY / "spark_jobs" / "transforms" / f"{pipeline}.py").read_text()
    definitions = definitions_of(parse(source).body)
    reached: dict[str, ast.stmt] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in definitions and name not in reached:
            reached[name] = definitions[name]
            waiting += [node.id for node in ast.walk(definitions[name]) if isinstance(node, ast.Name)]
    return reached


def _references_taken(rows: ast.stmt | None, declared: Collection[str]) -> set[str]:
    """Return the references that a rows function takes: those it takes by name, or all if it uses them otherwise."""
    if not isinstance(rows, ast.FunctionDef) or len(rows.args.args) != 2:
        return set(declared)
    argument = rows.args.args[1].arg
    uses = sum(isinstance(node, ast.Name) and node.id == argument for node in ast.walk(rows))
    named = [name for node in ast.walk(rows) for name in _taken_by_name(node, argument)]
    return set(named).intersection(declared) if len(named) == uses else set(declared)


def _taken_by_name(node: ast.AST, argument: str) -> Iterator[str]:
    match node:
        case ast.Subscript(value=ast.Name(id=variable), slice=ast.Constant(value=str(name))) if variable == argument:
            yield name


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what changed, a phrase per fact: old → new for what is declared."""
    return [
        _change(stored, now, name) for name in sorted(stored.keys() | now.keys()) if stored.get(name) != now.get(name)
    ]


def _change(stored: Mapping[str, Any], now: Mapping[str, Any], name: str) -> str:
    if name not in now and name not in _DECLARED and not name.startswith(_NAMED):
        return f"{name} was noted by newer code, which this is not"
    if name.startswith(_HASHED):
        return f"{name} {'is new' if name not in stored else 'is no longer used' if name not in now else 'changed'}"
    before, after = (_text(facts.get(name, "none")) for facts in (stored, now))
    shorter = min(len(before), len(after))
    same = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), shorter)
    start = max(0, same - _SHOWN // 3) if max(len(before), len(after)) > _SHOWN else 0
    return f"{name}: {_excerpt(before, start)} → {_excerpt(after, start)}"


def _text(value: object) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, list) else str(value)


def _excerpt(text: str, start: int) -> str:
    shown = text[start : start + _SHOWN]
    return ("…" if start else "") + shown + ("…" if len(text) > start + _SHOWN else "")


def unnoted(stored: Mapping[str, Any], now: Mapping[str, Any]) -> Facts:
    """Return facts that the query's first start has not noted, because Tidemark's code of that time did not do so.

    They are unknown: the present ones are taken for them, and noted. Code that is reached only since a change of other
    code, or an option that another decoder does not have, is no way around: that other fact differs.

    A table that is no longer kept is noted, too: the checkpoint does not depend on it, but it misses what follows.
    """
    missing = {name: value for name, value in now.items() if name.startswith(_NOTED_LATER) and name not in stored}
    ends = stored.get(TABLE) == KEPT and now.get(TABLE, KEPT) != KEPT
    return {**missing, TABLE: now[TABLE]} if ends else missing


def check(pipeline: str, query: str, stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError, naming what changed, when a checkpoint made under `stored` does not fit `now`."""
    known = {**stored, **unnoted(stored, now)}
    if TABLE not in now:
        # In complete mode, the table is no matter.
        known.pop(TABLE, None)
    changed = differences(known, now)
    if changed:
        raise UsageError(
            f"the checkpoint of {query} was made by another query: {'; '.join(changed)}",
            remedy=f'./tidemark new-generation {pipeline} --reason "…", or take the change back',
            pipeline=pipeline,
        )
