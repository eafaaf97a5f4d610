"""Process boundaries: dags/ and include/ stay light, modules stay in their layer."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

HEAVY = {"pyspark", "great_expectations", "pandas"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("folder", ["dags", "include"])
def test_light_folder_never_imports_a_heavy_library(folder: str) -> None:
    for path in (REPOSITORY / folder).rglob("*.py"):
        assert not imports(path) & HEAVY, path


def test_airflow_is_imported_by_dags_and_its_own_folder_only() -> None:
    for folder in ("include", "spark_jobs", "expectations"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            if "airflow" in path.parts:
                continue
            assert "airflow" not in imports(path), path


def test_kafka_is_read_by_spark_in_one_module_only() -> None:
    readers = [
        path.name
        for path in (REPOSITORY / "spark_jobs").rglob("*.py")
        if re.search(r"""read(Stream)?\s*\.format\("kafka"\)""", path.read_text())
    ]
    assert readers == ["kafka_source.py"]


def test_no_spark_module_shadows_a_library() -> None:
    # spark-submit puts spark_jobs/ first on sys.path.
    names = {path.stem for path in (REPOSITORY / "spark_jobs").iterdir()}
    assert not names & {"delta", "avro", "kafka", "types", "json", "logging", "decimal", "numbers"}


def test_importing_the_command_loads_no_heavy_library() -> None:
    code = f"import sys, include.cli.__main__; sys.exit(bool(set(sys.modules) & {HEAVY!r}))"
    result = subprocess.run([sys.executable, "-c", code], env=os.environ, cwd=REPOSITORY, check=False)
    assert result.returncode == 0
