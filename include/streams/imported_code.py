"""Code of a pipeline's own that its functions import from elsewhere, followed by name from definition to definition.

Its own are modules of `spark_jobs/transforms` and `include/pipelines`, and those of other packages unless they are
installed or Python's. Tidemark's other modules are not: a new version of them must not look like a change of a view.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

from include.versions.syntax import parse

_TIDEMARK = ("include", "spark_jobs", "expectations", "dags")
_OWN = ("spark_jobs.transforms.", "include.pipelines.")
_INSTALLED = frozenset({"site-packages", "dist-packages"})

_WHOLE = ""
"""In place of a name: the module with all that it defines."""

_ALL = ", all statements"
"""After the name of a definition that several statements make: the fact of the last one keeps its name and form."""

_Import = ast.Import | ast.ImportFrom

_Target = tuple[str, str]
"""A module, and the name of one of its definitions."""


def imported_code(
    module: str, reached: Mapping[str, ast.stmt], others: Iterable[_Target], repository: Path
) -> dict[str, str]:
    """Return the hashes of what definitions of a module import, by full name.

    `reached` are these definitions, by name: only those that several statements make are in the result. `others` are
    further functions (module, name) to begin at. A module that is used otherwise than by its attributes counts as a
    whole, as does one in which a name is not found at the top, but in an `if` or `try`.
    """
    modules = _Modules(repository)
    found: dict[str, str] = {}
    seen = {(module, name) for name in reached}
    # What they import follows from their own uses of it.
    begins = [node for node in reached.values() if not isinstance(node, _Import)]
    waiting = [(module, _WHOLE) for name in reached if name in modules.inner(module)]
    for name in reached:
        made_by = modules.definitions(module).get(name, [])
        if len(made_by) > 1 and (code := _without_imports(made_by)):
            found[f"{module}.{name}{_ALL}"] = _hash_of_all(code)
            begins += code
    waiting += [*(each for node in begins for each in modules.used_by(module, node)), *others]
    while waiting:
        target = waiting.pop()
        at, name = target
        if target in seen or not modules.is_own(at):
            continue
        seen.add(target)
        if name == _WHOLE:
            statements = modules.statements(at)
            found[at] = code_hash(ast.Module(statements, []))
            waiting += [each for node in statements for each in modules.used_by(at, node)]
        elif node := modules.last_definitions(at).get(name):
            nodes = modules.definitions(at)[name]
            if not isinstance(node, _Import):
                found[f"{at}.{name}"] = code_hash(node)
            if len(nodes) > 1 and (code := _without_imports(nodes)):
                found[f"{at}.{name}{_ALL}"] = _hash_of_all(code)
            waiting += [each for node in nodes for each in modules.used_by(at, node)]
            if name in modules.inner(at):
                waiting.append((at, _WHOLE))
        else:
            waiting.append((at, _WHOLE))
    return found


def _without_imports(nodes: Iterable[ast.stmt]) -> list[ast.stmt]:
    return [each for each in nodes if not isinstance(each, _Import)]


def _hash_of_all(code: list[ast.stmt]) -> str:
    return code_hash(ast.Module(code, []))


class _Modules:
    """The pipeline's own modules, as far as they are asked for."""

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._statements: dict[str, list[ast.stmt]] = {}
        self._definitions: dict[str, dict[str, list[ast.stmt]]] = {}
        self._inner: dict[str, set[str]] = {}

    def is_own(self, module: str) -> bool:
        return self._file(module) is not None

    def definitions(self, module: str) -> Mapping[str, list[ast.stmt]]:
        """Return the statements by which the module defines, imports or changes a name, by name, in their order.

        Nothing for a module that is not the pipeline's own.
        """
        if module not in self._definitions:
            found: dict[str, list[ast.stmt]] = {}
            for node in self.statements(module):
                # A statement may name a thing twice; of an import each name has its own part.
                for name, part in dict(_changed(node)).items():
                    found.setdefault(name, []).append(part)
            self._definitions[module] = found
        return self._definitions[module]

    def last_definitions(self, module: str) -> Mapping[str, ast.stmt]:
        """Return what the module defines and imports, by name: of several statements the last one."""
        return definitions_of(self.statements(module))

    def inner(self, module: str) -> Collection[str]:
        """Return the names that the module binds or changes inside other statements, such as `if`, `for` and `del`."""
        if module not in self._inner:
            blocks = [node for node in self.statements(module) if not (dict(_changed(node)) or _is_for_types(node))]
            self._inner[module] = {name for node in blocks for each in ast.walk(node) for name in _names_bound(each)}
        return self._inner[module]

    def statements(self, module: str) -> list[ast.stmt]:
        """Return the module's statements without those that only say something."""
        if module not in self._statements:
            file = self._file(module)
            body = parse(file.read_text(encoding="utf-8")).body if file else []
            self._statements[module] = [node for node in body if not _is_text(node)]
        return self._statements[module]

    def used_by(self, module: str, node: ast.stmt) -> Iterator[_Target]:
        """Yield what a definition of the module loads by a global name: of this module, and of imported ones."""
        definitions = self.definitions(module)
        for inner in (each for each in ast.walk(node) if isinstance(each, _Import)):
            for name, statement in _bound(inner):
                uses = _attributes(node, name) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
                yield from self._imported(module, statement, uses)
        loaded = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        for name in sorted(loaded & {*definitions, *self.inner(module)}):
            imports = [each for each in definitions.get(name, []) if isinstance(each, _Import)]
            for statement in imports:
                yield from self._imported(module, statement, _attributes(node, name))
            if not imports or len(imports) < len(definitions[name]) or name in self.inner(module):
                yield module, name

    def _imported(self, module: str, statement: _Import, attributes: Collection[str] | None) -> Iterator[_Target]:
        """Yield what an import statement gives, of a module only these attributes; None for all."""
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                # `import a.b` gives a, whose attribute b is the module.
                is_named = alias.asname or "." not in alias.name
                yield from self._of_module(alias.name, attributes if is_named else None)
                continue
            source = self._resolved(module, statement)
            if self._file(inner := f"{source}.{alias.name}") and alias.name not in self.definitions(source):
                yield from self._of_module(inner, attributes)
            else:
                yield source, _WHOLE if alias.name == "*" else alias.name

    def _of_module(self, module: str, attributes: Collection[str] | None) -> Iterator[_Target]:
        if attributes is None:
            yield module, _WHOLE
            return
        for name in sorted(attributes):
            is_module = self._file(inner := f"{module}.{name}") and name not in self.definitions(module)
            yield (inner, _WHOLE) if is_module else (module, name)

    def _resolved(self, module: str, statement: ast.ImportFrom) -> str:
        """Return the full name of the module that a statement imports from."""
        if not statement.level:
            return statement.module or ""
        file = self._file(module)
        depth = statement.level - bool(file and file.name == "__init__.py")
        package = module.split(".")
        return ".".join([*package[: len(package) - depth], *([statement.module] if statement.module else [])])

    def _file(self, module: str) -> Path | None:
        """Return the source of a module of the pipeline's own; None for any other."""
        parts = module.split(".")
        if parts[0] in _TIDEMARK:
            is_own = module.startswith(_OWN) and not f"{module}.".startswith("include.pipelines.spec.")
            folder = self._repository if is_own else None
        else:
            folder = self._folder(parts[0])
        if folder is None:
            return None
        path = folder.joinpath(*parts)
        return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)

    def _folder(self, top: str) -> Path | None:
        """Return the folder that a package or module lies in; None for those that are installed or Python's own."""
        if not top or top in sys.stdlib_module_names:
            return None
        if (self._repository / top).is_dir() or (self._repository / f"{top}.py").is_file():
            return self._repository
        try:
            spec = find_spec(top)
        except (ImportError, ValueError):
            return None
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ([spec.origin] if spec.origin and spec.has_location else []))
        folder = Path(places[0]).parent if places else None
        # A driver also finds the folders of spark_jobs, without that name before them; nobody else does.
        is_ours = folder is not None and folder.is_relative_to(self._repository)
        return None if folder is None or is_ours or _INSTALLED.intersection(folder.parts) else folder


def _attributes(node: ast.stmt, name: str) -> Collection[str] | None:
    """Return the attributes by which a definition uses a name; None where it also uses the name otherwise."""
    uses = sum(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))
    taken = [
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == name
    ]
    return set(taken) if len(taken) == uses else None


def _is_for_types(node: ast.stmt) -> bool:
    """Return whether a statement is `if TYPE_CHECKING`, whose body never runs."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def definitions_of(statements: Iterable[ast.stmt]) -> dict[str, ast.stmt]:
    """Return the definitions and imports among a module's statements, by name, each with the part that matters."""
    return dict(each for node in statements for each in _defined(node))


def _defined(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that a statement defines, each with the part of it that matters."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            yield name, node
        case ast.Import() | ast.ImportFrom():
            yield from _bound(node)
        case ast.Assign(targets=targets):
            yield from ((n.id, node) for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def _changed(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the names that a statement defines or changes, each with the part of it that matters."""
    match node:
        case ast.AsyncFunctionDef(name=name) | ast.AugAssign(target=ast.Name(id=name)):
            yield name, node
        case ast.AugAssign(target=target) | ast.Expr(value=ast.Call(func=ast.Attribute(value=target))):
            yield from ((each.id, node) for each in ast.walk(target) if isinstance(each, ast.Name))
        case _:
            yield from _defined(node)


def _names_bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node binds, and those in what it changes: items, attributes, what a call is given."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=changed):
            yield from _names_in(changed)
        case ast.Attribute(ctx=ast.Store() | ast.Del(), value=changed) | ast.Expr(value=ast.Call() as changed):
            yield from _names_in(changed)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import() | ast.ImportFrom():
            yield from (name for name, _ in _bound(node))


def _names_in(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name))


def _bound(node: _Import) -> Iterator[tuple[str, _Import]]:
    """Yield the names that an import binds, each with its part of the statement."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.asname or alias.name.split(".")[0], ast.Import([alias])
        else:
            yield alias.asname or alias.name, ast.ImportFrom(node.module, [alias], node.level)


def code_hash(node: ast.AST) -> str:
    """Return twelve hex digits of a definition's or a module's code, without docstrings, comments and layout.

    Streams compare it with what earlier versions of Tidemark noted, so its form stays.
    """
    plain = deepcopy(node)
    for each in ast.walk(plain):
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(each) is not None:
            each.body = each.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(plain).encode()).hexdigest()[:12]
