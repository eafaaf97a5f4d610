"""Write the files of a new pipeline: declaration, transforms, suite, generator, test and sample."""

from __future__ import annotations

import json
import keyword
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from include.errors import UsageError
from include.pipelines import check_apart, declarations, pipeline_names
from include.pipelines.spec import Pipeline, check_topic
from include.pipelines.spec.lines import declared_name
from include.pipelines.spec.names import check_pipeline_name
from include.scaffold.schema import Sample, inside_literal, quoted, read_sample
from include.settings import REPOSITORY

_FILES = {
    "pipeline.py.j2": "include/pipelines/{}.py",
    "transforms.py.j2": "spark_jobs/transforms/{}.py",
    "suite.py.j2": "expectations/{}.py",
    "producer.py.j2": "include/producing/messages/{}.py",
    "test.py.j2": "tests/spark_jobs/transforms/test_{}.py",
}
_SAMPLE = "tests/golden/{}/sample.jsonl"

_NEEDS_A_TIME = (
    "an event needs a time such as 2026-11-20T05:00:00Z; for a number: include/docs/declaring.md, “From a sample”"
)

_KEPT_LINES = 20
"""How many lines of the sample are kept at most: a test and `produce` read them."""


@dataclass(frozen=True)
class NewPipeline:
    """The files that were written, and what was taken from the sample."""

    name: str
    topic: str
    event_time: str
    """Path in an archive row."""
    event_field: str
    """Path in a message."""
    key: str
    files: tuple[str, ...]


def write_pipeline(
    name: str, sample_file: Path, *, topic: str = "", event_time: str = "", key: str | None = None
) -> NewPipeline:
    """Write a pipeline's files from a sample of its messages; nothing is overwritten.

    `topic`, `event_time` (path) and `key` (column to count by; empty for none) are taken from the sample unless they
    are given. Raises UsageError when the file is not a sample, when no field is a time, when a file to write exists, or
    when the pipeline cannot be declared, alone or beside the others.
    """
    _check_name(name)
    sample = read_sample(sample_file)
    topic = topic or name.replace("_", "-")
    check_topic(topic)
    event_field = _event_field(sample, sample_file, event_time)
    chosen = NewPipeline(
        name,
        topic,
        _column(sample, event_field),
        event_field,
        _key(sample, sample_file, key),
        tuple(path.format(name) for path in (*_FILES.values(), _SAMPLE)),
    )
    if there := [path for path in chosen.files if (REPOSITORY / path).exists()]:
        raise UsageError(f"{there[0]} exists", remedy="choose another name, or remove the pipeline's files first")
    rendered = _rendered(chosen, sample)
    _check_declaration(name, topic, rendered[_FILES["pipeline.py.j2"].format(name)])
    for path, text in rendered.items():
        target = REPOSITORY / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return chosen


def _check_declaration(name: str, topic: str, source: str) -> None:
    """Raise UsageError when a declaration is refused, or shares with another pipeline what must be of one."""
    declared: dict[str, Any] = {}
    exec(compile(source, f"include/pipelines/{name}.py", "exec"), declared)  # noqa: S102
    for other in declarations().loaded:
        try:
            check_apart((other, declared["PIPELINE"]))
            _check_topic(topic, other)
        except UsageError as error:
            raise UsageError(
                f"{error.message}; no file was written", remedy="choose another name or another --topic"
            ) from None


def _check_topic(topic: str, other: Pipeline) -> None:
    """Raise UsageError when another pipeline has the topic: a new one's generator writes events that are made up."""
    if other.source.reads(topic):
        raise UsageError(f"{other.name} reads the topic {topic}")
    if topic in other.written_topics:
        raise UsageError(f"{other.name} writes the topic {topic}")


def _check_name(name: str) -> None:
    check_pipeline_name(name)
    if keyword.iskeyword(name) or name in ("spec", "samples"):
        raise UsageError(f"{name!r} cannot be the name of a pipeline", remedy="choose another one")
    if declared := declared_name(name, pipeline_names()):
        raise UsageError(f"{name} is the name of {declared} when it reads lines", remedy="choose another name")
    if name in pipeline_names():
        raise UsageError(f"there is a pipeline {name} already", remedy="./tidemark pipelines")


def _event_field(sample: Sample, file: Path, wanted: str) -> str:
    times = sample.times()
    if wanted and wanted not in times:
        raise UsageError(
            f"{wanted!r} is not a time in every message of {file}",
            remedy=f"one of {', '.join(times)}" if times else _NEEDS_A_TIME,
        )
    if not times:
        raise UsageError(
            f"no field of {file} is a time in every message",
            remedy=_NEEDS_A_TIME,
        )
    return wanted or times[0]


def _column(sample: Sample, path: str) -> str:
    """Return the path in an archive row of the field at a path of a message."""
    top, _, rest = path.partition(".")
    column = next(field.column for field in sample.fields if field.name == top)
    return f"{column}.{rest}" if rest else column


def _key(sample: Sample, file: Path, wanted: str | None) -> str:
    keys = sample.keys()
    if wanted and wanted not in keys:
        raise UsageError(
            f"{wanted!r} is not text in every message of {file}, or is the name of another column of the view",
            remedy=f"one of {', '.join(keys)}" if keys else "",
        )
    return wanted if wanted is not None else next(iter(keys), "")


def _rendered(chosen: NewPipeline, sample: Sample) -> dict[str, str]:
    # Python, not HTML: what comes from the sample is written as Python literals.
    templates = Environment(  # noqa: S701
        loader=PackageLoader("include.scaffold"), undefined=StrictUndefined, keep_trailing_newline=True
    )
    kept = sample.messages[:_KEPT_LINES]
    facts = {
        "name": chosen.name,
        "title": chosen.name.replace("_", " ").capitalize(),
        "topic": chosen.topic,
        "event_time": chosen.event_time,
        "event_field": chosen.event_field,
        "key": chosen.key,
        "fields": sample.fields,
        "renamed": any(field.column != field.name for field in sample.fields),
        "messages": len(kept),
        "quoted": quoted,
        "inside": inside_literal,
    }
    rendered = {
        path.format(chosen.name): templates.get_template(template).render(facts) for template, path in _FILES.items()
    }
    rendered[_SAMPLE.format(chosen.name)] = "".join(f"{json.dumps(message, ensure_ascii=False)}\n" for message in kept)
    return {path: _formatted(text) if path.endswith(".py") else text for path, text in rendered.items()}


def _formatted(text: str) -> str:
    """Return the source as the project formats it; unchanged if the formatter is not installed."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", "generated.py", "-"],
        input=text,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    return done.stdout if done.returncode == 0 and done.stdout else text
