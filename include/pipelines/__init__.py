"""The declared pipelines: each module here with a `PIPELINE` is one, named like its file."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from threading import RLock

from include.errors import PipelinesClash, TidemarkError, UsageError, one_line
from include.pipelines.spec import DatabaseTable, Pipeline
from include.pipelines.spec.lines import declared_name, no_offsets, read_from_lines
from include.pipelines.spec.outputs import tables_of

_NOT_PIPELINES = frozenset({"spec"})

_PIPELINE = re.compile(r"^[^#\n]*\bPIPELINE\b", re.MULTILINE)


def pipeline_names() -> tuple[str, ...]:
    """Return the names of all declared pipelines, sorted; nothing is imported. Other modules are none."""
    return tuple(sorted({name for folder in __path__ for name in _declaring(Path(folder))}))


def _declaring(folder: Path) -> Iterator[str]:
    for name, file, changed in _modules(folder):
        with suppress(OSError):
            if _declares(file, changed):
                yield name


def _modules(folder: Path) -> Iterator[tuple[str, Path, int]]:
    """Yield the folder's modules that may be declarations, or be imported by one: name, file, and when it changed."""
    for module in pkgutil.iter_modules([str(folder)]):
        if module.name in _NOT_PIPELINES:
            continue
        file = folder / module.name / "__init__.py" if module.ispkg else folder / f"{module.name}.py"
        # A file that an editor is just replacing is none.
        with suppress(OSError):
            yield module.name, file, file.stat().st_mtime_ns


@cache
def _declares(module: Path, changed: int) -> bool:
    """Return whether a module, as it was last `changed`, names a `PIPELINE` outside of comments."""
    return _PIPELINE.search(module.read_text(encoding="utf-8", errors="replace")) is not None


@cache
def load_pipeline(name: str) -> Pipeline:
    """Return the declared pipeline of that name.

    Raises UsageError, which names the pipeline or its file, when there is none, when it cannot be loaded, or when it
    reads lines.
    """
    if name not in pipeline_names():
        if declared := declared_name(name, pipeline_names()):
            raise no_offsets(name, declared)
        if any((Path(folder) / f"{name}.py").is_file() for folder in __path__):
            raise UsageError(f"include/pipelines/{name}.py declares no PIPELINE named {name!r}")
        raise UsageError(f"unknown pipeline {name!r}", remedy=f"one of: {', '.join(pipeline_names())}")
    try:
        pipeline = importlib.import_module(f"{__name__}.{name}").PIPELINE
    except TidemarkError as error:
        error.pipeline = error.pipeline or name
        raise
    # A declaration is code of its author: whatever it raises concerns this pipeline alone.
    except Exception as error:
        raise UsageError(
            f"include/pipelines/{name}.py cannot be loaded: {type(error).__name__}: {one_line(str(error))}",
            remedy="correct the declaration",
        ) from error
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


def as_lines(pipeline: Pipeline, kind: str) -> Pipeline:
    """Return a declared pipeline as it runs over lines (`read_from_lines`).

    Raises UsageError, too, when another pipeline is declared by the name of the run: lease, landing and quarantine
    would be of both.
    """
    lines = read_from_lines(pipeline, kind)
    if lines.name in pipeline_names():
        raise UsageError(
            f"{lines.name} is the name of {pipeline.name} when it reads lines, and another pipeline is declared by it",
            remedy=f"rename include/pipelines/{lines.name}.py, or produce the lines into Kafka",
            pipeline=pipeline.name,
        )
    return lines


def check_lines_apart(lines: Pipeline) -> None:
    """Raise PipelinesClash when a declaration writes a topic, or a table of `serving`, of a pipeline that reads lines.

    It has no tables in the catalog.
    """
    for other in declarations().loaded:
        _check_topics(lines, other)
        if tables := sorted(lines.live_tables.keys() & {*other.live_tables, *_of_serving(other)}):
            _refuse(lines, other, f"the table {tables[0]} of serving")


@dataclass(frozen=True)
class Declarations:
    """All declared pipelines, and why some of them cannot run."""

    loaded: tuple[Pipeline, ...]
    """Those that could be loaded, by name."""
    refused: Mapping[str, TidemarkError]
    """The errors of those that could not, and of those that write what must be of one, by name."""
    files: tuple[tuple[str, Path, int], ...] = ()
    """The modules that they were read from: name, file, and when it had changed."""

    @property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines that can run, by name."""
        return tuple(each for each in self.loaded if each.name not in self.refused)

    @property
    def reasons(self) -> list[str]:
        """What is wrong with each file that has a refused declaration, a line each."""
        files = {name: f"include/pipelines/{name}.py" for name in self.refused}
        return [
            str(error) if str(error).startswith(files[name]) else f"{files[name]}: {error}"
            for name, error in self.refused.items()
        ]


_reading = RLock()


@cache
def declarations() -> Declarations:
    """Return all declared pipelines; one that is refused does not keep the others from running.

    They stay as this process has read them, until it calls `reread_changed`.
    """
    with _reading:
        return _read_declarations(_files())


def reread_changed() -> None:
    """Read the declarations anew if a file of them was added, removed or changed since.

    For the pages, whose process outlives many declarations. A driver or a task keeps what it began with.
    """
    with _reading:
        if declarations().files == _files():
            return
        importlib.invalidate_caches()
        for module in filter(_is_declaration, list(sys.modules)):
            del sys.modules[module]
        load_pipeline.cache_clear()
        declarations.cache_clear()
        declarations()


def _files() -> tuple[tuple[str, Path, int], ...]:
    return tuple(sorted(each for folder in __path__ for each in _modules(Path(folder))))


def _is_declaration(module: str) -> bool:
    prefix = f"{__name__}."
    return module.startswith(prefix) and module.removeprefix(prefix).partition(".")[0] not in _NOT_PIPELINES


def _read_declarations(files: tuple[tuple[str, Path, int], ...]) -> Declarations:
    loaded: list[Pipeline] = []
    refused: dict[str, TidemarkError] = {}
    for name in pipeline_names():
        try:
            loaded.append(load_pipeline(name))
        except TidemarkError as error:
            refused[name] = error
    for pair in combinations(loaded, 2):
        try:
            check_apart(pair)
        except PipelinesClash as error:
            # Which of them was there first is not known: what both write must be written by neither.
            for each in pair:
                refused.setdefault(each.name, error)
    return Declarations(tuple(loaded), dict(sorted(refused.items())), files)


def check_apart(pipelines: Sequence[Pipeline]) -> None:
    """Raise PipelinesClash when two pipelines have a table in common, or one writes a topic that another reads back.

    The ledger knows a revision by its table, and an interval takes each key of a speed view's topic for one of its own.
    A database's table knows an output's row by its coordinates, so two pipelines share one only without a common topic.
    """
    for one, other in combinations(pipelines, 2):
        if tables := sorted(one.catalog_names & other.catalog_names):
            _refuse(one, other, f"the table {tables[0]}")
        _check_topics(one, other)
        if tables := sorted(_of_serving(one) & other.live_tables.keys() | _of_serving(other) & one.live_tables.keys()):
            _refuse(one, other, f"the table {tables[0]} of serving")
        common, shared = one.source.common(other.source), _output_tables(one) & _output_tables(other)
        if common and shared:
            raise PipelinesClash(
                f"outputs of {one.name} and {other.name} both write {min(map(str, shared))}, and both read {common}: "
                "rows of the same coordinates would replace each other",
                remedy=f"give the output a table of its own in include/pipelines/{other.name}.py",
                pipelines=(one.name, other.name),
            )


def _check_topics(one: Pipeline, other: Pipeline) -> None:
    topics = {*one.own_topics} & other.written_topics.keys() | {*other.own_topics} & one.written_topics.keys()
    if topics:
        _refuse(one, other, f"the topic {min(topics)}")


def _output_tables(pipeline: Pipeline) -> set[DatabaseTable]:
    return set(tables_of(pipeline.name, pipeline.outputs))


def _of_serving(pipeline: Pipeline) -> set[str]:
    """Return the tables of the database `serving` that outputs write."""
    return {each.table for each in _output_tables(pipeline) if not each.connection}


def _refuse(one: Pipeline, other: Pipeline, what: str) -> None:
    raise PipelinesClash(
        f"{one.name} and {other.name} both write {what}",
        remedy=f"rename it in include/pipelines/{other.name}.py",
        pipelines=(one.name, other.name),
    )


def pipeline_of_table(table: str) -> Pipeline:
    """Return the pipeline that delivers a table. Raises UsageError when none does, or it reads lines."""
    pipelines, refused = declarations().loaded, declarations().refused
    for pipeline in pipelines:
        if table in pipeline.tables:
            return pipeline
    if declared := declared_name(table, [each.name for each in pipelines]):
        raise no_offsets(table, declared)
    for name, error in refused.items():
        if table == name or table.startswith(f"{name}_"):
            raise error
    known = ", ".join(name for each in pipelines for name in each.tables)
    raise UsageError(f"unknown table {table!r}", remedy=f"one of: {known}")
