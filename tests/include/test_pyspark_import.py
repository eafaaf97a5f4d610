"""Drivers import PySpark from its folder, where Python keeps compiled code, though `spark-submit` names its archive."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from include.settings import REPOSITORY
from include.spark.jars import pyspark_home

ARCHIVE = pyspark_home() / "python" / "lib" / "pyspark.zip"
ENTRIES = sorted(path for path in (REPOSITORY / "spark_jobs").glob("*.py") if path.name != "__init__.py")


def origin_of_pyspark(program: str, *path: Path, isolated: bool = False) -> str:
    """Where PySpark comes from in a Python that `spark-submit` starts with that path."""
    flags = ["-S"] if isolated else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, *flags, "-c", f"{program}; import pyspark.version; print(pyspark.version.__file__)"]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, cwd="/").stdout.strip()


def imported(module: Path) -> list[str]:
    """The top-level packages that a module imports, in order."""
    names: list[str] = []
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names.append(str(node.module))
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return [name.split(".")[0] for name in names]


def test_pyspark_is_imported_from_its_folder_when_its_archive_comes_first() -> None:
    assert origin_of_pyspark("pass", ARCHIVE, REPOSITORY).startswith(f"{ARCHIVE}/")
    assert origin_of_pyspark("import include", ARCHIVE, REPOSITORY) == str(pyspark_home() / "version.py")


def test_archive_stays_when_pyspark_is_installed_otherwise(tmp_path: Path) -> None:
    package = tmp_path / "include"
    package.mkdir()
    shutil.copy(REPOSITORY / "include" / "__init__.py", package)
    py4j = next(ARCHIVE.parent.glob("py4j-*.zip"))
    # Without the folder of installed packages.
    assert origin_of_pyspark("import include", ARCHIVE, py4j, tmp_path, isolated=True).startswith(f"{ARCHIVE}/")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda path: path.stem)
def test_package_finds_pyspark_s_folder_first_when_an_entry_imports_it(entry: Path) -> None:
    ours = [root for root in imported(entry) if root in ("include", "spark_jobs", "pyspark")]
    assert ours[0] != "pyspark"
    assert imported(REPOSITORY / "spark_jobs" / "__init__.py") == ["include"]
