"""What code executes: the definitions that it reaches by name, as a text that names no file and no module.

From a root, e.g. `spark_jobs.decoding.records:decode`, every global name that a definition loads is followed to the
definition it stands for, through imports, over all modules of the repository. Each definition is written once, in
the order in which it is reached, and a reference to it is its number. So only what is reached counts, and not where it
lies, how it is imported, laid out, annotated, commented or documented.

Attributes of objects are not followed: a class counts where it is named, and then with all of its methods. A module
that is passed as a value counts with its public functions. Statements at the top of a module that define nothing,
and what is imported by a name that is made at run time, do not count.
"""

from __future__ import annotations

import ast
import symtable
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from include.errors import TidemarkError

_PACKAGES = ("include", "spark_jobs", "expectations")

_UNSAID = frozenset({"returns", "annotation", "type_comment", "type_params", "ctx", "kind"})
"""Fields of a syntax tree that change nothing at run time."""


def executed_code(roots: Sequence[str], boundary: Collection[str], repository: Path) -> str:
    """Return the text of all that the roots (`module:name`) reach inside the boundary.

    Functions and classes of a module, a package or a definition in `boundary` do not count; constants do.
    Raises TidemarkError for a root or a boundary that does not exist.
    """
    reached = _Reached(repository, frozenset(boundary))
    for name in (*roots, *boundary):
        if not reached.exists(name):
            raise TidemarkError(
                f"include/versions names {name}, which is not there", remedy="name what decides about rows now"
            )
    for root in roots:
        reached.number(_Definition(*root.split(":")))
    return "\n".join(reached.texts())


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


@dataclass(frozen=True)
class _Source:
    """A module's definitions by their names, the global names that each loads, and its imports by local name."""

    statements: dict[str, list[ast.stmt]]
    loaded: dict[str, set[str]]
    imports: dict[str, tuple[str, str]]


class _Reached:
    """The definitions that are reached, numbered in that order."""

    def __init__(self, repository: Path, boundary: frozenset[str]) -> None:
        self._repository = repository
        self._boundary = boundary
        self._numbers: dict[_Definition, int] = {}
        self._files: dict[str, Path | None] = {}
        self._sources: dict[str, _Source] = {}

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

    def target(self, module: str, name: str) -> _Target | None:
        """Return what a global name of a module stands for; None for a name of Python's own."""
        source = self._source(module)
        if name in source.statements:
            return _Definition(module, name)
        if name in source.imports:
            imported, original = source.imports[name]
            if imported.split(".")[0] not in _PACKAGES:
                return _Foreign(f"{imported}.{original}".rstrip("."))
            return self.target(imported, original) if original else _Module(imported)
        return _Module(f"{module}.{name}") if self._is_module(f"{module}.{name}") else None

    def _is_outside(self, module: str, name: str = "") -> bool:
        parts = module.split(".")
        above = {".".join(parts[: length + 1]) for length in range(len(parts))}
        return bool(self._boundary & {*above, f"{module}:{name}"})

    def _is_constant(self, definition: _Definition) -> bool:
        statements = self._source(definition.module).statements[definition.name]
        return all(isinstance(each, ast.Assign | ast.AnnAssign) for each in statements)

    def _is_module(self, name: str) -> bool:
        return self._file(name) is not None

    def _file(self, module: str) -> Path | None:
        if module not in self._files:
            path = self._repository.joinpath(*module.split("."))
            files = (path.with_suffix(".py"), path / "__init__.py")
            self._files[module] = next((file for file in files if file.is_file()), None)
        return self._files[module]

    def _source(self, module: str) -> _Source:
        if module not in self._sources:
            file = self._file(module)
            if file is None:
                raise TidemarkError(f"the code imports {module}, which is not there")
            self._sources[module] = _read(file.read_text(encoding="utf-8"))
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


@cache
def _read(text: str) -> _Source:
    tree = ast.parse(text)
    tables = {(table.get_name(), table.get_lineno()): table for table in _tables(text)}
    source = _Source({}, {}, dict(each for node in _statements(tree) for each in _imported(node)))
    for statement in tree.body:
        names = (node for node in _evaluated(statement) if isinstance(node, ast.Name))
        loaded = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            loaded |= _globals(tables[statement.name, statement.lineno])
        for name in _defined(statement):
            source.statements.setdefault(name, []).append(statement)
            source.loaded.setdefault(name, set()).update(loaded)
    return source


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements of a tree in the order of `ast.walk`, without expressions: these are most of a tree."""
    pending = deque([tree])
    while pending:
        node = pending.popleft()
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, name, ())
            # The body of a lambda is an expression.
            if isinstance(inner, list):
                yield from inner
                pending.extend(inner)


def _tables(text: str) -> list[symtable.SymbolTable]:
    return symtable.symtable(text, "module", "exec").get_children()


def _globals(table: symtable.SymbolTable) -> set[str]:
    """Return the names that a function or a class loads from its module or imports, those of annotations left out."""
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_imported() or (symbol.is_global() and symbol.is_referenced())
    }
    inner = (child for child in table.get_children() if "annotation" not in str(child.get_type()).lower())
    return names.union(*map(_globals, inner))


def _evaluated(statement: ast.stmt) -> Iterator[ast.AST]:
    """Return the nodes of a statement that are evaluated in the module's own scope."""
    match statement:
        case ast.ClassDef(bases=bases, keywords=keywords, decorator_list=decorators):
            parts: list[ast.AST] = [*bases, *keywords, *decorators]
        case (
            ast.FunctionDef(args=args, decorator_list=decorators)
            | ast.AsyncFunctionDef(args=args, decorator_list=decorators)
        ):
            parts = [*args.defaults, *(each for each in args.kw_defaults if each), *decorators]
        case ast.AnnAssign(value=value):
            parts = [value] if value else []
        case _:
            parts = [statement]
    return (node for part in parts for node in ast.walk(part))


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement at the top of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.Expr):
        return set()
    stored = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = (node for node in ast.walk(statement) if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return stored | {node.name for node in inner}


def _imported(node: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what an import binds: a local name, the module, and the name in it, empty for the module itself."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.split(".")[0]
            yield (alias.asname, (alias.name, "")) if alias.asname else (top, (top, ""))
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            yield alias.asname or alias.name, (node.module, alias.name)
