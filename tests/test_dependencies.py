"""What is imported is declared: a library that only comes with another one goes when that one drops it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest

from include.versions.syntax import parse
from tests.conftest import REPOSITORY

OURS = {"dags", "expectations", "include", "spark_jobs", "tests"}
DECLARED = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def imported(folder: str) -> set[str]:
    """The top-level packages of others that modules below a folder import."""
    found = set()
    for module in (REPOSITORY / folder).rglob("*.py"):
        for node in ast.walk(parse(module.read_text())):
            if isinstance(node, ast.Import):
                found |= {each.name.partition(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(str(node.module).partition(".")[0])
    # Stubs, which only the checker of types reads.
    return found - OURS - sys.stdlib_module_names - {"_typeshed"}


def named(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", each)[0].replace("_", "-").lower() for each in requirements}


@pytest.mark.parametrize("folder", sorted(OURS))
def test_library_is_declared_when_it_is_imported(folder: str) -> None:
    declared = named(DECLARED["project"]["dependencies"])
    if folder == "tests":
        declared |= named(DECLARED["dependency-groups"]["dev"])
    owners = packages_distributions()
    missing = {
        name
        for name in imported(folder)
        if declared.isdisjoint(owner.replace("_", "-").lower() for owner in owners[name])
    }
    assert missing == set()


def test_what_builds_a_package_is_pinned_when_it_has_no_wheel() -> None:
    locked = tomllib.loads((REPOSITORY / "uv.lock").read_text())
    never = {"pyspark-client"}
    built = {each["name"] for each in locked["package"] if "sdist" in each and not each.get("wheels")} - never
    assert built == {"pyspark"}
    (builder,) = locked["manifest"]["build-constraints"]
    assert builder["name"] == "setuptools"
    assert builder["specifier"].startswith("==")
