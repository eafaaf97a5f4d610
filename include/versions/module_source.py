"""A module's source as a syntax tree tells it: what it defines, what each definition loads, and what it imports."""

from __future__ import annotations

import ast
import symtable
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from include.errors import TidemarkError
from include.versions.syntax import parse

PACKAGES = ("include", "spark_jobs", "expectations")
"""Where the repository's modules are."""


@dataclass(frozen=True)
class Star:
    """An `import *` from a module of the repository."""

    module: str
    hides: set[str]
    """Names that were imported before it, and not again after it: where the module has one, it stands for that."""


@dataclass(frozen=True)
class Source:
    """A module's definitions by their names, the global names that each loads, and its imports by local name."""

    statements: dict[str, list[ast.stmt]]
    loaded: dict[str, set[str]]
    imports: dict[str, tuple[str, str]]
    stars: list[Star]
    """In the order of the module."""


@cache
def read_source(text: str, module: str, package: str) -> Source:
    """Return what a module's text says. Raises TidemarkError for an import from above its packages."""
    tree = parse(text)
    tables = {(table.get_name(), table.get_lineno()): table for table in _tables(text)}
    source = Source({}, {}, {}, [])
    for node in _statements(tree):
        for local, (imported, original) in _imported(node, module, package):
            if local != "*":
                source.imports[local] = imported, original
                for star in source.stars:
                    star.hides.discard(local)
            elif imported.split(".")[0] in PACKAGES:
                source.stars.append(Star(imported, set(source.imports)))
    defined = {name for statement in tree.body for name in _defined(statement)}
    for statement in tree.body:
        names = (node for node in _evaluated(statement) if isinstance(node, ast.Name))
        loaded = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            loaded |= _globals(tables[statement.name, statement.lineno])
        for name in _defined(statement) | (_changed(statement) & defined):
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
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    if isinstance(statement, ast.Expr):
        # `__all__.append(…)` is part of what `__all__` is.
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)} & {"__all__"}
    stored = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    inner = (node for node in ast.walk(statement) if isinstance(node, ast.FunctionDef | ast.ClassDef))
    return stored | {node.name for node in inner}


def _changed(statement: ast.stmt) -> set[str]:
    """Return the names whose values a statement at the top of a module may change without binding the names anew.

    It stores into them, or takes no result of an expression that has them other than to call them.
    """
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return set()
    nodes = list(ast.walk(statement))
    parts = (node for node in nodes if isinstance(node, ast.Subscript | ast.Attribute))
    changed = {_root(node) for node in parts if isinstance(node.ctx, ast.Store | ast.Del)}
    for node in nodes:
        if isinstance(node, ast.Expr):
            inner = list(ast.walk(node))
            called = {each.func for each in inner if isinstance(each, ast.Call)}
            changed |= {each.id for each in inner if isinstance(each, ast.Name) and each not in called}
    return changed


def _root(node: ast.expr) -> str:
    """Return the name at the left of an attribute, an index or a call; empty where it is no name."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def listed(statements: Sequence[ast.stmt]) -> set[str] | None:
    """Return the names that the statements put into `__all__`; None unless they are lists or tuples of texts."""
    names: set[str] = set()
    for statement in statements:
        match statement:
            case (
                ast.Assign(value=ast.List(elts=parts) | ast.Tuple(elts=parts))
                | ast.AnnAssign(value=ast.List(elts=parts) | ast.Tuple(elts=parts))
                | ast.AugAssign(value=ast.List(elts=parts) | ast.Tuple(elts=parts))
            ):
                texts = [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
                if len(texts) < len(parts):
                    return None
                names.update(texts)
            case _:
                return None
    return names


def _imported(node: ast.AST, module: str, package: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what an import of a module binds: a local name, `*` for all of them, the module that it is imported from,
    and the name in that, empty for the module itself.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            top = alias.name.split(".")[0]
            yield (alias.asname, (alias.name, "")) if alias.asname else (top, (top, ""))
    elif isinstance(node, ast.ImportFrom):
        imported = _in_full(node, module, package)
        for alias in node.names:
            yield alias.asname or alias.name, (imported, alias.name)


def _in_full(node: ast.ImportFrom, module: str, package: str) -> str:
    """Return the full name of the module that a module of the package imports from; raise TidemarkError if none is."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    if node.level > len(parts):
        raise TidemarkError(
            f"{module} imports from {'.' * node.level}{node.module or ''}, which is above its packages",
            remedy="import it by its full name",
        )
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)
