"""Code that Python workers import by its name, which is then what lies on disk, and not what the driver runs.

A worker starts long after its driver. The driver therefore sends along what it knows of the modules' files when it
starts, and the worker compares: rows of newer code would be noted as those of the driver's.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from include.errors import TidemarkError
from include.settings import REPOSITORY

WorkerCode = tuple[tuple[str, str], ...]
"""Names of modules, each with twelve hex digits of its source's SHA-256."""


@cache
def worker_code(*functions: str) -> WorkerCode:
    """Return the modules that functions (`module:name`) execute, as they were when this process first asked.

    Of a function from outside of the repository that is its own module, where this machine has it.
    """
    return tuple((spec.name, _digest(spec)) for spec in _specs(functions))


def files_of(code: WorkerCode) -> list[Path]:
    """Return the files of the modules."""
    return [Path(spec.origin) for name, _ in code if (spec := find_spec(name)) and spec.origin]


@cache
def check_unchanged(code: WorkerCode) -> None:
    """Raise TidemarkError when this worker has imported a module from another source than the driver knows.

    To be called after the import: what was read then is what lies there, or older.
    """
    for name, noted in code:
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec is not None and _digest(spec) != noted:
            raise TidemarkError(
                f"the code of {name} was changed since this driver started, and a Python worker would decode by it",
                remedy="nothing of the micro-batch was committed: start it again",
            )


def _specs(functions: tuple[str, ...]) -> list[ModuleSpec]:
    # Workers do without this import, which takes half a second.
    from include.versions import BOUNDARY
    from include.versions.executed_code import executed_modules
    from include.versions.module_source import PACKAGES

    ours = [function for function in functions if function.split(".")[0] in PACKAGES]
    others = [function.partition(":")[0] for function in functions if function not in ours]
    names = executed_modules(ours, BOUNDARY, REPOSITORY) if ours else []
    found = (_spec_of(name) for name in (*names, *others))
    return [spec for spec in found if spec is not None and spec.has_location and (spec.origin or "").endswith(".py")]


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        # A package that is installed on the workers alone, or a module that no file gives.
        return None


def _digest(spec: ModuleSpec) -> str:
    # By its loader, since a module may be in an archive that was shipped.
    source: bytes = spec.loader.get_data(spec.origin)  # type: ignore[union-attr]
    return hashlib.sha256(source).hexdigest()[:12]
