"""What code executes: the definitions that it reaches by name, as a text that names no file and no module.

From a root, e.g. `spark_jobs.decoding.records:decode`, every global name that a definition loads is followed to the
definition it stands for, through imports, over all modules of the repository. Each definition is written once, in
the order in which it is reached, and a reference to it is its number. So only what is reached counts, and not where it
lies, how it is imported, laid out, annotated, commented or documented.

Attributes of objects are not followed: a class counts where it is named, and then with all of its methods. A module
that is passed as a value counts with its public functions. Names that `import *` brings from a module of the
repository are followed as if they were imported by name. Statements at the top of a module count for the names of
this module that they define or change, such as `CODES["b"] = 2`. Other statements there, what `import *` brings from
elsewhere, and what is imported by a name that is made at run time, do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.errors import TidemarkError, UsageError, one_line
from include.versions.module_source import PACKAGES, Source, listed, read_source

_UNSAID = frozenset({"returns", "annotation", "type_comment", "type_params", "ctx", "kind"})
"""Fields of a syntax tree that change nothing at run time."""


def executed_code(roots: Sequence[str], boundary: Collection[str], repository: Path) -> str:
    """Return the text of all that the roots (`module:name`) reach inside the boundary.

    Functions and classes of a module, a package or a definition in `boundary` do not count; constants do.
    Raises TidemarkError for a root or a boundary that does not exist.
    """
    return "\n".join(_reached(roots, boundary, repository).texts())


def executed_modules(roots: Sequence[str], boundary: Collection[str], repository: Path) -> list[str]:
    """Return the names of the modules whose definitions `executed_code` tells; raise what it raises."""
    reached = _reached(roots, boundary, repository)
    for _ in reached.texts():
        pass
    return reached.modules()


def _reached(roots: Sequence[str], boundary: Collection[str], repository: Path) -> _Reached:
    reached = _Reached(repository, frozenset(boundary))
    for name in (*roots, *boundary):
        if not reached.exists(name):
            raise TidemarkError(
                f"include/versions names {name}, which is not there", remedy="name what decides about rows now"
            )
    for root in roots:
        reached.number(_Definition(*root.split(":")))
    return reached


def is_defined(name: str, repository: Path) -> bool:
    """Return whether a root (`module:name`) exists."""
    return _Reached(repository, frozenset()).exists(name)


@dataclass(frozen=True)
class _Definition:
    module: str
    name: str


@dataclass(frozen=True)
class _Module:
    name: str


@dataclass(frozen=True)
class _Foreign:
    """A name from outside of the repository, in full."""

    name: str


_Target = _Definition | _Module | _Foreign


class _Reached:
    """The definitions that are reached, numbered in that order."""

    def __init__(self, repository: Path, boundary: frozenset[str]) -> None:
        self._repository = repository
        self._boundary = boundary
        self._numbers: dict[_Definition, int] = {}
        self._files: dict[str, Path | None] = {}
        self._sources: dict[str, Source] = {}

    def exists(self, name: str) -> bool:
        module, _, definition = name.partition(":")
        return self._is_module(module) and (not definition or definition in self._source(module).statements)

    def number(self, definition: _Definition) -> int:
        return self._numbers.setdefault(definition, len(self._numbers))

    def texts(self) -> Iterator[str]:
        """Yield the text of each definition; what it reaches is numbered meanwhile."""
        at = 0
        while at < len(self._numbers):
            definition = list(self._numbers)[at]
            source = self._source(definition.module)
            text = _Text(self, definition.module, source.loaded[definition.name])
            yield repr([text.of(each) for each in source.statements[definition.name]])
            at += 1

    def modules(self) -> list[str]:
        """Return the names of the modules that have the definitions."""
        return sorted({definition.module for definition in self._numbers})

    def reference(self, target: _Target) -> tuple[object, ...]:
        """Return what stands in a text for a reference to the target."""
        match target:
            case _Definition(module, name) if self._is_outside(module, name) and not self._is_constant(target):
                return ("outside",)
            case _Definition():
                return ("definition", self.number(target))
            case _Module(module) if self._is_outside(module):
                return ("outside",)
            case _Module(module):
                public = [name for name in self._source(module).statements if not name.startswith("_")]
                return ("module", *(self.reference(_Definition(module, name)) for name in sorted(public)))
        return ("foreign", target.name)

    def target(self, module: str, name: str, asked: frozenset[str] = frozenset()) -> _Target | None:
        """Return what a global name of a module stands for; None for a name of Python's own.

        Modules in `asked` lead here by an `import *`: they may import each other.
        """
        source = self._source(module)
        if name in source.statements:
            return _Definition(module, name)
        for star in reversed(source.stars):
            is_hidden = name in source.imports and name not in star.hides
            if not is_hidden and (found := self._starred(star.module, name, asked | {module})):
                return found
        # A package that imports its own module names itself.
        if name in source.imports and source.imports[name] != (module, name):
            imported, original = source.imports[name]
            if imported.split(".")[0] not in PACKAGES:
                return _Foreign(f"{imported}.{original}".rstrip("."))
            return self.target(imported, original) if original else _Module(imported)
        return _Module(f"{module}.{name}") if self._is_module(f"{module}.{name}") else None

    def _starred(self, module: str, name: str, asked: frozenset[str]) -> _Target | None:
        """Return what `from module import *` makes a name stand for; None when it does not bring the name."""
        if module in asked:
            return None
        declared = self._source(module).statements.get("__all__")
        if declared is None:
            return None if name.startswith("_") else self.target(module, name, asked)
        names = listed(declared)
        if names is None:
            raise TidemarkError(
                f"the code imports * from {module}, whose __all__ is made at run time: which code is executed, and the "
                "versions with it, cannot be told",
                remedy="write __all__ as a list of texts, or import by name",
            )
        return self.target(module, name, asked) if name in names else None

    def _is_outside(self, module: str, name: str = "") -> bool:
        parts = module.split(".")
        above = {".".join(parts[: length + 1]) for length in range(len(parts))}
        return bool(self._boundary & {*above, f"{module}:{name}"})

    def _is_constant(self, definition: _Definition) -> bool:
        statements = self._source(definition.module).statements[definition.name]
        is_code = any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for each in statements)
        return not is_code and isinstance(statements[0], ast.Assign | ast.AnnAssign)

    def _is_module(self, name: str) -> bool:
        return self._file(name) is not None

    def _file(self, module: str) -> Path | None:
        if module not in self._files:
            path = self._repository.joinpath(*module.split("."))
            files = (path.with_suffix(".py"), path / "__init__.py")
            self._files[module] = next((file for file in files if file.is_file()), None)
        return self._files[module]

    def _source(self, module: str) -> Source:
        if module not in self._sources:
            file = self._file(module)
            if file is None:
                raise TidemarkError(f"the code imports {module}, which is not there")
            package = module if file.name == "__init__.py" else module.rpartition(".")[0]
            try:
                self._sources[module] = read_source(file.read_text(encoding="utf-8"), module, package)
            except (SyntaxError, ValueError, OSError) as error:
                raise UsageError(
                    f"{module} cannot be read as Python: {type(error).__name__}: {one_line(str(error))}",
                    remedy="correct its file",
                ) from error
        return self._sources[module]


@dataclass(frozen=True)
class _Text:
    """Writes a definition of a module."""

    reached: _Reached
    module: str
    loaded: set[str]
    """The global names that the definition loads."""

    def of(self, node: object) -> Any:
        """Return the tree as nested lists."""
        if isinstance(node, list):
            return [self.of(each) for each in node if not _says_nothing(each)]
        if not isinstance(node, ast.AST):
            return repr(node)
        if isinstance(node, ast.Name | ast.Attribute) and (target := self._target(node)):
            return self.reached.reference(target)
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            return ["Assign", self.of(node.target), self.of(node.value)]
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            return ["Assign", self.of(node.targets[0]), self.of(node.value)]
        said = [
            (name, self.of(value))
            for name, value in ast.iter_fields(node)
            if name not in _UNSAID and value not in (None, [])
        ]
        if isinstance(node, ast.ClassDef):
            # An annotation makes a name a field.
            said.append(("fields", [self.of(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]))
        return [type(node).__name__, *said]

    def _target(self, node: ast.expr) -> _Target | None:
        match node:
            case ast.Name(id=name) if name in self.loaded:
                return self.reached.target(self.module, name)
            case ast.Attribute(value=value, attr=name):
                match self._target(value):
                    case _Module(module):
                        return self.reached.target(module, name)
                    case _Foreign(foreign):
                        return _Foreign(f"{foreign}.{name}")
        return None


def _says_nothing(node: object) -> bool:
    """Return whether a statement does nothing by itself: a docstring, `pass`, an import (it counts where used)."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, ast.Import | ast.ImportFrom | ast.Pass)
